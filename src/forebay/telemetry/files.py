"""Small files that are whole or absent."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

from forebay.errors import ConfigError

_FULL = (errno.ENOSPC, errno.EDQUOT)


def require_place(path: Path, *, is_new: bool = False) -> None:
    """Refuse where no file or directory can be made, before the work whose result would be lost.

    Missing directories on the way are no fault: who writes makes them.

    Args:
        path: Where something is to be written.
        is_new: Whether nothing may be there yet; else a file that is there may be replaced.

    Raises:
        ConfigError: There is something already, or nothing can be made in its directory.
        OSError: The disk is full.
    """
    place = path
    try:
        if is_new and os.path.lexists(path):
            raise ConfigError(f"{path} exists already", remedy="Name another place.")
        if path.is_dir():
            raise ConfigError(f"{path} is a directory", remedy="Name a file.")
        place = _nearest(path)
        with tempfile.TemporaryDirectory(prefix=".forebay-", dir=place):
            pass
    except OSError as error:
        if error.errno in _FULL:
            raise
        raise ConfigError(
            f"cannot write {path}",
            got=f"{error.strerror}, in {place}",
            remedy="Name a place in a directory that you may write to.",
        ) from None


def _nearest(path: Path) -> Path:
    place = path.parent
    while not place.exists():
        place = place.parent
    return place


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a file by way of a temporary one beside it.

    Args:
        path: The file; its directory is made if it is missing.
        data: Its new content.

    Raises:
        NotADirectoryError: Its directory is a file, or cannot be made where it should be.
        OSError: The disk is full, or refuses.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, FileNotFoundError) as error:
        # A path that cannot be is somebody's mistake, not a fault of the program.
        raise NotADirectoryError(
            errno.ENOTDIR, "no directory, and none can be made", str(path.parent)
        ) from error
    partial = path.with_name(f".partial-{os.getpid()}-{path.name}")
    try:
        partial.write_bytes(data)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
