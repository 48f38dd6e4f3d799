"""Processes that work on a store until killed: `python -m tests.unit.store.worker ROLE PATH LOG`.

Each line of the log is on disk's cache before the next call, so that what a killed process has seen is known.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from forebay.clock import SystemClock
from forebay.store import StoreSettings, open_store
from forebay.store.rules import RuleStore
from tests.unit.store.builders import RUN


class Log:
    """Appends lines, each with one system call."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, *words: object) -> None:
        os.write(self._descriptor, (" ".join(map(str, words)) + "\n").encode())


def settings_for(path: Path, **changes: object) -> StoreSettings:
    return StoreSettings(engine="lmdb", path=path, durability="os", side_file_bytes=40_000, **changes)


def hang_in_a_read(store: RuleStore, log: Log) -> None:
    """Hold a snapshot open until killed."""

    def choose(groups: object) -> object:
        log.write("reading")
        while True:
            SystemClock().sleep(1.0)

    store.take(incarnation=store.stats().incarnation, choose=choose, timeout_s=0.0)


def main() -> None:
    role, path, log_path = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    log = Log(log_path)
    store = open_store(settings_for(path), RUN, SystemClock())
    log.write("#", "opened")
    if role == "reader":
        hang_in_a_read(store, log)
    else:
        store.close()


if __name__ == "__main__":
    main()
