"""Ending processes with everything they started."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path


def kill_tree(pid: int) -> None:
    """Kill a process that leads its own group, and everything it started.

    The process is stopped first, so that it cannot start more while its descendants are collected.
    """
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
    kill_descendants(pid)
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def kill_descendants(pid: int) -> None:
    """Kill what a process started, in whatever session or group; again, until no new ones appear."""
    known: set[int] = set()
    while fresh := descendants(pid) - known:
        known |= fresh
        for descendant in fresh:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(descendant, signal.SIGKILL)


def descendants(pid: int) -> set[int]:
    """Return the ids of all live descendants of a process, from one pass over /proc."""
    families = _families()
    found: set[int] = set()
    frontier = [pid]
    while frontier:
        fresh = families.get(frontier.pop(), set()) - found
        found |= fresh
        frontier += fresh
    return found


def children(pid: int) -> set[int]:
    """Return the ids of the live children of a process."""
    return _families().get(pid, set())


def _families() -> dict[int, set[int]]:
    families: dict[int, set[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (parent := _parent_of(entry)):
            families.setdefault(parent, set()).add(int(entry.name))
    return families


def _parent_of(process: Path) -> int | None:
    """Return the parent's id, or None if the process is gone or a zombie."""
    try:
        stat = (process / "stat").read_text()
    except OSError:
        return None
    # The name in parentheses may hold spaces; state and parent follow it.
    state, parent = stat.rpartition(")")[2].split()[:2]
    return None if state == "Z" else int(parent)
