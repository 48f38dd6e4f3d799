"""Side files: payloads too large for a transaction, one file each.

A file is durable before a transaction refers to it, and removed after no durable transaction does. What a
crash leaves between the two belongs to a dead process and is swept when the store is next opened. A name
tells its writer: process id and start time, so that a recycled process id is not taken for the writer.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
from collections.abc import Callable
from pathlib import Path
from stat import S_ISREG
from typing import Final

from forebay.errors import StoreError, WireError
from forebay.wire import MAX_FRAME_BYTES

_NAME = re.compile(r"(\d+)-(\d+)-[0-9a-f]{24}(?:\.part)?")
# What no retry mends: no such file, a bad sector.
_GONE: Final = frozenset({errno.ENOENT, errno.EIO})


class SideFiles:
    """A directory of payloads.

    Args:
        directory: Made if it does not exist.
        sync: Whether a file must survive power loss.
    """

    def __init__(self, directory: Path, *, sync: bool) -> None:
        self._directory, self._sync = directory, sync
        directory.mkdir(exist_ok=True)

    def write(self, frame: bytes) -> str:
        """Write a payload; return the name of its file once it is durable.

        Raises:
            StoreError: The disk is full or cannot be written.
        """
        pid = os.getpid()
        name = f"{pid}-{_start_of(pid)}-{secrets.token_hex(12)}"
        part = self._directory / f"{name}.part"
        try:
            with part.open("xb") as file:
                file.write(frame)
                file.flush()
                if self._sync:
                    os.fsync(file.fileno())
            part.rename(self._directory / name)
            if self._sync:
                self._sync_directory()
        except OSError as error:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            raise StoreError(
                f"cannot write a trajectory of {len(frame)} bytes to {self._directory}: {error.strerror}",
                remedy="Free space on that disk; nothing was lost, the put can be made again.",
            ) from error
        return name

    def read(self, name: str) -> bytes:
        """Return the content of a file.

        Raises:
            WireError: It is missing, damaged, or no file of ours: it will never be whole again.
            StoreError: It cannot be read now (permissions, too many open files): that can be mended.
        """
        if not _NAME.fullmatch(name):
            raise WireError("bad_name", "not the name of a side file", got=repr(name))
        path = self._directory / name
        try:
            stat = path.stat()
            if not S_ISREG(stat.st_mode):
                raise WireError("not_a_file", "side file is no file", got=name)
            if stat.st_size > MAX_FRAME_BYTES:
                raise WireError("too_large", "side file too large", got=stat.st_size, limit=MAX_FRAME_BYTES)
            return path.read_bytes()
        except OSError as error:
            what = f"side file cannot be read: {error.strerror}"
            if error.errno in _GONE:
                reason = "missing_file" if error.errno == errno.ENOENT else "unreadable_file"
                raise WireError(reason, what, got=name) from error
            raise StoreError(what, got=path, remedy="Mend that and start again: nothing was lost.") from error

    def remove(self, name: str) -> None:
        """Remove a file that nothing refers to; a missing one, or the empty name, is fine.

        One that the disk does not let go of stays until a later opening sweeps it: what was committed before
        is done, whatever becomes of the file.
        """
        if _NAME.fullmatch(name):
            with contextlib.suppress(OSError):
                (self._directory / name).unlink(missing_ok=True)

    def sweep(self, referenced: Callable[[], set[str]]) -> int:
        """Remove files of dead writers that nothing refers to; return how many.

        Args:
            referenced: Reads the names in use. It is called after the writers were found dead: nothing they
                staged can be committed any more.
        """
        orphans = {path.name for path in self._directory.iterdir() if _is_abandoned(path.name)}
        orphans -= referenced() if orphans else set()
        for name in orphans:
            self.remove(name)
        return len(orphans)

    def _sync_directory(self) -> None:
        descriptor = os.open(self._directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _is_abandoned(name: str) -> bool:
    match = _NAME.fullmatch(name)
    return match is not None and _start_of(int(match[1])) != int(match[2])


def _start_of(pid: int) -> int:
    """Return when a process started, in ticks since boot; 0 if there is no such process (or no /proc)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(stat.rpartition(")")[2].split()[19])
