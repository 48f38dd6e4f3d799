"""A learner of several processes: how each joins, how process 0 leads, and the body of every other one."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack

import jax

from forebay.cli.learner_parts import LearnerParts, make_parts, warm_up
from forebay.cli.learner_weights import LearnerWeights
from forebay.cli.reference_model import make_reference
from forebay.cli.runs import Run
from forebay.clock import SystemClock
from forebay.config import RunConfig
from forebay.config.dump import json_tree
from forebay.errors import ConfigError
from forebay.learner.bare import BareSpeed
from forebay.learner.checkpoint import Checkpointer
from forebay.learner.checkpoint_manifest import CheckpointCursor
from forebay.learner.feed import JournaledBatch
from forebay.learner.gang.following import Follower, NoAccount
from forebay.learner.gang.gang import Gang
from forebay.learner.gang.gathering import Gathering
from forebay.learner.gang.joining import Place, join
from forebay.learner.gang.lead import COMPILED, INCARNATION, Lead, Leader, Solo
from forebay.learner.gang.link import settings_digest
from forebay.learner.loop import Learner, Source
from forebay.learner.reference import SavedState
from forebay.learner.settings import check_processes
from forebay.learner.train_step import TrainState
from forebay.telemetry.spans import TimeStrip
from forebay.trajectory import PolicyVersion

Produce = Callable[[int, threading.Event], JournaledBatch | None]


def join_gang(run: Run, place: Place) -> AbstractContextManager[Gang]:
    """Meet the other processes of a run's learner.

    Raises:
        ConfigError: The mesh cannot be divided among so many processes.
        PeerFailedError: They did not all come.
    """
    learner, devices = run.config.learner, run.config.mesh.num_devices
    check_processes(devices, place.num_processes)
    if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        # Of a CPU; accelerators are counted by the machine.
        jax.config.update("jax_num_cpu_devices", devices // place.num_processes)  # type: ignore[no-untyped-call]
    return join(
        place,
        run.run_id,
        settings_digest(json_tree(run.config)),
        SystemClock(),
        start_s=learner.start_s,
        silent_s=learner.peer_silent_s,
    )


def make_lead(
    gang: Gang | None, parts: LearnerParts, config: RunConfig, settle_thread: Callable[[], None]
) -> Lead:
    """Return what process 0 leads the others with.

    Raises:
        ConfigError: The processes have other devices than the mesh.
    """
    if gang is None:
        return Solo()
    check_devices(config.mesh.num_devices, gang.num_processes)
    params = parts.programs.abstract_state.params
    return Leader(gang, params, config.learner.no_progress_s, settle_thread)


def check_devices(wanted: int, num_processes: int) -> None:
    """Refuse processes that have more devices than the mesh: one of them might have no part in it.

    Raises:
        ConfigError: With what each has.
    """
    if jax.device_count() != wanted:
        raise ConfigError(
            "the mesh must take every device of the learner's processes",
            got=f"{jax.device_count()} devices in {num_processes} processes",
            limit=f"mesh of {wanted}",
            remedy="Change the sizes under [mesh]; on a CPU, leave XLA_FLAGS without a number of devices.",
        )


class LedSource:
    """Batches for process 0, each announced to the others as it is handed out.

    Args:
        source: Where they come from; it has shared them already.
        lead: The others.
    """

    def __init__(self, source: Source, lead: Lead) -> None:
        self._source = source
        self._lead = lead

    def next(self) -> JournaledBatch | None:
        """Return the next batch; None when the run is to stop."""
        self._lead.waits()
        batch = self._source.next()
        if batch is not None:
            self._lead.train(batch)
        return batch


def shared_with(lead: Lead, produce: Produce) -> Produce:
    """Return what makes batches and sends them ahead to the other processes, in the background."""

    def shared(version: int, stopping: threading.Event) -> JournaledBatch | None:
        batch = produce(version, stopping)
        if batch is not None and not stopping.is_set():
            lead.share(batch)
        return batch

    return shared


def follow_learner(run: Run, gang: Gang, settle_thread: Callable[[], None], stack: ExitStack) -> None:
    """Do this process's part of a run's training until process 0 says that it ends.

    Args:
        run: The run.
        gang: The processes.
        settle_thread: Moves a background thread off the learner's cores; called inside each.
        stack: Closes what was opened.

    Raises:
        ForebayError: What ended it.
    """
    config = run.config
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: gang.ask_to_stop())
    check_devices(config.mesh.num_devices, gang.num_processes)
    parts, bare, weights = make_parts(run), BareSpeed(), LearnerWeights(run)
    initial = weights.trained
    parts.programs.frozen.hold(weights.frozen)
    warm_up(run, parts, bare, initial, lambda: gang.barrier(COMPILED))
    checkpointer = Checkpointer(
        run.checkpoints,
        background=True,
        timeout_s=config.learner.checkpoint_timeout_s,
        peers=gang,
        on_start=settle_thread,
    )
    stack.callback(checkpointer.close)
    restored = checkpointer.restore_newest(parts.template)
    saved: SavedState | None = restored.state if restored else None
    step = restored.cursor.version.version if restored else 0
    version = PolicyVersion(int(gang.broadcast(INCARNATION, b"")), step)
    reference = make_reference(run, parts, initial, version, saved)

    def save(state: TrainState, version: PolicyVersion) -> None:
        whole = SavedState(*state) if reference is None else reference.saved_with(state)
        checkpointer.save(whole, CheckpointCursor(run_id=run.run_id, version=version))

    gathering = Gathering(gang, parts.programs.abstract_state.params, settle_thread)
    stack.callback(gathering.close)
    learner = Learner(
        parts.programs,
        saved.train_state if saved else parts.programs.init_state(initial),
        version,
        config.learner,
        TimeStrip(SystemClock()),
        NoAccount(),
        parts.annotators(reference),
        publish=lambda version, copy: None,
        save=save,
        copy=gathering.start,
    )

    def check() -> None:
        checkpointer.check()
        gathering.check()

    Follower(gang, learner, bare, config.learner.no_progress_s, check).follow()
