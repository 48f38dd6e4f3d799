"""The file of an lmdb store as a file: as long as its pages say, whenever it is looked into.

lmdb reads it as memory. A page that is not in the file any more then ends the process (SIGBUS) where a read
would have failed with an error.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from forebay.errors import DamagedError
from forebay.store.marker import DATA_NAME


class DataFile:
    """Notices that the file was cut; it never becomes shorter by itself.

    Between the check and the end of the transaction that it is made for, a cut still ends the process.

    Args:
        path: Directory of the store.
    """

    def __init__(self, path: Path) -> None:
        self._path = path / DATA_NAME
        self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        self._num_bytes = os.fstat(self._descriptor).st_size

    def check(self) -> None:
        """Compare the file's length with the longest that was seen.

        Raises:
            DamagedError: It is shorter.
        """
        num_bytes = os.fstat(self._descriptor).st_size
        if num_bytes < self._num_bytes:
            raise DamagedError(
                f"the file of the store, {self._path}, was cut while it was in use",
                got=f"{num_bytes} bytes",
                limit=f"{self._num_bytes} bytes",
                remedy="Stop the run, and restore the store from a copy, or start a new run.",
            )
        self._num_bytes = num_bytes

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._descriptor)


def lengthen(path: Path, env: Any) -> None:
    """Make the file of a store as long as its pages say.

    The bytes added are a hole. Pages that lmdb gave up before it ever wrote them leave a file short as well,
    so a short file alone proves no damage.

    Args:
        path: Directory of the store.
        env: Its environment.
    """

    def missing_bytes() -> int:
        num_bytes = int(env.info()["last_pgno"] + 1) * int(env.stat()["psize"])
        return num_bytes - (path / DATA_NAME).stat().st_size

    if missing_bytes() > 0:
        with env.begin(write=True):  # nobody else lengthens it meanwhile
            missing = missing_bytes()
            if missing > 0:
                os.truncate(path / DATA_NAME, (path / DATA_NAME).stat().st_size + missing)
