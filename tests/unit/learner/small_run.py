"""A run in one process: a real store, a tiny model, and an actor that answers from a script."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import msgspec
import numpy as np

from forebay.batching.ladder import build_ladder
from forebay.batching.settings import BatchingSettings
from forebay.batching.updates import build_updates
from forebay.clock import Clock, SystemClock
from forebay.learner.annotations import Annotator
from forebay.learner.dispatch import Dispatcher
from forebay.learner.feed import Feed, JournaledBatch, Packer
from forebay.learner.loop import Learner
from forebay.learner.programs import TrainPrograms
from forebay.learner.settings import LearnerSettings
from forebay.learner.train_step import TrainState, snapshot
from forebay.models.hf import to_hf_tensors
from forebay.models.settings import MeshSettings
from forebay.models.sharding import make_mesh
from forebay.objectives import ObjectiveSettings
from forebay.objectives.build import annotations_of, build_objective, build_value_loss
from forebay.objectives.denominators import batch_denominator
from forebay.objectives.settings import build_batch_advantages
from forebay.objectives.value_settings import ValueSettings
from forebay.staleness import StalenessSettings
from forebay.store import StoreSettings, open_store
from forebay.store.rules import RuleStore
from forebay.telemetry.spans import TimeStrip
from forebay.trajectory import PolicyVersion, Trajectory
from forebay.weights.shard import digest_of
from tests.numerics import training
from tests.unit.models import tiny
from tests.unit.store.builders import FIRST, RUN, make_spec, make_trajectory

BATCHING = BatchingSettings(groups=2, group_size=2, max_length=16, rows=2, max_programs=1)
STALENESS = StalenessSettings(max_staleness=4)
OBJECTIVE = ObjectiveSettings()
LADDER = tuple(build_ladder(BATCHING, 1))


@functools.cache
def programs(objective: ObjectiveSettings = OBJECTIVE) -> TrainPrograms:
    built = TrainPrograms(
        tiny.CONFIG,
        make_mesh(MeshSettings()),
        training.OPTIMIZER,
        build_objective(objective),
        annotations=annotations_of(objective),
        value_loss=build_value_loss(objective, ValueSettings()),
    )
    scored = objective.kl_coef or objective.advantage == "vtrace"
    built.warm_up(LADDER, scored_dtypes=("float32",) if scored else ())
    return built


def pack(groups, now, forks, packing=b"", *, advantage=None):
    return build_updates(
        groups,
        now=now,
        forks=forks,
        staleness=STALENESS,
        settings=BATCHING,
        ladder=LADDER,
        advantage=advantage or build_batch_advantages(OBJECTIVE),
        denominator=functools.partial(batch_denominator, OBJECTIVE),
    )


def open_at(path: Path | None = None, clock: Clock | None = None) -> RuleStore:
    """Open the run's store: on disk, or in memory."""
    settings = StoreSettings(engine="lmdb", path=path, map_bytes=32 << 30, durability="os")
    return open_store(settings if path else StoreSettings(engine="memory"), RUN, clock or SystemClock())


def answer(slot, version: PolicyVersion) -> Trajectory:
    """Return what the scripted actor makes of a slot: decided by the group's name and the member alone."""
    rng = np.random.default_rng([*slot.group_id.encode(), slot.member])
    trajectory = make_trajectory(slot, version=version, num_tokens=10)
    sequence = msgspec.structs.replace(
        trajectory.sequences[0],
        tokens=rng.integers(0, tiny.CONFIG.num_real_tokens, 10, dtype=np.int32),
        behavior_logprobs=rng.normal(-3.6, 0.3, 5).astype(np.float32),
    )
    return msgspec.structs.replace(trajectory, sequences=(sequence,), reward=float(rng.integers(0, 9)))


def act(store: RuleStore, version: PolicyVersion | None = None) -> int:
    """Answer everything that can be claimed; return how many slots there were."""
    version = version or store.stats().published
    slots = store.claim(64, ttl_s=60.0, actor="scripted", version=version)
    for slot in slots:
        assert store.put(answer(slot, version), slot) == "accepted"
    return len(slots)


def make_dispatcher(store: RuleStore, incarnation: int, last_version: int = 100, **options) -> Dispatcher:
    def make_group(serial, task, min_version):
        spec = make_spec(serial, min_version=min_version)
        return spec if task is None else msgspec.structs.replace(spec, task=task)

    return Dispatcher(store, incarnation, make_group, STALENESS, BATCHING.groups, 1, last_version, **options)


def make_feed(
    store: RuleStore,
    incarnation: int,
    repeat: Callable[[str], None] = lambda _: None,
    pack: Packer = pack,
    **options,
) -> Feed:
    return Feed(
        store, incarnation, store.stats().forks, pack, STALENESS, BATCHING.groups, 1, repeat, **options
    )


def digest(state: TrainState) -> str:
    return digest_of(to_hf_tensors(snapshot(state.params), tiny.CONFIG))


class Ledger:
    """Remembers what was trained."""

    def __init__(self) -> None:
        self.batches: list[JournaledBatch] = []
        self.versions: list[PolicyVersion] = []
        self.stats: list = []

    def add(self, batch, version, stats, step_s) -> None:
        self.batches.append(batch)
        self.versions.append(version)
        self.stats.append(stats)


def make_learner(
    version: PolicyVersion = FIRST,
    *,
    state: TrainState | None = None,
    account: Ledger | None = None,
    publish=lambda version, params: None,
    save=lambda state, version: None,
    built: TrainPrograms | None = None,
    annotators: Sequence[Annotator] = (),
    copy=snapshot,
    **settings,
) -> Learner:
    built = built or programs()
    return Learner(
        built,
        built.init_state(tiny.params()) if state is None else state,
        version,
        LearnerSettings(**({"steps": 100} | settings)),
        TimeStrip(SystemClock()),
        account or Ledger(),
        annotators,
        publish,
        save,
        copy,
    )


class ScriptedSource:
    """Dispatches, acts and takes, all in the caller's thread."""

    def __init__(
        self, store: RuleStore, incarnation: int, first: int, last: int, pack: Packer = pack, **options
    ) -> None:
        self._store = store
        self._dispatcher = make_dispatcher(store, incarnation, last)
        self._feed = make_feed(store, incarnation, self._dispatcher.repeat, pack, **options)
        self._version = first
        self._stopping = threading.Event()

    def next(self) -> JournaledBatch | None:
        self._dispatcher.top_up()
        act(self._store)
        batch = self._feed.next(self._version, self._stopping)
        self._version += 1
        return batch


def host(state: TrainState) -> TrainState:
    return jax.tree.map(np.array, jax.device_get(state))
