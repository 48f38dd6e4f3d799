"""A run on a virtual clock: the real store, dispatcher, feed, rules and packer; episodes only take time."""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import xxhash

from benchmarks.bias_study.records import Episode, Told
from benchmarks.siblings_study.world import EventClock
from forebay.batching.ladder import build_ladder
from forebay.batching.settings import BatchingSettings
from forebay.batching.updates import build_updates
from forebay.envs.latency import DelayModel, LatencySettings
from forebay.learner.dispatch import Dispatcher
from forebay.learner.fairness import FairShares
from forebay.learner.families import Posed
from forebay.learner.feed import Feed
from forebay.objectives.denominators import batch_denominator
from forebay.objectives.settings import ObjectiveSettings, build_batch_advantages
from forebay.staleness import OnStale, Shares, StalenessSettings
from forebay.store import GroupSpec, Slot, StoreSettings, TakenGroup, open_store
from forebay.trajectory import ActionSpan, PolicyVersion, Sampling, StepRecord, Task, Trajectory, VersionSpan
from forebay.trajectory import Sequence as Branch

_RUN: Final = "bias"
_NEVER_S: Final = 1e9
_OBJECTIVE: Final = ObjectiveSettings()


class Kind(NamedTuple):
    """One kind of task.

    Attributes:
        name: What it is called.
        turns: Model calls of its episodes.
        answer_s: Mean time that the environment takes to answer one.
        difficulty: Share of its episodes without a reward of 1.
    """

    name: str
    turns: int
    answer_s: float
    difficulty: float


class Load(NamedTuple):
    """What is run.

    Attributes:
        kinds: Kinds of task, posed in turn.
        shared: Whether each kind is an environment of its own, with a share of every batch.
        step_s: Time of an optimizer step.
        groups: Groups of a batch.
        group_size: Episodes of a group.
        max_staleness: The limit, in versions.
        turn_tokens: Tokens sampled by a turn, with the weights that are published then.
        delays: How the times of answers vary around their means.
        tick_s: How often the dispatcher looks, besides after every step.
    """

    kinds: tuple[Kind, ...]
    shared: bool = False
    step_s: float = 4.0
    groups: int = 8
    group_size: int = 4
    max_staleness: int = 4
    turn_tokens: int = 8
    delays: LatencySettings = LatencySettings(
        mean_s=1.0, sigma=0.5, straggler_probability=0.02, straggler_factor=8.0
    )
    tick_s: float = 1.0


class Rule(NamedTuple):
    """How too old data is avoided.

    Attributes:
        name: What it is called.
        on_stale: What happens to what would become too old.
        admits: Whether no more is dispatched than can still be trained; else four times as much.
        poses_again: Whether the task of a group that was discarded is posed again.
    """

    name: str
    on_stale: OnStale
    admits: bool = True
    poses_again: bool = True

    def settings(self, max_staleness: int) -> StalenessSettings:
        """Return the rule as settings; their own check refuses more credit than can be trained."""
        settings = StalenessSettings(max_staleness=max_staleness, on_stale=self.on_stale)
        return settings if self.admits else settings.model_copy(update={"credit": 4 * (max_staleness + 1)})


