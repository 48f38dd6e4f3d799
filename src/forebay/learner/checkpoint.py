"""Checkpoints: parameters, optimizer, randomness and the journal's cursor, saved and restored as one.

Each process of a learner writes the slices that its devices hold, as one safetensors file, hashed on the way
and read back; process 0 then writes the manifest, which says whether what is on the disk is what was in
memory, and gives the checkpoint its name. The loop waits for the copy to host memory only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import msgspec

from forebay.clock import Clock, SystemClock
from forebay.errors import CheckpointError
from forebay.learner.checkpoint_manifest import (
    ArrayRecord,
    CheckpointCursor,
    CheckpointManifest,
    best_directory,
    find_best,
    list_steps,
    read_manifest,
    step_directory,
    sweep,
    verify,
)
from forebay.learner.checkpoint_slices import SliceReader, records_of, take_slices
from forebay.learner.checkpoint_stats import SaveReport
from forebay.learner.checkpoint_writing import TOPIC, CheckpointWriter, Snapshot
from forebay.learner.peers import ALONE, Peers
from forebay.telemetry.trace import OFF, Tracer

logger = logging.getLogger(__name__)

_CLOCK = SystemClock()
# A pytree of shapes, dtypes and shardings, or what gives one for a place in the run.
Template = Any | Callable[[CheckpointCursor], Any]


class Restored(NamedTuple):
    """A restored checkpoint: the state, where it belongs, and why newer ones were skipped."""

    state: Any
    cursor: CheckpointCursor
    skipped: tuple[str, ...]


class Checkpointer:
    """Saves and restores the state of one learner; each of its processes has one, and all call it alike.

    Consumes: the state. Waits for: the save before (span `waits for the last checkpoint`), the copy to host
    memory. Unblocked by: the disk. Produces: checkpoints.

    Args:
        path: The checkpoint directory, which all processes see; made if it is missing, swept of what a
            killed writer left.
        keep: Newest checkpoints kept; the best one is kept beside them.
        durability: `fsync` survives power loss; `os` survives kill -9 only.
        background: Hash and write in a thread.
        timeout_s: Longest wait for a save in the background.
        peers: The processes of the learner.
        on_start: Runs first in the thread.
        on_saved: Called after each save with its step, in the thread if there is one.
        tracer: Records what is waited for, and the writing.
        clock: Measures both.
    """

    def __init__(
        self,
        path: Path,
        *,
        keep: int = 2,
        durability: Literal["fsync", "os"] = "fsync",
        background: bool = False,
        timeout_s: float = 600.0,
        peers: Peers = ALONE,
        on_start: Callable[[], None] = lambda: None,
        on_saved: Callable[[int, SaveReport], None] = lambda step, report: None,
        tracer: Tracer = OFF,
        clock: Clock = _CLOCK,
    ) -> None:
        self.path = path
        self._timeout_s = timeout_s
        self._peers = peers
        self._on_saved = on_saved
        self._tracer = tracer
        self._clock = clock
        self._writer = CheckpointWriter(path, keep=keep, fsync=durability == "fsync", peers=peers)
        self._executor = ThreadPoolExecutor(1, "checkpoint", initializer=on_start) if background else None
        self._pending: Future[None] | None = None
        path.mkdir(parents=True, exist_ok=True)
        if self._peers.process == 0:
            sweep(path)

    def save(self, state: Any, cursor: CheckpointCursor, *, metric: float | None = None) -> None:
        """Save the state as the checkpoint of step `cursor.version.version`.

        In the background, the state is copied before the call returns, so that its buffers may be
        donated; at most one save is in flight, and an error of the last one surfaces here. Saving a step
        again with the same arrays only renews its cursor and metric.

        Args:
            state: Pytree of arrays; random keys as `jax.random.key_data`.
            cursor: Where the state belongs.
            metric: The evaluation's result, higher is better.

        Raises:
            CheckpointError: The disk is full or failed (the checkpoints that exist stay whole), or a
                leaf cannot be saved.
        """
        began_s = self._clock.monotonic_s()
        self.wait()
        copied_s = self._clock.monotonic_s()
        slices = take_slices(state, copy=self._executor is not None, first_process=self._peers.process == 0)
        snapshot = Snapshot(
            cursor,
            metric,
            records_of(state),
            slices,
            waited_s=copied_s - began_s,
            taken_s=self._clock.monotonic_s() - copied_s,
        )
        if self._executor is None:
            self._write(snapshot)
        else:
            self._pending = self._executor.submit(self._write, snapshot)

    def check(self) -> None:
        """Raise what a save in the background failed with, if it did; never wait.

        Raises:
            CheckpointError: As for `save`.
        """
        if self._pending is not None and self._pending.done():
            self.wait()

    def wait(self) -> None:
        """Wait for the save in flight, if any.

        Raises:
            CheckpointError: It failed, or did not end within `timeout_s`.
        """
        pending, self._pending = self._pending, None
        if pending is None:
            return
        try:
            with self._tracer.span("waits for the last checkpoint"):
                pending.result(self._timeout_s)
        except FutureTimeoutError as error:
            raise CheckpointError(
                f"saving to {self.path} does not end",
                limit=f"{self._timeout_s} s",
                remedy="Check the disk, or save in the foreground.",
            ) from error

    def restore_newest(self, template: Template) -> Restored | None:
        """Restore the newest checkpoint that is whole; warn of each newer one that is not.

        Args:
            template: Pytree of the arrays' shapes, dtypes and shardings, such as a fresh state; or what gives
                one for a place in the run. Mesh and number of processes may differ from those that saved.

        Returns:
            The state on the template's devices, or None if nothing was ever saved.

        Raises:
            CheckpointError: No checkpoint is whole, or the newest whole one does not fit the template.
        """
        self.wait()
        skipped: list[str] = []
        for step in self._agree_on_steps():
            directory = step_directory(self.path, step)
            problem = self._verify_together(directory)
            if problem:
                logger.warning("skipped checkpoint %s: %s", directory.name, problem)
                skipped.append(f"{directory.name}: {problem}")
                self._writer.invalid.add(step)
                continue
            manifest = read_manifest(directory)
            return Restored(read_state(directory, manifest, template), manifest.cursor, tuple(skipped))
        if skipped:
            raise CheckpointError(
                f"no checkpoint in {self.path} is whole",
                got="; ".join(skipped),
                remedy="Restore the directory from a copy, or start a new run.",
            )
        return None

    def oldest_verified_step(self) -> int | None:
        """Return the step of the oldest checkpoint that a resume could need: the store may forget up to it.

        Every checkpoint was verified before it got its name; those found damaged since do not count.
        """
        steps = [step for step in list_steps(self.path) if step not in self._writer.invalid]
        return next((step for step in steps if _has_manifest(step_directory(self.path, step))), None)

    def close(self) -> None:
        """Wait for the save in flight and end the thread.

        Raises:
            CheckpointError: The save failed.
        """
        try:
            self.wait()
        finally:
            if self._executor is not None:
                self._executor.shutdown(wait=False)

    def _agree_on_steps(self) -> list[int]:
        """Return process 0's steps, the newest first: a file system may show each process another list."""
        steps = msgspec.json.encode(list_steps(self.path)[::-1])
        return msgspec.json.decode(self._peers.broadcast(TOPIC, steps), type=list[int])

    def _verify_together(self, directory: Path) -> str:
        """Read a checkpoint back, each process its share of the files; return what is wrong with it."""
        peers, problem = self._peers, ""
        try:
            verify(directory, part=peers.process, parts=peers.num_processes)
        except CheckpointError as error:
            problem = str(error)
        found = [answer.decode() for answer in peers.gather(TOPIC, problem.encode())]
        return peers.broadcast(TOPIC, next(filter(None, found), "").encode()).decode()

    def _write(self, snapshot: Snapshot) -> None:
        began_s = self._clock.monotonic_s()
        step = snapshot.cursor.version.version
        with self._tracer.span("write checkpoint", arguments={"step": step}):
            written_bytes = self._writer.write(snapshot)
        self._on_saved(
            step,
            SaveReport(
                waited_s=snapshot.waited_s,
                snapshot_s=snapshot.taken_s,
                write_s=self._clock.monotonic_s() - began_s,
                snapshot_bytes=snapshot.num_bytes,
                written_bytes=written_bytes,
            ),
        )


