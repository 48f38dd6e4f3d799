from __future__ import annotations

import fcntl
import sys
import time
from pathlib import Path

import pytest

from forebay.launch import ProcessSpec
from forebay.launch.child import Child


def run(code: str, log: Path, inherited: tuple[int, ...] = ()) -> tuple[Child, int]:
    child = Child(ProcessSpec(name="learner", argv=(sys.executable, "-c", code)), log, inherited)
    child.start(0.0)
    assert child.process is not None
    return child, child.process.wait(timeout=60)


def test_an_error_line_is_the_cause_and_what_follows_it_is_not(tmp_path: Path) -> None:
    child, code = run(
        "print('error: no model directory x. Check it.'); print('bye'); exit(2)", tmp_path / "log"
    )
    assert child.error() == "no model directory x. Check it."
    assert child.cause(code) == "learner exited with code 2: no model directory x. Check it."
    assert (tmp_path / "log").read_text().splitlines()[-1] == "bye"


def test_an_unexpected_exception_keeps_its_whole_traceback(tmp_path: Path) -> None:
    child, code = run("print('noise')\ndef f(): raise KeyError('tool')\nf()", tmp_path / "log")
    assert child.error() is None
    cause = child.cause(code)
    assert cause.startswith("learner exited with code 1: Traceback (most recent call last):")
    assert "noise" not in cause and "in f" in cause and cause.endswith("KeyError: 'tool'")


def test_the_last_output_is_not_why_a_process_was_killed_from_outside(tmp_path: Path) -> None:
    child, code = run(
        "import os; print('[Gloo] connected', flush=True); os.kill(os.getpid(), 9)", tmp_path / "log"
    )
    assert (
        child.cause(code) == "learner was killed by SIGKILL, by the system if memory ran out: dmesg says so"
    )


def test_the_cause_is_that_of_the_last_life(tmp_path: Path) -> None:
    child, _ = run("raise KeyError('first')", tmp_path / "log")
    child.spec = ProcessSpec(name="learner", argv=(sys.executable, "-c", "raise SystemExit('second')"))
    child.start(1.0)
    assert child.process is not None
    assert child.cause(child.process.wait(timeout=60)) == "learner exited with code 1: second"


@pytest.mark.parametrize("log", ["", "missing/log"], ids=["directory", "missing"])
def test_output_is_read_to_the_end_although_its_log_cannot_be_written(tmp_path: Path, log: str) -> None:
    child, code = run("print('x' * 200_000); print('error: done')", tmp_path / log)
    assert (code, child.error()) == (0, "done")


def test_the_run_stays_locked_as_long_as_a_process_lives(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with path.open("w") as lock, path.open() as other:
        fcntl.flock(lock, fcntl.LOCK_EX)
        argv = (sys.executable, "-c", "import time; time.sleep(600)")
        child = Child(ProcessSpec(name="learner", argv=argv), tmp_path / "log", (lock.fileno(),))
        child.start(0.0)
        lock.close()
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        child.stop(60.0)
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_process_that_ignores_the_request_is_killed(tmp_path: Path) -> None:
    code = (
        "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)"
    )
    child = Child(ProcessSpec(name="learner", argv=(sys.executable, "-c", code)), tmp_path / "log")
    child.start(0.0)
    while not (tmp_path / "log").exists():
        time.sleep(0.01)
    child.stop(0.2)
    assert child.process is not None and child.process.returncode == -9
