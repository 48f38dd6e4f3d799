"""Compaction: an lmdb store's file written anew, without the pages that hold nothing.

A file never shrinks by itself: what is consumed leaves free pages, which the next puts use. Compaction gives
them back to the disk. It needs the store for itself. The copy is made durable beside the file and takes its
place by one rename, so that a crash at any moment leaves either the old file or the new one, whole.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import lmdb

from forebay.errors import ConfigError, StoreError
from forebay.store.marker import DATA_NAME, check_directory, hold_alone

_PART: Final = "compacting"
_META_PAGES: Final = 2


class Compaction(NamedTuple):
    """What a compaction did.

    Args:
        before_bytes: Size of the file before.
        after_bytes: Size of the file after.
    """

    before_bytes: int
    after_bytes: int


def compact_store(path: Path, run_id: str) -> Compaction:
    """Write an lmdb store's file anew, without free pages.

    Args:
        path: Directory of the store.
        run_id: The run that owns it.

    Raises:
        ConfigError: There is no store, or nothing in it yet.
        StoreVersionError: It is another run's, of another format, or something else.
        StoreError: Processes use it, the disk has no room for a second file, or the file is damaged; the
            store is as it was.
    """
    path = path.resolve()
    check_directory(path, run_id)
    data, part = path / DATA_NAME, path / _PART
    with hold_alone(path):
        if not data.exists():
            raise ConfigError(f"the store in {path} is empty yet", remedy="Start the run first.")
        before_bytes = data.stat().st_size
        with _directory_for_a_while(part), _explained(path):
            _copy(path, part)
            _sync(part / DATA_NAME)
            (part / DATA_NAME).replace(data)
            _sync(path)
        return Compaction(before_bytes, data.stat().st_size)


def sweep_compaction(path: Path) -> None:
    """Remove what a killed compaction left in a store; for a caller that holds the store's directory."""
    shutil.rmtree(path / _PART, ignore_errors=True)


def _copy(path: Path, part: Path) -> None:
    with _open(path) as env:
        used_bytes = _used_bytes(env.stat())
        free_bytes = shutil.disk_usage(path).free
        if free_bytes < used_bytes:
            raise StoreError(
                f"no room to compact the store in {path}: the new file is written before the old one goes",
                got=f"{free_bytes} bytes free",
                limit=f"{used_bytes} bytes needed",
                remedy="Free space on that disk.",
            )
        env.copy(str(part), compact=True)
        entries = env.stat()["entries"]
    with _open(part) as copy:
        if copy.stat()["entries"] != entries:
            raise StoreError(
                f"the copy of the store in {path} is not whole", got=copy.stat()["entries"], limit=entries
            )


def _used_bytes(stat: dict[str, int]) -> int:
    pages = stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
    return (_META_PAGES + pages) * stat["psize"]


def _open(path: Path) -> Any:
    return lmdb.open(str(path), readonly=True, lock=False, create=False)


@contextlib.contextmanager
def _directory_for_a_while(part: Path) -> Iterator[None]:
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    try:
        yield
    finally:
        shutil.rmtree(part, ignore_errors=True)


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except (lmdb.Error, OSError) as error:
        raise StoreError(
            f"cannot compact the store in {path}: {error}", remedy="It is as it was; check its disk."
        ) from error


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
