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
from forebay.learner.checkpoint_directory import DirectoryShelf
from forebay.learner.checkpoint_manifest import ArrayRecord, CheckpointCursor, CheckpointManifest
from forebay.learner.checkpoint_shelf import Folder, Shelf, find_best, verify
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
        place: What holds the checkpoints, or a directory that all processes see; swept of what a killed
            writer left.
        keep: Newest checkpoints kept; the best one is kept beside them.
        durability: Of a directory: `fsync` survives power loss; `os` survives kill -9 only.
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
        place: Path | Shelf,
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
        self._shelf = shelf_of(place, fsync=durability == "fsync")
        self._timeout_s = timeout_s
        self._peers = peers
        self._on_saved = on_saved
        self._tracer = tracer
        self._clock = clock
        self._writer = CheckpointWriter(self._shelf, keep=keep, peers=peers)
        self._executor = ThreadPoolExecutor(1, "checkpoint", initializer=on_start) if background else None
        self._pending: Future[None] | None = None
        if self._peers.process == 0:
            self._shelf.prepare()

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
            BucketError: The bucket could not be reached, for too long.
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
                f"saving to {self._shelf} does not end",
                limit=f"{self._timeout_s} s",
                remedy="Check the disk or the bucket, or raise learner.checkpoint_timeout_s.",
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
            BucketError: The bucket cannot be reached: what it holds is not known.
        """
        self.wait()
        skipped: list[str] = []
        steps = self._agree_on_steps()
        folders = self._shelf.folders()
        for step in steps:
            folder = folders.get(step)
            problem = self._verify_together(folder)
            if folder is None or problem:
                name = f"step_{step}" if folder is None else folder.name
                logger.warning("skipped checkpoint %s: %s", name, problem)
                skipped.append(f"{name}: {problem}")
                self._writer.invalid.add(step)
                continue
            manifest = folder.manifest()
            return Restored(read_state(folder, manifest, template), manifest.cursor, tuple(skipped))
        if skipped:
            raise CheckpointError(
                f"no checkpoint in {self._shelf} is whole",
                got="; ".join(skipped),
                remedy="Restore the directory from a copy, or start a new run.",
            )
        return None

    def oldest_verified_step(self) -> int | None:
        """Return the step of the oldest checkpoint that a resume could need: the store may forget up to it.

        Every checkpoint was verified before it got its name; those found damaged since do not count.
        """
        folders = self._shelf.folders()
        steps = (step for step in folders if step not in self._writer.invalid)
        return next((step for step in steps if _has_manifest(folders[step])), None)

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
        steps = msgspec.json.encode([*self._shelf.folders()][::-1])
        return msgspec.json.decode(self._peers.broadcast(TOPIC, steps), type=list[int])

    def _verify_together(self, folder: Folder | None) -> str:
        """Read a checkpoint back, each process its share of the files; return what is wrong with it."""
        peers, problem = self._peers, ""
        try:
            if folder is None:
                raise CheckpointError(f"process {peers.process} does not see it")
            verify(folder, part=peers.process, parts=peers.num_processes)
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


def shelf_of(place: Path | Shelf, *, fsync: bool = True) -> Shelf:
    """Return a directory as what holds checkpoints; anything else as it is."""
    return DirectoryShelf(place, fsync=fsync) if isinstance(place, Path) else place


def load_best(place: Path | Shelf, template: Template, *, part: bool = False) -> Restored:
    """Read the checkpoint with the highest metric; a learner may go on saving beside it.

    Args:
        place: What holds the checkpoints.
        template: As for `Checkpointer.restore_newest`.
        part: As for `read_state`.

    Raises:
        CheckpointError: None was evaluated, or the best is damaged or does not fit the template.
    """
    folder = find_best(shelf_of(place))
    if folder is None:
        raise CheckpointError(f"no checkpoint in {place} was evaluated", remedy="Set learner.eval_every.")
    manifest = verify(folder)
    return Restored(read_state(folder, manifest, template, part=part), manifest.cursor, ())


def load_step(place: Path | Shelf, step: int, template: Template, *, part: bool = False) -> Restored:
    """Read the checkpoint of one step; a learner may go on saving beside it.

    Args:
        place: What holds the checkpoints.
        step: Its step.
        template: As for `Checkpointer.restore_newest`.
        part: As for `read_state`.

    Raises:
        CheckpointError: There is none of this step, or it is damaged or does not fit the template.
    """
    shelf = shelf_of(place)
    folders = shelf.folders() | shelf.folders(best=True)
    if step not in folders:
        raise CheckpointError(
            f"no checkpoint of step {step} in {place}",
            limit=sorted(folders),
            remedy="Name one of these; learner.keep_checkpoints says how many are kept.",
        )
    manifest = verify(folders[step])
    return Restored(read_state(folders[step], manifest, template, part=part), manifest.cursor, ())


def read_state(
    folder: Folder, manifest: CheckpointManifest, template: Template, *, part: bool = False
) -> Any:
    """Restore the arrays of a verified checkpoint onto the devices of a template.

    Args:
        folder: The checkpoint.
        manifest: Its manifest.
        template: As for `Checkpointer.restore_newest`.
        part: Whether the checkpoint may hold arrays that the template lacks; they are not read.

    Raises:
        CheckpointError: It does not fit the template, or a slice is damaged.
    """
    if callable(template):
        template = template(manifest.cursor)
    _refuse_other_shape(folder, manifest, template, part)
    reader = SliceReader(folder, manifest)
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: reader.read(jax.tree_util.keystr(path), leaf), template
    )


def _refuse_other_shape(folder: Folder, manifest: CheckpointManifest, template: Any, part: bool) -> None:
    saved = {record.path: record for record in manifest.arrays}
    wanted = {record.path: record for record in records_of(template)}
    for path in sorted(wanted if part else saved.keys() | wanted.keys()):
        if saved.get(path) != wanted.get(path):
            raise CheckpointError(
                f"{folder} was saved by another model or optimizer: {path} differs",
                got=_describe(saved.get(path)),
                limit=_describe(wanted.get(path)),
                remedy="Resume with the run's own configuration.",
            )


def _describe(record: ArrayRecord | None) -> str:
    return "nothing" if record is None else f"{record.dtype}{list(record.shape)}"


def _has_manifest(folder: Folder) -> bool:
    try:
        folder.manifest()
    except CheckpointError:
        return False
    return True
