"""What a process holds, with everything it started: counted around episodes, to see what they leave."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from forebay.envs.processes import descendants


class Holdings(NamedTuple):
    """Names of what is held, with how many of each.

    Args:
        tasks: Tasks of the event loop.
        threads: Threads of this process by name, and those of its descendants.
        processes: Descendants by command.
        files: Open files and pipes.
        sockets: Open sockets.
        directories: Entries of the directory for temporary files.
        pids: Descendants by number.
    """

    tasks: Counter[str]
    threads: Counter[str]
    processes: Counter[str]
    files: Counter[str]
    sockets: Counter[str]
    directories: Counter[str]
    pids: frozenset[int]

    def more_than(self, before: Holdings, at_least: int) -> dict[str, str]:
        """Return what there is more of by `at_least`, kind by kind, with examples."""
        grown: dict[str, str] = {}
        for kind in self._fields[:-1]:
            now, then = getattr(self, kind), getattr(before, kind)
            added = now - then
            if added.total() - (then - now).total() >= at_least:
                grown[kind] = ", ".join(sorted(added)[:3])
        return grown


def measure(temporary: Path, before: Holdings | None = None) -> Holdings:
    """Return what this process and its descendants hold now.

    Args:
        temporary: The directory for temporary files.
        before: An earlier measurement; of the descendants that are new since then, nothing but their names
            is looked at.
    """
    gc.collect()
    below = descendants(os.getpid())
    known = below & before.pids if before else below
    open_files = Counter(name for pid in (os.getpid(), *known) for name in _open_files(pid))
    current = asyncio.current_task()
    return Holdings(
        tasks=Counter(task.get_name() for task in asyncio.all_tasks() if task is not current),
        threads=Counter(_plain(thread.name) for thread in threading.enumerate())
        + Counter(f"thread of process {pid}" for pid in known for _ in _entries(f"/proc/{pid}/task")),
        processes=Counter(_command(pid) for pid in below),
        files=Counter({name: count for name, count in open_files.items() if not name.startswith("socket")}),
        sockets=Counter({name: count for name, count in open_files.items() if name.startswith("socket")}),
        directories=Counter(path.name for path in temporary.iterdir()),
        pids=frozenset(below),
    )


def _plain(thread_name: str) -> str:
    return thread_name.rstrip("0123456789-_")


def _open_files(pid: int) -> list[str]:
    names = []
    for entry in _entries(f"/proc/{pid}/fd"):
        try:
            names.append(str(entry.readlink()))
        except OSError:  # closed since it was listed: the listing itself, for one
            continue
    return names


def _command(pid: int) -> str:
    try:
        return (
            Path(f"/proc/{pid}/cmdline")
            .read_bytes()
            .replace(b"\0", b" ")
            .decode(errors="replace")
            .strip()[:120]
        )
    except OSError:
        return "a process that has ended"


def _entries(directory: str) -> list[Path]:
    try:
        return list(Path(directory).iterdir())
    except OSError:
        return []
