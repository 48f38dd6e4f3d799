"""kill -9 while a checkpoint is written in the background: the older one is whole, or the new one is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from forebay.learner.checkpoint import Checkpointer
from forebay.learner.checkpoint_manifest import CheckpointCursor
from forebay.telemetry.faults import PLAN_VARIABLE
from forebay.trajectory import PolicyVersion

ROOT = Path(__file__).parents[2]


def state_of(step: int) -> dict[str, np.ndarray]:
    return {"w": np.full((64, 64), step, np.float32), "step": np.int32(step)}


def save(path: Path, step: int) -> None:
    checkpointer = Checkpointer(path, durability="os", background=True)
    checkpointer.save(state_of(step), CheckpointCursor(run_id="run", version=PolicyVersion(0, step)))
    checkpointer.close()


@pytest.mark.parametrize(
    ("point", "survives"),
    [("checkpoint_writing", 1), ("checkpoint_written", 1), ("checkpoint_installed", 2)],
)
def test_c57_killed_while_writing_in_the_background(tmp_path: Path, point: str, survives: int) -> None:
    save(tmp_path / "checkpoints", 1)
    plan = tmp_path / "plan"
    plan.write_text(f"{point} 2")
    killed = subprocess.run(
        [sys.executable, "-m", "tests.system.test_checkpoint_kill", str(tmp_path / "checkpoints")],
        cwd=ROOT,
        env=os.environ | {PLAN_VARIABLE: str(plan), "JAX_PLATFORMS": "cpu"},
        timeout=120,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    restored = Checkpointer(tmp_path / "checkpoints").restore_newest(state_of(0))
    assert restored is not None
    assert (restored.cursor.version.version, restored.skipped) == (survives, ())
    assert np.array_equal(restored.state["w"], state_of(survives)["w"])


if __name__ == "__main__":
    save(Path(sys.argv[1]), 2)
