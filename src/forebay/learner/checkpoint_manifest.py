"""What makes a checkpoint valid: a manifest, written last, that names and hashes everything else.

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
from collections.abc import Iterable
from pathlib import Path

import msgspec
import xxhash

from forebay.errors import CheckpointError
from forebay.trajectory import PolicyVersion

MANIFEST_FILE = "manifest.json"
PARTIAL_PREFIX = ".partial-"
OLD_PREFIX = ".old-"
TRASH_PREFIX = ".trash-"
FORMAT = 2
_MAX_MANIFEST_BYTES = 64 * 2**20
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
    except FileNotFoundError:
        return ()
    return tuple(sorted(int(match[1]) for match in filter(None, map(pattern.fullmatch, names))))


def read_manifest(directory: Path) -> CheckpointManifest:
    """Return the manifest of a checkpoint, checked against its own checksum; no other file is read.

    Raises:
        CheckpointError: There is none, or it is damaged or of another layout.
    """
    source = directory / MANIFEST_FILE
    try:
        with source.open("rb") as file:
            data = file.read(_MAX_MANIFEST_BYTES)
        manifest = msgspec.json.decode(data, type=CheckpointManifest)
    except FileNotFoundError:
        raise CheckpointError(f"{directory.name} has no manifest") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, OSError) as error:
        raise CheckpointError(f"manifest of {directory.name} is damaged: {error}") from error
    if manifest.format != FORMAT:
        raise CheckpointError(f"{directory.name} has another layout", got=manifest.format, limit=FORMAT)
    if manifest.sealed().checksum != manifest.checksum:
        raise CheckpointError(
            f"manifest of {directory.name} does not match its checksum", got=manifest.checksum
        )
    return manifest


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


def verify(directory: Path, *, part: int = 0, parts: int = 1) -> CheckpointManifest:
    """Read the files of a checkpoint and return its manifest if all of them are as they were written.

    Args:
        directory: The checkpoint.
        part: Which part of its files this process reads, where several share the work.
        parts: In how many parts.

    Raises:
        CheckpointError: A file is missing, extra, cut, or changed by as much as a bit; the message names it.
    """
    manifest = read_manifest(directory)
    refuse_missing_files(directory, manifest)
    for file in sorted(manifest.files, key=lambda file: file.path)[part::parts]:
        path, actual = file.path, hash_file(directory, file.path)
        if actual != file:
            raise CheckpointError(
                f"{directory.name}/{path} is damaged",
                got=f"{actual.num_bytes} bytes, {actual.xxh3}",
                limit=f"{file.num_bytes} bytes, {file.xxh3}",
            )
    return manifest


def refuse_missing_files(directory: Path, manifest: CheckpointManifest) -> None:
    """Refuse a checkpoint that has other files than its manifest names; their content is not read.

    Raises:
        CheckpointError: Names the first file that is missing or extra.
    """
    expected = {file.path for file in manifest.files}
    found = {path for path in _list_files(directory) if path != MANIFEST_FILE}
    if found != expected:
        raise CheckpointError(
            f"{directory.name} has a missing or an extra file", got=sorted(found ^ expected)[0]
        )


def hash_file(directory: Path, path: str) -> CheckpointFile:
    """Return size and hash of one file of a checkpoint."""
    digest = xxhash.xxh3_128()
    num_bytes = 0
    with (directory / path).open("rb", buffering=0) as file:
        while piece := file.read(_READ_BYTES):
            digest.update(piece)
            num_bytes += len(piece)
    return CheckpointFile(path=path, num_bytes=num_bytes, xxh3=digest.hexdigest())


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


def retain(path: Path, *, keep: int, invalid: Iterable[int] = ()) -> None:
    """Delete all but the newest `keep` checkpoints and the one with the best metric.

    Call it only when the newest has been verified.

    Args:
        path: The checkpoint directory.
        keep: How many to keep to resume from.
        invalid: Steps known to be damaged; they do not count, and go once older than all that count.
    """
    candidates = [step for step in list_steps(path) if step not in set(invalid)]
    if not candidates:
        return
    oldest_kept = candidates[-keep:][0]
    best = find_best(path)
    for step in list_steps(path):
        if step < oldest_kept:
            directory = step_directory(path, step)
            if directory == best:
                best = directory.rename(best_directory(path, step))
            else:
                _delete(directory)
    for step in list_steps(path, best=True):
        if best_directory(path, step) != best:
            _delete(best_directory(path, step))


def find_best(path: Path) -> Path | None:
    """Return the checkpoint with the highest metric, the newest of equals; None if none was evaluated."""
    best: tuple[float, int, Path] | None = None
    directories = [(step, step_directory(path, step)) for step in list_steps(path)]
    directories += [(step, best_directory(path, step)) for step in list_steps(path, best=True)]
    for step, directory in directories:
        try:
            metric = read_manifest(directory).metric
        except CheckpointError:
            continue
        if metric is not None and (best is None or (metric, step) > best[:2]):
            best = (metric, step, directory)
    return best[2] if best else None


def sync_directory(path: Path) -> None:
    """Flush a directory's entries to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _list_files(directory: Path) -> set[str]:
    return {
        os.path.relpath(os.path.join(parent, name), directory)
        for parent, _, names in os.walk(directory)
        for name in names
    }


def _delete(directory: Path) -> None:
    trash = directory.with_name(f"{TRASH_PREFIX}{directory.name}")
    directory.rename(trash)
    shutil.rmtree(trash)
