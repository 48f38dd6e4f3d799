"""What makes a checkpoint valid: a manifest, written last, that names and hashes everything else.

In a directory checkpoints lie like this; in a bucket as `forebay.learner.checkpoint_bucket` says:

```
checkpoints/
  step_100/
    state.safetensors  every array of the state, by its path in the tree; of a learner of several processes
                       state-00001-of-00004.safetensors ..., each with the slices that its devices held
    manifest.json      cursor, metric, arrays, their slices, files with sizes and hashes, a checksum of itself
  best_80/             the best checkpoint by the evaluation's metric, once retention has moved it aside
  .partial-*  .old-*  .trash-*   being written, being replaced, being deleted; never restored
```
This module reads and writes no array and imports no JAX, so that any command can list and verify checkpoints.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import xxhash

from forebay.errors import CheckpointError
from forebay.trajectory import PolicyVersion

Buffer = bytes | memoryview

MANIFEST_FILE = "manifest.json"
PARTIAL_PREFIX = ".partial-"
OLD_PREFIX = ".old-"
TRASH_PREFIX = ".trash-"
FORMAT = 2
MAX_MANIFEST_BYTES = 64 * 2**20
_READ_BYTES = 2**20
_STEP_NAME = re.compile(r"step_(\d{1,15})")
_BEST_NAME = re.compile(r"best_(\d{1,15})")


class CheckpointCursor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where in the run's history the state belongs.

    Args:
        run_id: The run that saved it.
        version: The version of the weights; its `version` is the number of optimizer steps taken, and
            the last step of the store's journal that the state has consumed.
        counters: Totals that continue after a resume, by name.
    """

    run_id: str
    version: PolicyVersion
    counters: dict[str, int] = {}


class CheckpointFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file of a checkpoint: its path inside the checkpoint, size, and xxh3-128 in hexadecimal."""

    path: str
    num_bytes: int
    xxh3: str


class ArrayRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One array of the state: its path in the tree, shape and dtype."""

    path: str
    shape: tuple[int, ...]
    dtype: str


class SliceRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One rectangular part of an array, as one device held it.

    Args:
        array: Path of the array in the tree.
        start: First index of the part along each axis of the whole array.
        shape: Its lengths.
        file: The file that holds it, as a tensor called `tensor`.
        tensor: Its name there; the array's path if it is the whole array.
        xxh3: xxh3-128 of its bytes, hexadecimal.
    """

    array: str
    start: tuple[int, ...]
    shape: tuple[int, ...]
    file: str
    tensor: str
    xxh3: str


class CheckpointManifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of a checkpoint.

    Args:
        format: Number of this layout.
        cursor: Where the state belongs.
        metric: The evaluation's result for these weights, higher is better; None if they were not evaluated.
        arrays: Every array of the state.
        slices: Their parts; every element of every array lies in exactly one.
        digest: Hash of arrays and slices; equal for bit-identical states on equal meshes.
        files: Every file but the manifest.
        checksum: xxh3-128 of the manifest with this field empty.
    """

    format: int
    cursor: CheckpointCursor
    metric: float | None
    arrays: tuple[ArrayRecord, ...]
    digest: str
    files: tuple[CheckpointFile, ...]
    slices: tuple[SliceRecord, ...] = ()
    checksum: str = ""

    def sealed(self) -> CheckpointManifest:
        """Return the manifest with its checksum filled in."""
        open_manifest = msgspec.structs.replace(self, checksum="")
        checksum = xxhash.xxh3_128_hexdigest(msgspec.json.encode(open_manifest))
        return msgspec.structs.replace(open_manifest, checksum=checksum)


def step_directory(path: Path, step: int) -> Path:
    """Return where the checkpoint of a step lies.

    Example:
        >>> step_directory(Path("checkpoints"), 100).name
        'step_100'
    """
    return path / f"step_{step}"


def best_directory(path: Path, step: int) -> Path:
    """Return where the best checkpoint lies once retention has moved it aside."""
    return path / f"best_{step}"