class World:
    """A learner, its store, and actors with room for everything that is dispatched.

    Args:
        load: What is run.
        rule: How too old data is avoided.
        batches: Batches of the run.
        seed: Seed of delays and rewards.

    Attributes:
        told: What happened to each episode.
    """

    def __init__(self, load: Load, rule: Rule, batches: int, seed: int = 0) -> None:
        self.load, self.num_batches, self._seed = load, batches, seed
        self.kinds = {kind.name: kind for kind in load.kinds}
        self.settings = rule.settings(load.max_staleness)
        self.clock = EventClock()
        self.told = Told()
        self._store = open_store(StoreSettings(engine="memory"), _RUN, self.clock)
        self._store.rewind(0)
        fairness = None
        if load.shared:
            shares = Shares(tuple(self.kinds), (1.0,) * len(self.kinds))
            fairness = FairShares(
                shares, load.groups, patience_s=_NEVER_S, longest_patience_s=_NEVER_S, clock=self.clock
            )
        self._dispatcher = Dispatcher(
            self._store, 0, self._make_group, self.settings, load.groups, 1, batches, fairness
        )
        repeat = self._dispatcher.repeat if rule.poses_again else _forget
        self._feed = Feed(
            self._store, 0, (), self._pack, self.settings, load.groups, 1, repeat, fairness, clock=self.clock
        )
        self._batching = BatchingSettings(
            groups=load.groups, group_size=load.group_size, max_length=256, rows=8, max_programs=2
        )
        self._ladder = tuple(build_ladder(self._batching))
        self.clock.at(0.0, self._tick)

    @property
    def counters(self) -> dict[str, int]:
        """What the store has counted."""
        return self._store.stats().counters

    def run(self) -> None:
        """Train all batches."""
        began_s = self.clock.monotonic_s()
        for version in range(self.num_batches):
            batch = self._feed.next(version, threading.Event())
            assert batch is not None
            self.told.train(batch, self.settings, self._batching)
            self.clock.sleep(self.load.step_s)
            self._store.publish(PolicyVersion(0, version + 1), incarnation=0)
            self._store.commit(version + 1, incarnation=0)
            self._dispatch()
        took_s = self.clock.monotonic_s() - began_s
        self.told.busy = self.num_batches * self.load.step_s / took_s

    def _tick(self) -> None:
        self._dispatch()
        self.clock.at(self.load.tick_s, self._tick)

    def _dispatch(self) -> None:
        self._dispatcher.top_up()
        published = self._store.stats().published
        for slot in self._store.claim(1_000_000, ttl_s=_NEVER_S, actor="a", version=published):
            self._begin(slot)

    def _begin(self, slot: Slot) -> None:
        kind = self.kinds[str(slot.task.payload["kind"])]
        episode = f"{self._seed}:{slot.task.task_id}:{slot.group_id}:{slot.member}"
        delays = DelayModel(self.load.delays, xxhash.xxh3_64_intdigest(episode.encode()))
        draw = xxhash.xxh3_64_intdigest(f"{episode}:reward".encode()) / 2**64
        self.told.started.append(Episode(kind.name, kind.turns * self.load.turn_tokens, kind.difficulty))
        self._take_turn(slot, kind, delays, [], float(draw >= kind.difficulty))

    def _take_turn(
        self, slot: Slot, kind: Kind, delays: DelayModel, versions: list[PolicyVersion], reward: float
    ) -> None:
        """Sample a turn with the weights that are published now, and wait for the environment."""
        versions = [*versions, self._store.stats().published]
        answer_s = kind.answer_s * delays.delay_s(len(versions))
        if len(versions) < kind.turns:
            self.clock.at(answer_s, lambda: self._take_turn(slot, kind, delays, versions, reward))
        else:
            self.clock.at(answer_s, lambda: self._end(slot, kind, versions, reward))

    def _end(self, slot: Slot, kind: Kind, versions: Sequence[PolicyVersion], reward: float) -> None:
        trajectory = _trajectory(slot, versions, self.load.turn_tokens, reward)
        if self._store.put(trajectory, slot) == "accepted":
            self.told.accepted.append(Episode(kind.name, trajectory.num_action_tokens, kind.difficulty))

    def _make_group(self, serial: int, posed: Posed, min_version: PolicyVersion) -> GroupSpec:
        kinds = self.load.kinds
        kind = kinds[serial % len(kinds)] if posed is None else self.kinds.get(str(posed))
        task = posed if isinstance(posed, Task) else self._task(serial, kind)
        return GroupSpec(
            group_id=f"g{serial:08d}",
            serial=serial,
            task=task,
            group_size=self.load.group_size,
            min_group_size=1,
            min_version=min_version,
            deadline_s=_NEVER_S,
            member_bytes=4096,
        )

    def _task(self, serial: int, kind: Kind | None) -> Task:
        assert kind is not None
        environment = kind.name if self.load.shared else "all"
        payload = {"kind": kind.name, "difficulty": kind.difficulty}
        return Task(task_id=f"t{serial}", environment=environment, payload=payload)

    def _pack(self, groups: tuple[TakenGroup, ...], now: PolicyVersion, forks: Any, packing: bytes) -> Any:
        return build_updates(
            groups,
            now=now,
            forks=forks,
            staleness=self.settings,
            settings=self._batching,
            ladder=self._ladder,
            advantage=build_batch_advantages(_OBJECTIVE),
            denominator=functools.partial(batch_denominator, _OBJECTIVE),
        )


def _forget(group_id: str) -> None:
    """Never pose the task of a discarded group again."""


def _trajectory(slot: Slot, versions: Sequence[PolicyVersion], turn_tokens: int, reward: float) -> Trajectory:
    """Return an episode whose turns were sampled by these versions, each after one token of a prompt."""
    turns, stride = len(versions), turn_tokens + 1
    branch = Branch(
        tokens=np.ones(turns * stride, np.int32),
        action_spans=tuple(ActionSpan(t * stride + 1, (t + 1) * stride, t) for t in range(turns)),
        behavior_logprobs=np.full(turns * turn_tokens, -0.5, np.float32),
        version_spans=tuple(VersionSpan(turn_tokens, version, version) for version in versions),
        sampling=Sampling(),
    )
    return Trajectory(
        trajectory_id=f"{slot.group_id}.{slot.member}.{slot.attempt}",
        run_id=_RUN,
        incarnation=slot.incarnation,
        group_id=slot.group_id,
        group_size=slot.group_size,
        member=slot.member,
        attempt=slot.attempt,
        task_id=slot.task.task_id,
        environment=slot.task.environment,
        sequences=(branch,),
        steps=tuple(StepRecord(None, "stop", 0.0, 0.0, 1.0) for _ in range(turns)),
        reward=reward,
        terminated=True,
        truncated=False,
        finish="terminated",
        started_s=0.0,
        finished_s=1.0,
    )
