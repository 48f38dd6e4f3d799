from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from forebay.telemetry.faults import PLAN_VARIABLE, fault_point

PROGRAM = """
from forebay.telemetry.faults import fault_point
for step in range(10):
    for point in ("taken", "recorded"):
        print(point, step, flush=True)
        fault_point(point, step)
"""


def run(plan: Path | None) -> subprocess.CompletedProcess[str]:
    without = {name: value for name, value in os.environ.items() if name != PLAN_VARIABLE}
    env = without | ({PLAN_VARIABLE: str(plan)} if plan else {})
    return subprocess.run(
        [sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, check=False, timeout=60
    )


def test_nothing_happens_without_a_plan(tmp_path: Path) -> None:
    assert run(None).returncode == 0
    assert run(tmp_path / "missing").returncode == 0
    fault_point("taken", 0)


def test_the_process_dies_at_the_point_and_step_of_the_plan_once(tmp_path: Path) -> None:
    plan = tmp_path / "plan"
    plan.write_text("recorded 4")
    died = run(plan)
    assert died.returncode == -signal.SIGKILL
    assert died.stdout.splitlines()[-1] == "recorded 4"
    assert not plan.exists()
    assert run(plan).returncode == 0
