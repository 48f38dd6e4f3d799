"""Side files: payloads too large for a transaction, one file each.

A file is durable before a transaction refers to it, and removed after no durable transaction does. What a
crash leaves between the two belongs to a dead process and is swept when the store is next opened. A name
tells its writer: process id and start time, so that a recycled process id is not taken for the writer.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Callable
from pathlib import Path

from forebay.errors import StoreError, WireError

_NAME = re.compile(r"(\d+)-(\d+)-[0-9a-f]{24}(?:\.part)?")


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
            WireError: It is missing or cannot be read.
        """
        if not _NAME.fullmatch(name):
            raise WireError("bad_name", "not the name of a side file", got=repr(name))
        try:
            return (self._directory / name).read_bytes()
        except OSError as error:
            raise WireError(
                "missing_file", f"side file cannot be read: {error.strerror}", got=name
            ) from error

    def remove(self, name: str) -> None:
        """Remove a file; a missing one, or the empty name, is fine."""
        if _NAME.fullmatch(name):
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
