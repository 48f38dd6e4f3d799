from __future__ import annotations

import sys
from pathlib import Path

import pytest

from forebay.clock import SystemClock
from forebay.errors import PeerFailedError
from forebay.launch import LaunchSettings, ProcessSpec, Supervisor, share_of
from forebay.launch.gang import to_blame

FAST = LaunchSettings(restart_backoff_s=0.01, gang_grace_s=1.0, max_restarts=2)
SLEEP = "import time; time.sleep(600)"


def member(number: int, code: str) -> ProcessSpec:
    name = "learner" if number == 0 else f"learner-{number}"
    return ProcessSpec(name=name, argv=(sys.executable, "-c", code), leads=number == 0, gang="learner")


def supervise(codes: list[str], logs: Path) -> tuple[Supervisor, list[str], int]:
    said: list[str] = []
    specs = [member(number, code) for number, code in enumerate(codes)]
    supervisor = Supervisor(specs, logs, FAST, SystemClock(), report=said.append)
    return supervisor, said, supervisor.run()


def first_time(marker: Path, first: str, then: str) -> str:
    return f"import os, pathlib, signal, time\nm = pathlib.Path({str(marker)!r})\nif not m.exists():\n" + (
        f"    m.touch(); {first}\nelse:\n    {then}"
    )


def test_a_member_that_is_killed_takes_the_gang_down_and_all_are_started_again(tmp_path: Path) -> None:
    started = tmp_path / "started"
    leader = f"import time\nopen({str(started)!r}, 'a').write('x')\n" + first_time(
        tmp_path / "leader", "time.sleep(600)", "time.sleep(0.2)"
    )
    killed = first_time(tmp_path / "killed", "os.kill(os.getpid(), signal.SIGKILL)", "time.sleep(600)")
    supervisor, said, code = supervise([leader, killed], tmp_path)
    assert (code, supervisor.num_restarts) == (0, 1)
    assert started.read_text() == "xx"  # process 0 slept on, and was started again with the other
    assert "learner-1 was killed by SIGKILL" in said[0]
    assert "starting all 2 processes of the learner again" in said[0]


def test_the_cause_is_what_happened_first_and_not_that_somebody_is_gone(tmp_path: Path) -> None:
    noticed = "import sys; sys.stderr.write('error: learner process 1 is gone\\n'); raise SystemExit(4)"
    broken = "raise RuntimeError('the chip is on fire')"
    with pytest.raises(PeerFailedError, match="learner-1 failed 3 times in a row") as caught:
        supervise([noticed, broken], tmp_path)
    assert "the chip is on fire" in str(caught.value)


def test_a_member_that_ends_in_order_is_not_missed(tmp_path: Path) -> None:
    supervisor, said, code = supervise(["import time; time.sleep(0.5)", "pass"], tmp_path)
    assert (code, supervisor.num_restarts) == (0, 0)
    assert all("again" not in line for line in said[:-1])


@pytest.mark.parametrize("code", [2, 3])
def test_a_member_with_a_bad_setting_ends_the_run(tmp_path: Path, code: int) -> None:
    supervisor, _, end = supervise([SLEEP, f"raise SystemExit({code})"], tmp_path)
    assert (end, supervisor.num_restarts) == (code, 0)


def test_who_noticed_is_not_to_blame() -> None:
    assert to_blame({"learner": 4, "learner-1": 4, "learner-2": 1}) == "learner-2"
    assert to_blame({"learner": 4, "learner-1": -6, "learner-2": -9}) == "learner-2"
    assert to_blame({"learner": 4, "learner-1": 4}) == "learner"


def test_cores_are_divided_where_there_are_enough() -> None:
    assert [share_of((0, 1, 2, 3, 4), index, 2) for index in range(2)] == [(0, 1), (2, 3, 4)]
    assert share_of((3,), 1, 2) == (3,)
