from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

from forebay.clock import SystemClock
from forebay.launch import ProcessSpec
from forebay.launch.child import Child
from forebay.launch.stopping import stop_all

DEAF = "signal.signal(signal.SIGTERM, signal.SIG_IGN); "
PATIENCE_S = 30.0


def started(directory: Path, *preparations: str) -> list[Child]:
    """Start processes that sleep; return once each is ready to be asked to end."""
    children = []
    for number, preparation in enumerate(preparations):
        ready = directory / f"ready-{number}"
        mark = f"pathlib.Path({str(ready)!r}).touch()"
        code = f"import pathlib, signal, time; {preparation}{mark}; time.sleep(600)"
        spec = ProcessSpec(name=f"p{number}", argv=(sys.executable, "-c", code))
        children.append(Child(spec, directory / f"p{number}.log"))
        children[-1].start(0.0)
    deadline_s = time.monotonic() + PATIENCE_S
    while not all((directory / f"ready-{number}").exists() for number in range(len(preparations))):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    return children


def codes(children: list[Child]) -> list[int | None]:
    return [child.process.poll() if child.process else None for child in children]


def test_who_ends_when_asked_is_not_killed(tmp_path: Path) -> None:
    children = started(tmp_path, "", "")
    assert not stop_all(children, SystemClock(), PATIENCE_S, lambda: None, lambda: False)
    assert codes(children) == [-signal.SIGTERM] * 2


def test_who_does_not_end_is_killed_when_time_is_up_or_at_once_in_a_hurry(tmp_path: Path) -> None:
    for grace_s, hurried in ((0.0, False), (600.0, True)):
        directory = tmp_path / str(hurried)
        directory.mkdir()
        children = started(directory, DEAF)
        assert stop_all(children, SystemClock(), grace_s, lambda: None, lambda hurried=hurried: hurried)
        assert codes(children) == [-signal.SIGKILL]