def list_steps(path: Path, *, best: bool = False) -> tuple[int, ...]:
    """Return the steps that have a directory, valid or not, in ascending order.

    Args:
        path: The checkpoint directory; need not exist.
        best: List the checkpoints moved aside as best ones instead.
    """
    pattern = _BEST_NAME if best else _STEP_NAME
    try:
        names = [entry.name for entry in path.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return ()
    return tuple(sorted(int(match[1]) for match in filter(None, map(pattern.fullmatch, names))))


def parse_manifest(data: bytes, name: str) -> CheckpointManifest:
    """Return a manifest, checked against its own checksum.

    Args:
        data: Its file.
        name: Of the checkpoint, for the message.

    Raises:
        CheckpointError: It is damaged, or of another layout.
    """
    try:
        manifest = msgspec.json.decode(data, type=CheckpointManifest)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CheckpointError(f"manifest of {name} is damaged: {error}") from error
    if manifest.format != FORMAT:
        raise CheckpointError(f"{name} has another layout", got=manifest.format, limit=FORMAT)
    if manifest.sealed().checksum != manifest.checksum:
        raise CheckpointError(f"manifest of {name} does not match its checksum", got=manifest.checksum)
    return manifest


def read_manifest(directory: Path) -> CheckpointManifest:
    """Return the manifest of a checkpoint, checked against its own checksum; no other file is read.

    Raises:
        CheckpointError: There is none, or it is damaged or of another layout.
    """
    try:
        with (directory / MANIFEST_FILE).open("rb") as file:
            data = file.read(MAX_MANIFEST_BYTES)
    except FileNotFoundError:
        raise CheckpointError(f"{directory.name} has no manifest") from None
    except OSError as error:
        raise CheckpointError(f"manifest of {directory.name} is damaged: {error}") from error
    return parse_manifest(data, directory.name)


def write_manifest(directory: Path, manifest: CheckpointManifest, *, fsync: bool) -> None:
    """Write or replace the manifest of a checkpoint, atomically."""
    partial = directory / f"{PARTIAL_PREFIX}{MANIFEST_FILE}"
    with partial.open("wb") as file:
        file.write(msgspec.json.encode(manifest.sealed()))
        if fsync:
            file.flush()
            os.fsync(file.fileno())
    partial.rename(directory / MANIFEST_FILE)
    if fsync:
        sync_directory(directory)


def state_file(process: int, num_processes: int) -> str:
    """Return the name of the file that one process of a learner writes.

    Example:
        >>> state_file(0, 1), state_file(0, 4)
        ('state.safetensors', 'state-00001-of-00004.safetensors')
    """
    if num_processes == 1:
        return "state.safetensors"
    return f"state-{process + 1:05d}-of-{num_processes:05d}.safetensors"


def hash_file(directory: Path, path: str) -> CheckpointFile:
    """Return size and hash of one file of a checkpoint."""
    return hash_pieces(path, pieces_of(directory / path))


def hash_pieces(path: str, pieces: Iterable[Buffer]) -> CheckpointFile:
    """Return size and hash of a file's content, given piece by piece.

    Args:
        path: Of the file inside its checkpoint.
        pieces: Its bytes.
    """
    hashing = HashedPieces(pieces)
    for _ in hashing:
        continue
    return hashing.file(path)


class HashedPieces:
    """Passes the pieces of a file on, and knows size and hash of what has passed.

    Args:
        pieces: Its bytes, in order.
    """

    def __init__(self, pieces: Iterable[Buffer]) -> None:
        self._pieces = pieces
        self._digest = xxhash.xxh3_128()
        self._num_bytes = 0

    def __iter__(self) -> Iterator[Buffer]:
        """Yield the pieces."""
        for piece in self._pieces:
            self._digest.update(piece)
            self._num_bytes += len(piece)
            yield piece

    def file(self, path: str) -> CheckpointFile:
        """Return what a manifest says of a file with the bytes that have passed."""
        return CheckpointFile(path=path, num_bytes=self._num_bytes, xxh3=self._digest.hexdigest())


def sweep(path: Path) -> None:
    """Delete what a killed writer left; put back a checkpoint whose replacement never arrived."""
    for entry in list(path.iterdir()):
        target = path / entry.name.removeprefix(OLD_PREFIX)
        if entry.name.startswith(OLD_PREFIX) and not target.exists():
            entry.rename(target)
        elif entry.name.startswith((PARTIAL_PREFIX, TRASH_PREFIX, OLD_PREFIX)):
            shutil.rmtree(entry)


def install(partial: Path, target: Path, *, fsync: bool) -> None:
    """Rename a finished checkpoint into place; a kill at any moment leaves the old or the new one."""
    old = target.with_name(f"{OLD_PREFIX}{target.name}")
    if target.exists():
        target.rename(old)
    partial.rename(target)
    if fsync:
        sync_directory(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def sync_directory(path: Path) -> None:
    """Flush a directory's entries to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def list_files(directory: Path) -> set[str]:
    """Return the paths of all files below a directory, relative to it."""
    return {
        os.path.relpath(os.path.join(parent, name), directory)
        for parent, _, names in os.walk(directory)
        for name in names
    }


def delete(directory: Path) -> None:
    """Delete a checkpoint; a kill at any moment leaves all of it, or what `sweep` deletes."""
    trash = directory.with_name(f"{TRASH_PREFIX}{directory.name}")
    directory.rename(trash)
    shutil.rmtree(trash)


def pieces_of(path: Path) -> Iterator[bytes]:
    """Yield the bytes of a file."""
    with path.open("rb", buffering=0) as file:
        while piece := file.read(_READ_BYTES):
            yield piece