def load_best(path: Path, template: Template, *, part: bool = False) -> Restored:
    """Read the checkpoint with the highest metric; a learner may go on saving beside it.

    Args:
        path: The checkpoint directory.
        template: As for `Checkpointer.restore_newest`.
        part: As for `read_state`.

    Raises:
        CheckpointError: None was evaluated, or the best is damaged or does not fit the template.
    """
    directory = find_best(path)
    if directory is None:
        raise CheckpointError(f"no checkpoint in {path} was evaluated", remedy="Set learner.eval_every.")
    manifest = verify(directory)
    return Restored(read_state(directory, manifest, template, part=part), manifest.cursor, ())


def load_step(path: Path, step: int, template: Template, *, part: bool = False) -> Restored:
    """Read the checkpoint of one step; a learner may go on saving beside it.

    Args:
        path: The checkpoint directory.
        step: Its step.
        template: As for `Checkpointer.restore_newest`.
        part: As for `read_state`.

    Raises:
        CheckpointError: There is none of this step, or it is damaged or does not fit the template.
    """
    places = {known: step_directory(path, known) for known in list_steps(path)}
    places |= {known: best_directory(path, known) for known in list_steps(path, best=True)}
    if step not in places:
        raise CheckpointError(
            f"no checkpoint of step {step} in {path}",
            limit=sorted(places),
            remedy="Name one of these; learner.keep_checkpoints says how many are kept.",
        )
    manifest = verify(places[step])
    return Restored(read_state(places[step], manifest, template, part=part), manifest.cursor, ())


def read_state(
    directory: Path, manifest: CheckpointManifest, template: Template, *, part: bool = False
) -> Any:
    """Restore the arrays of a verified checkpoint onto the devices of a template.

    Args:
        directory: The checkpoint.
        manifest: Its manifest.
        template: As for `Checkpointer.restore_newest`.
        part: Whether the checkpoint may hold arrays that the template lacks; they are not read.

    Raises:
        CheckpointError: It does not fit the template, or a slice is damaged.
    """
    if callable(template):
        template = template(manifest.cursor)
    _refuse_other_shape(directory, manifest, template, part)
    reader = SliceReader(directory, manifest)
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: reader.read(jax.tree_util.keystr(path), leaf), template
    )


def _refuse_other_shape(directory: Path, manifest: CheckpointManifest, template: Any, part: bool) -> None:
    saved = {record.path: record for record in manifest.arrays}
    wanted = {record.path: record for record in records_of(template)}
    for path in sorted(wanted if part else saved.keys() | wanted.keys()):
        if saved.get(path) != wanted.get(path):
            raise CheckpointError(
                f"{directory} was saved by another model or optimizer: {path} differs",
                got=_describe(saved.get(path)),
                limit=_describe(wanted.get(path)),
                remedy="Resume with the run's own configuration.",
            )


def _describe(record: ArrayRecord | None) -> str:
    return "nothing" if record is None else f"{record.dtype}{list(record.shape)}"


def _has_manifest(directory: Path) -> bool:
    try:
        read_manifest(directory)
    except CheckpointError:
        return False
    return True
