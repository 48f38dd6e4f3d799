"""Where the checkpoints of a run lie, whatever holds them: a directory or a bucket."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from forebay.errors import CheckpointError
from forebay.learner.checkpoint_manifest import Buffer, CheckpointFile, CheckpointManifest, hash_pieces


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that is being written.

    Args:
        step: Its step.
        incarnation: The learner's life that writes it; an earlier one may still be writing the same step.
        digest: Of its arrays.
        num_bytes: What it takes, of all processes, at most.
    """

    step: int
    incarnation: int
    digest: str
    num_bytes: int


class Folder(Protocol):
    """One checkpoint of a shelf; two are equal if they lie in the same place."""

    @property
    def name(self) -> str:
        """What messages call it."""
        ...

    def manifest(self) -> CheckpointManifest:
        """Return the manifest.

        Raises:
            CheckpointError: There is none, or it is damaged.
        """
        ...

    def files(self) -> set[str]:
        """Return the paths of all files but the manifest."""
        ...

    def num_bytes(self, file: str) -> int:
        """Return the size of a file."""
        ...

    def pieces(self, file: str) -> Iterable[Buffer]:
        """Yield the bytes of a whole file."""
        ...

    def read(self, file: str, start: int, stop: int) -> npt.NDArray[np.uint8]:
        """Return [N] uint8, some bytes of a file; read-only."""
        ...


class Shelf(Protocol):
    """What holds the checkpoints of one run.

    `prepare`, `renew`, `install`, `set_aside` and `delete` are called by process 0 of a learner only. What
    cannot be reached raises `BucketError`, what is refused `ConfigError`, a full disk `CheckpointError`.
    """

    def prepare(self) -> None:
        """Delete what a killed writer left."""
        ...

    def folders(self, *, best: bool = False) -> dict[int, Any]:
        """Return the checkpoints by step, ascending, valid or not; or those set aside as the best."""
        ...

    def begin(self, draft: Draft) -> bool:
        """Make room for a checkpoint before any process writes; return False if there is none."""
        ...

    def full(self, draft: Draft) -> CheckpointError:
        """Return what to raise where there is no room."""
        ...

    def write(self, draft: Draft, file: str, pieces: Iterable[Buffer], num_bytes: int) -> CheckpointFile:
        """Write a file of a draft, and read it back.

        Args:
            draft: The checkpoint.
            file: Its path inside it.
            pieces: Its bytes; may be asked for more than once, and yields the same again.
            num_bytes: At least how many there are.
        """
        ...

    def install(self, draft: Draft, manifest: CheckpointManifest) -> None:
        """See that every file is there, and make the draft the checkpoint of its step."""
        ...

    def renew(self, folder: Any, manifest: CheckpointManifest) -> None:
        """Give a checkpoint another cursor and metric."""
        ...

    def set_aside(self, folder: Any) -> Any:
        """Keep a checkpoint as the best, out of the list of those to resume from; return where it is now."""
        ...

    def delete(self, folder: Any) -> None:
        """Delete a checkpoint; a kill at any moment leaves all of it, or nothing that counts."""
        ...


def verify(folder: Folder, *, part: int = 0, parts: int = 1) -> CheckpointManifest:
    """Read the files of a checkpoint and return its manifest if all of them are as they were written.

    Args:
        folder: The checkpoint.
        part: Which part of its files this process reads, where several share the work.
        parts: In how many parts.

    Raises:
        CheckpointError: A file is missing, extra, cut, or changed by as much as a bit; the message names it.
    """
    manifest = folder.manifest()
    refuse_missing_files(folder, manifest)
    for file in sorted(manifest.files, key=lambda file: file.path)[part::parts]:
        path, actual = file.path, hash_pieces(file.path, folder.pieces(file.path))
        if actual != file:
            raise CheckpointError(
                f"{folder.name}/{path} is damaged",
                got=f"{actual.num_bytes} bytes, {actual.xxh3}",
                limit=f"{file.num_bytes} bytes, {file.xxh3}",
            )
    return manifest


def refuse_missing_files(folder: Folder, manifest: CheckpointManifest) -> None:
    """Refuse a checkpoint that has other files than its manifest names; their content is not read.

    Raises:
        CheckpointError: Names the first file that is missing or extra.
    """
    expected, found = {file.path for file in manifest.files}, folder.files()
    if found != expected:
        raise CheckpointError(
            f"{folder.name} has a missing or an extra file", got=sorted(found ^ expected)[0]
        )


def refuse_altered(where: str, found: CheckpointFile, written: CheckpointFile) -> None:
    """Refuse a file that does not read back as it was written.

    Raises:
        CheckpointError: Size or hash differ.
    """
    if found != written:
        raise CheckpointError(
            f"{where} does not read back as it was written",
            got=f"{found.num_bytes} bytes, {found.xxh3}",
            limit=f"{written.num_bytes} bytes, {written.xxh3}",
            remedy="Check what it is kept on; the older checkpoints are whole.",
        )


def retain(shelf: Shelf, *, keep: int, invalid: Collection[int] = ()) -> None:
    """Delete all but the newest `keep` checkpoints and the one with the best metric.

    Call it only when the newest has been verified.

    Args:
        shelf: What holds them.
        keep: How many to keep to resume from.
        invalid: Steps known to be damaged; they do not count, and go once older than all that count.
    """
    folders = shelf.folders()
    candidates = [step for step in folders if step not in invalid]
    if not candidates:
        return
    oldest_kept = candidates[-keep:][0]
    best = find_best(shelf)
    for step, folder in folders.items():
        if step < oldest_kept and folder == best:
            best = shelf.set_aside(folder)
        elif step < oldest_kept:
            shelf.delete(folder)
    for folder in shelf.folders(best=True).values():
        if folder != best:
            shelf.delete(folder)


def find_best(shelf: Shelf) -> Any | None:
    """Return the checkpoint with the highest metric, the newest of equals; None if none was evaluated."""
    best: tuple[float, int] | None = None
    found = None
    for step, folder in (*shelf.folders().items(), *shelf.folders(best=True).items()):
        try:
            metric = folder.manifest().metric
        except CheckpointError:
            continue
        if metric is not None and (best is None or (metric, step) > best):
            best, found = (metric, step), folder
    return found
