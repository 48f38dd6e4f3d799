"""Writes one checkpoint: every process its slices, process 0 the manifest and the name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import msgspec

from forebay.errors import CheckpointError
from forebay.learner.checkpoint_manifest import (
    FORMAT,
    ArrayRecord,
    Buffer,
    CheckpointCursor,
    CheckpointFile,
    CheckpointManifest,
    SliceRecord,
    state_file,
)
from forebay.learner.checkpoint_shelf import Draft, Shelf, retain, verify
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


class SnapshotBytes:
    """The bytes of a process's file, as often as they are asked for.

    Args:
        snapshot: What is saved.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def __iter__(self) -> Iterator[Buffer]:
        """Yield the bytes, piece by piece; no array is copied."""
        for piece in encode(tensors_of(self._snapshot.slices)):
            yield piece
            fault_point("checkpoint_writing", self._snapshot.cursor.version.version)


class CheckpointWriter:
    """Writes the checkpoints of one learner, together with its other processes.

    Args:
        shelf: What holds them; all processes reach it.
        keep: Newest checkpoints kept; the best one is kept beside them.
        peers: The processes of the learner.

    Attributes:
        invalid: Steps known to be damaged.
    """

    def __init__(self, shelf: Shelf, *, keep: int, peers: Peers) -> None:
        self.invalid: set[int] = set()
        self._shelf = shelf
        self._keep = keep
        self._peers = peers

    def write(self, snapshot: Snapshot) -> int:
        """Write this process's slices, and as process 0 the rest.

        Returns:
            Bytes written by all processes, at process 0; 0 if the same arrays were there already.

        Raises:
            CheckpointError: The disk is full or failed; the checkpoints that exist stay whole.
            BucketError: The bucket cannot be reached, for too long.
        """
        peers, version = self._peers, snapshot.cursor.version
        file = state_file(peers.process, peers.num_processes)
        parts = self._gather(slice_records(snapshot.slices, file), list[SliceRecord])
        num_bytes = _OVERHEAD_BYTES + snapshot.num_bytes
        sizes = self._gather(num_bytes, int)
        manifest = _manifest_of(snapshot, [part for each in parts for part in each])
        draft = Draft(
            step=version.version,
            incarnation=version.incarnation,
            digest=manifest.digest,
            num_bytes=sum(sizes),
        )
        draft, decision = self._agree(lambda: (draft, self._prepare(draft, manifest)))
        if decision == "full":
            raise self._shelf.full(draft)
        if decision == "renew":
            return 0
        written = self._shelf.write(draft, file, SnapshotBytes(snapshot), num_bytes)
        files = self._gather(written, CheckpointFile)
        if peers.process == 0:
            self._shelf.install(draft, msgspec.structs.replace(manifest, files=tuple(files)))
            fault_point("checkpoint_installed", draft.step)
            self._retain(draft.step)
        return sum(one.num_bytes for one in files)

    def _gather(self, value: Any, kind: Any) -> list[Any]:
        answers = self._peers.gather(TOPIC, msgspec.json.encode(value))
        return [msgspec.json.decode(answer, type=kind) for answer in answers]

    def _agree(self, decide: Callable[[], tuple[Draft, Decision]]) -> tuple[Draft, Decision]:
        """Return what process 0 decides; an error there is raised there."""
        decided = msgspec.json.encode(decide()) if self._peers.process == 0 else b""
        return msgspec.json.decode(self._peers.broadcast(TOPIC, decided), type=tuple[Draft, Decision])

    def _prepare(self, draft: Draft, manifest: CheckpointManifest) -> Decision:
        if self._renew(draft.step, manifest):
            self._retain(draft.step)
            return "renew"
        return "write" if self._shelf.begin(draft) else "full"

    def _retain(self, step: int) -> None:
        self.invalid.discard(step)
        retain(self._shelf, keep=self._keep, invalid=self.invalid)

    def _renew(self, step: int, manifest: CheckpointManifest) -> bool:
        """Give a checkpoint of the same arrays a new cursor and metric; return whether there is one."""
        folder = self._shelf.folders().get(step)
        if folder is None:
            return False
        try:
            existing = verify(folder)
        except CheckpointError:
            return False
        if existing.digest != manifest.digest:
            return False
        metric = manifest.metric if manifest.metric is not None else existing.metric
        self._shelf.renew(folder, msgspec.structs.replace(existing, cursor=manifest.cursor, metric=metric))
        return True


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
