"""What earlier runs left behind: processes that still work, and runs that are going on."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from forebay.launch.placement import PARENT_VARIABLE
from forebay.launch.probes.finding import Finding
from forebay.learner.run_directory import RunLayout

_PROC = Path("/proc")
_MAX_NAMED = 4


class ForebayProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process that runs a command of forebay.

    Args:
        pid: Process id.
        command: What follows `forebay` on its command line.
        parent: The supervisor that started it; None if it was started by hand.
    """

    pid: int
    command: str
    parent: int | None


def look_at_processes(proc: Path = _PROC) -> list[Finding]:
    """List the processes of forebay on this machine; one whose supervisor is gone should not be there."""
    found = forebay_processes(proc)
    alive = {process.pid for process in found}
    orphans = [process for process in found if process.parent is not None and process.parent not in alive]
    if orphans:
        seen = f"without their supervisor: {_named(orphans)}"
        remedy = "kill " + " ".join(str(process.pid) for process in orphans)
        return [Finding("processes", "warn", seen, remedy)]
    if found:
        return [Finding("processes", "note", f"going on: {_named(found)}")]
    return [Finding("processes", "ok", "none left over")]


def look_at_runs(directory: Path) -> list[Finding]:
    """List the runs of a directory that are going on."""
    layouts = [RunLayout(path.parent) for path in directory.glob("*/manifest.json")]
    live = [layout.path.name for layout in layouts if is_locked(layout.lock)]
    seen = f"{len(layouts)} in {directory}" + (f", going on: {', '.join(sorted(live))}" if live else "")
    return [Finding("runs", "note" if live else "ok", seen)]


def is_locked(path: Path, locks: Path = _PROC / "locks") -> bool:
    """Return whether a process holds the lock of a file; looked up, so that nobody is disturbed."""
    try:
        inode, table = path.stat().st_ino, locks.read_text("utf-8")
    except OSError:
        return False
    return any(
        words[1] == "FLOCK" and words[5].rpartition(":")[2] == str(inode)
        for words in map(str.split, table.splitlines())
        if len(words) > 5
    )


def forebay_processes(proc: Path = _PROC) -> list[ForebayProcess]:
    """Return the processes that run a command of forebay, this one and its ancestors left out.

    Args:
        proc: Where Linux shows its processes.
    """
    mine = {os.getpid(), os.getppid()}
    found = []
    for entry in sorted(proc.glob("[0-9]*"), key=lambda path: int(path.name)):
        command = _command(_fields(entry / "cmdline"))
        if command is not None and int(entry.name) not in mine:
            found.append(ForebayProcess(pid=int(entry.name), command=command, parent=_parent(entry)))
    return found


def _command(words: list[str]) -> str | None:
    """Return what follows `forebay` on a command line that runs it."""
    for index, word in enumerate(words[:4]):
        is_module = word == "forebay" and index > 0 and words[index - 1] == "-m"
        is_script = word.endswith("/forebay") and (index == 0 or (index == 1 and "python" in words[0]))
        if is_module or is_script:
            return " ".join(words[index + 1 :])
    return None


def _parent(entry: Path) -> int | None:
    prefix = f"{PARENT_VARIABLE}="
    values = [item.removeprefix(prefix) for item in _fields(entry / "environ") if item.startswith(prefix)]
    return int(values[0]) if values and values[0].isdigit() else None


def _fields(path: Path) -> list[str]:
    try:
        return path.read_bytes().decode("utf-8", errors="replace").rstrip("\0").split("\0")
    except OSError:  # it has ended, or is somebody else's
        return []


def _named(processes: list[ForebayProcess]) -> str:
    named = [f"{process.pid} ({process.command})" for process in processes[:_MAX_NAMED]]
    more = len(processes) - len(named)
    return ", ".join(named) + (f" and {more} more" if more else "")
