"""The marker: a small file that says whose store a directory is, read before anything there is touched."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from forebay.errors import ConfigError, StoreError, StoreVersionError
from forebay.store.records import FORMAT_VERSION

DATA_NAME: Final = "data.mdb"
_NAME: Final = "store.json"
_MAX_BYTES: Final = 4096
_LMDB_MAGIC: Final = struct.pack("=I", 0xBEEFC0DE)
_LMDB_MAGIC_OFFSET: Final = 16
_OTHER: Final = "Point store.path at another directory; this one was not touched."


class Marker(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Format of the store and the run that owns it."""

    format: int
    run_id: str


def claim_directory(path: Path, run_id: str) -> None:
    """Make `path` the store of `run_id`, or check that it is; touch nothing that is not.

    Raises:
        ConfigError: The path cannot be a directory of ours.
        StoreVersionError: It holds another run's store, another format, or something else altogether.
    """
    if path.exists() and not path.is_dir():
        raise ConfigError("store.path is not a directory", got=path, remedy="Choose another path.")
    # In this order: whoever makes a store meanwhile makes the marker first.
    has_data = (path / DATA_NAME).exists()
    if not (path / _NAME).exists():
        if has_data:
            raise StoreVersionError(f"{path} holds a {DATA_NAME} that is not a forebay store", remedy=_OTHER)
        _write(path, Marker(FORMAT_VERSION, run_id))
    check_directory(path, run_id)


def check_directory(path: Path, run_id: str) -> None:
    """Check that `path` is the store of `run_id`; nothing is touched.

    Raises:
        ConfigError: There is no store.
        StoreVersionError: It is another run's, of another format, or something else altogether.
    """
    if not (path / _NAME).exists():
        raise ConfigError(f"there is no store in {path} yet", remedy="Start the run first.")
    _check(_read(path), run_id, path)
    data = path / DATA_NAME
    if data.exists() and not _looks_like_lmdb(data):
        raise StoreVersionError(f"{data} is not an lmdb file", remedy=_OTHER)


def hold_directory(path: Path) -> int:
    """Keep the files of a store in place while they are open; return what `release_directory` takes.

    The lock lies on the marker, ends with the process, and is shared by all that use the store. A child that
    was forked meanwhile holds it too, for as long as it lives.

    Raises:
        StoreError: The store is being compacted.
    """
    return _lock(path, fcntl.LOCK_SH, f"the store in {path} is being compacted", "Try again in a moment.")


def release_directory(held: int) -> None:
    """Let go of what `hold_directory` returned."""
    os.close(held)


@contextlib.contextmanager
def hold_alone(path: Path) -> Iterator[None]:
    """Keep everybody else from opening a store.

    Raises:
        StoreError: A process uses it.
    """
    held = _lock(path, fcntl.LOCK_EX, f"processes use the store in {path}", "Stop the run first.")
    try:
        yield
    finally:
        release_directory(held)


def _lock(path: Path, kind: int, refusal: str, remedy: str) -> int:
    held = os.open(path / _NAME, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(held, kind | fcntl.LOCK_NB)
    except OSError as error:
        os.close(held)
        if error.errno != errno.EWOULDBLOCK:
            raise StoreError(f"cannot lock {path / _NAME}: {error.strerror}") from error
        raise StoreError(refusal, remedy=remedy) from error
    return held


def _check(marker: Marker, run_id: str, path: Path) -> None:
    if marker.format != FORMAT_VERSION:
        raise StoreVersionError(
            f"the store in {path} has another format",
            got=f"format {marker.format}",
            limit=f"format {FORMAT_VERSION}",
            remedy="Use the forebay version that made it, or another run directory; it was not touched.",
        )
    if marker.run_id != run_id:
        raise StoreVersionError(
            f"the store in {path} belongs to another run",
            got=f"run {run_id}",
            limit=f"run {marker.run_id}",
            remedy="Use another run directory, or resume the run that owns this one; it was not touched.",
        )


def _read(path: Path) -> Marker:
    with (path / _NAME).open("rb") as file:
        raw = file.read(_MAX_BYTES)
    try:
        return msgspec.json.decode(raw, type=Marker)
    except msgspec.DecodeError as error:
        raise StoreVersionError(f"{path / _NAME} is not a forebay store's: {error}", remedy=_OTHER) from error


def _write(path: Path, marker: Marker) -> None:
    """Write the marker unless another process just did: a link is made once and is whole."""
    part = path / f"{_NAME}.{secrets.token_hex(8)}"
    try:
        path.mkdir(parents=True, exist_ok=True)
        with part.open("xb") as file:
            file.write(msgspec.json.encode(marker))
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(part, path / _NAME)
        except FileExistsError:
            pass
        finally:
            part.unlink()
    except OSError as error:
        what = f"cannot make a store in {path}: {error.strerror}"
        if error.errno == errno.ENOSPC:
            raise StoreError(what, remedy="Free space on its disk.") from error
        raise ConfigError(what, remedy="Choose another path.") from error


def _looks_like_lmdb(data: Path) -> bool:
    with data.open("rb") as file:
        head = file.read(_LMDB_MAGIC_OFFSET + len(_LMDB_MAGIC))
    # An empty file is one that another process is about to fill.
    return not head or head[_LMDB_MAGIC_OFFSET:] == _LMDB_MAGIC
