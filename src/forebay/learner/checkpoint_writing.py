"""Writes one checkpoint: every process its slices, process 0 the manifest and the name."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import xxhash

from forebay.errors import CheckpointError
from forebay.learner.checkpoint_manifest import (
    FORMAT,
    PARTIAL_PREFIX,
    ArrayRecord,
    CheckpointCursor,
    CheckpointFile,
    CheckpointManifest,
    SliceRecord,
    hash_file,
    install,
    refuse_missing_files,
    retain,
    state_file,
    step_directory,
    verify,
    write_manifest,
)
from forebay.learner.checkpoint_slices import StateSlice, content_digest, slice_records, tensors_of
from forebay.learner.peers import Peers
from forebay.telemetry.faults import fault_point
from forebay.weights.shard import encode

TOPIC = "checkpoint"
# Headers, the manifest and the file system's own blocks.
_OVERHEAD_BYTES = 64 * 2**10
Decision = Literal["write", "renew", "full"]


class Snapshot(NamedTuple):
    """What one process saves, in host memory, and what the loop waited for it.

    Attributes:
        cursor: Where the state belongs.
        metric: The evaluation's result; None if there is none.
        arrays: Every array of the state.
        slices: The parts that this process writes.
        waited_s: How long the loop waited for the save before.
        taken_s: How long it waited for the copy to host memory.
    """

    cursor: CheckpointCursor
    metric: float | None
    arrays: tuple[ArrayRecord, ...]
    slices: tuple[StateSlice, ...]
    waited_s: float
    taken_s: float

    @property
    def num_bytes(self) -> int:
        """Host memory that the slices take."""
        return sum(one.array.nbytes for one in self.slices)


class CheckpointWriter:
    """Writes the checkpoints of one learner, together with its other processes.

    Args:
        path: The checkpoint directory, which all processes see.
        keep: Newest checkpoints kept; the best one is kept beside them.
        fsync: Whether a checkpoint survives power loss.
        peers: The processes of the learner.

    Attributes:
        invalid: Steps known to be damaged.
    """

    def __init__(self, path: Path, *, keep: int, fsync: bool, peers: Peers) -> None:
        self.invalid: set[int] = set()
        self._path = path
        self._keep = keep
        self._fsync = fsync
        self._peers = peers

    def write(self, snapshot: Snapshot) -> int:
        """Write this process's slices, and as process 0 the rest.

        Returns:
            Bytes written by all processes, at process 0; 0 if the same arrays were there already.

        Raises:
            CheckpointError: The disk is full or failed; the checkpoints that exist stay whole.
        """
        peers, step = self._peers, snapshot.cursor.version.version
        target = step_directory(self._path, step)
        # Not the one of an earlier incarnation: a process of it may still be writing there.
        partial = self._path / f"{PARTIAL_PREFIX}{snapshot.cursor.version.incarnation}-{target.name}"
        file = state_file(peers.process, peers.num_processes)
        num_bytes = _OVERHEAD_BYTES + snapshot.num_bytes
        try:
            parts = self._gather(slice_records(snapshot.slices, file), list[SliceRecord])
            sizes = self._gather(num_bytes, int)
            manifest = _manifest_of(snapshot, [part for each in parts for part in each])
            num_bytes = sum(sizes) or num_bytes
            decision = self._decide(lambda: self._prepare(target, partial, manifest, num_bytes))
            if decision == "full":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if decision == "renew":
                return 0
            written = _write_file(partial, file, snapshot, fsync=self._fsync)
            files = self._gather(written, CheckpointFile)
            if self._peers.process == 0:
                self._install(partial, target, msgspec.structs.replace(manifest, files=tuple(files)))
            return sum(one.num_bytes for one in files)
        except OSError as error:
            shutil.rmtree(partial, ignore_errors=True)
            free_bytes = shutil.disk_usage(self._path).free
            raise CheckpointError(
                f"cannot save {target}: {error.strerror}",
                got=f"{free_bytes} bytes free",
                limit=f"{num_bytes} bytes needed",
                remedy="Free disk space or lower learner.keep_checkpoints; the older checkpoints are whole.",
            ) from error

    def _gather(self, value: Any, kind: Any) -> list[Any]:
        answers = self._peers.gather(TOPIC, msgspec.json.encode(value))
        return [msgspec.json.decode(answer, type=kind) for answer in answers]

    def _decide(self, decide: Callable[[], Decision]) -> Decision:
        """Return what process 0 decides; an error there is raised there."""
        decision = decide() if self._peers.process == 0 else "write"
        return msgspec.json.decode(self._peers.broadcast(TOPIC, msgspec.json.encode(decision)), type=Decision)

    def _prepare(self, target: Path, partial: Path, manifest: CheckpointManifest, num_bytes: int) -> Decision:
        if self._renew(target, manifest):
            self._retain(manifest)
            return "renew"
        if is_full(self._path, num_bytes):
            return "full"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        return "write"

    def _install(self, partial: Path, target: Path, manifest: CheckpointManifest) -> None:
        """Write the manifest, see that every file is there, and give the checkpoint its name."""
        step = manifest.cursor.version.version
        write_manifest(partial, manifest, fsync=self._fsync)
        # Each process has read its own file back: here only whether all of them are in one place.
        refuse_missing_files(partial, manifest)
        fault_point("checkpoint_written", step)
        install(partial, target, fsync=self._fsync)
        fault_point("checkpoint_installed", step)
        self._retain(manifest)

    def _retain(self, manifest: CheckpointManifest) -> None:
        self.invalid.discard(manifest.cursor.version.version)
        retain(self._path, keep=self._keep, invalid=self.invalid)

    def _renew(self, target: Path, manifest: CheckpointManifest) -> bool:
        """Give a checkpoint of the same arrays a new cursor and metric; return whether there is one."""
        if not target.exists():
            return False
        try:
            existing = verify(target)
        except CheckpointError:
            return False
        if existing.digest != manifest.digest:
            return False
        metric = manifest.metric if manifest.metric is not None else existing.metric
        renewed = msgspec.structs.replace(existing, cursor=manifest.cursor, metric=metric)
        write_manifest(target, renewed, fsync=self._fsync)
        return True


def is_full(path: Path, num_bytes: int) -> bool:
    """Return whether a disk has no room for so many bytes."""
    return shutil.disk_usage(path).free < num_bytes


def _manifest_of(snapshot: Snapshot, slices: list[SliceRecord]) -> CheckpointManifest:
    return CheckpointManifest(
        format=FORMAT,
        cursor=snapshot.cursor,
        metric=snapshot.metric,
        arrays=snapshot.arrays,
        digest=content_digest(snapshot.arrays, slices),
        files=(),
        slices=tuple(slices),
    )


def _write_file(directory: Path, name: str, snapshot: Snapshot, *, fsync: bool) -> CheckpointFile:
    """Write the slices of this process and read them back."""
    digest = xxhash.xxh3_128()
    num_bytes = 0
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / name).open("xb") as file:
        for piece in encode(tensors_of(snapshot.slices)):
            digest.update(piece)
            num_bytes += file.write(piece)
            fault_point("checkpoint_writing", snapshot.cursor.version.version)
        if fsync:
            file.flush()
            os.fsync(file.fileno())
    written = CheckpointFile(path=name, num_bytes=num_bytes, xxh3=digest.hexdigest())
    found = hash_file(directory, name)
    if found != written:
        raise CheckpointError(
            f"{directory / name} does not read back as it was written",
            got=f"{found.num_bytes} bytes, {found.xxh3}",
            limit=f"{written.num_bytes} bytes, {written.xxh3}",
            remedy="Check the disk; the older checkpoints are whole.",
        )
    return written
