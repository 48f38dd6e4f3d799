"""A directory of checkpoints; see `forebay.learner.checkpoint_manifest` for how they lie in it."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from forebay.errors import CheckpointError
from forebay.learner.checkpoint_manifest import (
    MANIFEST_FILE,
    PARTIAL_PREFIX,
    Buffer,
    CheckpointFile,
    CheckpointManifest,
    HashedPieces,
    best_directory,
    delete,
    hash_file,
    install,
    list_files,
    list_steps,
    pieces_of,
    read_manifest,
    step_directory,
    sweep,
    write_manifest,
)
from forebay.learner.checkpoint_shelf import Draft, refuse_altered, refuse_missing_files
from forebay.telemetry.faults import fault_point


@dataclass(frozen=True, slots=True)
class DirectoryFolder:
    """A checkpoint that is a directory; see `forebay.learner.checkpoint_shelf.Folder`.

    Args:
        path: The directory.
    """

    path: Path

    @property
    def name(self) -> str:
        """What messages call it."""
        return self.path.name

    def __str__(self) -> str:
        return str(self.path)

    def manifest(self) -> CheckpointManifest:
        """Return the manifest."""
        return read_manifest(self.path)

    def files(self) -> set[str]:
        """Return the paths of all files but the manifest."""
        return list_files(self.path) - {MANIFEST_FILE}

    def num_bytes(self, file: str) -> int:
        """Return the size of a file."""
        return (self.path / file).stat().st_size

    def pieces(self, file: str) -> Iterator[bytes]:
        """Yield the bytes of a whole file."""
        return pieces_of(self.path / file)

    def read(self, file: str, start: int, stop: int) -> npt.NDArray[np.uint8]:
        """Return [N] uint8, some bytes of a file; mapped, not copied."""
        if start == stop:
            return np.zeros(0, np.uint8)
        mapped: npt.NDArray[np.uint8] = np.memmap(self.path / file, np.uint8, mode="r")
        return mapped.view(np.ndarray)[start:stop]


class DirectoryShelf:
    """A directory of checkpoints; see `forebay.learner.checkpoint_shelf.Shelf`.

    Args:
        path: The directory, which all processes of the learner see.
        fsync: Whether a checkpoint survives power loss.
    """

    def __init__(self, path: Path, *, fsync: bool) -> None:
        self._path = path
        self._fsync = fsync

    def __str__(self) -> str:
        return str(self._path)

    def prepare(self) -> None:
        """Delete what a killed writer left; put back a checkpoint whose replacement never arrived."""
        self._path.mkdir(parents=True, exist_ok=True)
        sweep(self._path)

    def folders(self, *, best: bool = False) -> dict[int, DirectoryFolder]:
        """Return the checkpoints by step, ascending."""
        place = best_directory if best else step_directory
        steps = list_steps(self._path, best=best)
        return {step: DirectoryFolder(place(self._path, step)) for step in steps}

    def begin(self, draft: Draft) -> bool:
        """Make room for a checkpoint; return False if the disk has none."""
        with self._explained(draft):
            if is_full(self._path, draft.num_bytes):
                return False
            partial = self._partial(draft)
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
        return True

    def full(self, draft: Draft) -> CheckpointError:
        """Return what to raise where the disk has no room."""
        return self._failure(draft, os.strerror(errno.ENOSPC))

    def write(self, draft: Draft, file: str, pieces: Iterable[Buffer], num_bytes: int) -> CheckpointFile:
        """Write a file of a draft, and read it back."""
        with self._explained(draft):
            partial, hashed = self._partial(draft), HashedPieces(pieces)
            partial.mkdir(parents=True, exist_ok=True)
            with (partial / file).open("xb") as target:
                for piece in hashed:
                    target.write(piece)
                if self._fsync:
                    target.flush()
                    os.fsync(target.fileno())
            written = hashed.file(file)
            refuse_altered(str(partial / file), hash_file(partial, file), written)
        return written

    def install(self, draft: Draft, manifest: CheckpointManifest) -> None:
        """Write the manifest, see that every file is there, and give the checkpoint its name."""
        with self._explained(draft):
            partial = self._partial(draft)
            write_manifest(partial, manifest, fsync=self._fsync)
            # Each process has read its own file back: here only whether all of them are in one place.
            refuse_missing_files(DirectoryFolder(partial), manifest)
            fault_point("checkpoint_written", draft.step)
            install(partial, step_directory(self._path, draft.step), fsync=self._fsync)

    def renew(self, folder: DirectoryFolder, manifest: CheckpointManifest) -> None:
        """Give a checkpoint another cursor and metric."""
        with _explained_change(folder):
            write_manifest(folder.path, manifest, fsync=self._fsync)

    def set_aside(self, folder: DirectoryFolder) -> DirectoryFolder:
        """Rename a checkpoint as the best."""
        step = folder.manifest().cursor.version.version
        with _explained_change(folder):
            return DirectoryFolder(folder.path.rename(best_directory(self._path, step)))

    def delete(self, folder: DirectoryFolder) -> None:
        """Delete a checkpoint."""
        with _explained_change(folder):
            delete(folder.path)

    def _partial(self, draft: Draft) -> Path:
        # Not the one of an earlier incarnation: a process of it may still be writing there.
        return self._path / f"{PARTIAL_PREFIX}{draft.incarnation}-step_{draft.step}"

    @contextmanager
    def _explained(self, draft: Draft) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._failure(draft, error.strerror) from error

    def _failure(self, draft: Draft, cause: str | None) -> CheckpointError:
        shutil.rmtree(self._partial(draft), ignore_errors=True)
        return CheckpointError(
            f"cannot save {step_directory(self._path, draft.step)}: {cause}",
            got=f"{shutil.disk_usage(self._path).free} bytes free",
            limit=f"{draft.num_bytes} bytes needed",
            remedy="Free disk space or lower learner.keep_checkpoints; the older checkpoints are whole.",
        )


def is_full(path: Path, num_bytes: int) -> bool:
    """Return whether a disk has no room for so many bytes."""
    return shutil.disk_usage(path).free < num_bytes


@contextmanager
def _explained_change(folder: DirectoryFolder) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"cannot change {folder}: {error.strerror}",
            got=f"{shutil.disk_usage(folder.path.parent).free} bytes free",
            remedy="Free disk space, or check the directory; the checkpoints in it stay whole.",
        ) from error
