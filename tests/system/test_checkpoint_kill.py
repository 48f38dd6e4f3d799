"""kill -9 while a checkpoint is written in the background: the older one is whole, or the new one is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forebay.learner.bucket_client import BucketClient
from forebay.learner.checkpoint import Checkpointer
from forebay.learner.checkpoint_bucket import BucketShelf
from forebay.learner.checkpoint_manifest import CheckpointCursor
from forebay.learner.checkpoint_shelf import Shelf
from forebay.telemetry.faults import PLAN_VARIABLE
from forebay.trajectory import PolicyVersion
from tests.bucket_server import make_bucket, needs_buckets

ROOT = Path(__file__).parents[2]


def state_of(step: int) -> dict[str, np.ndarray]:
    return {"w": np.full((64, 64), step, np.float32), "step": np.int32(step)}


def save(place: Path | Shelf, step: int) -> None:
    checkpointer = Checkpointer(place, durability="os", background=True)
    checkpointer.save(state_of(step), CheckpointCursor(run_id="run", version=PolicyVersion(0, step)))
    checkpointer.close()


@pytest.mark.parametrize(
    ("point", "survives"),
    [("checkpoint_writing", 1), ("checkpoint_written", 1), ("checkpoint_installed", 2)],
)
def test_c57_killed_while_writing_in_the_background(tmp_path: Path, point: str, survives: int) -> None:
    save(tmp_path / "checkpoints", 1)
    killed_while_saving(tmp_path / "checkpoints", tmp_path / "plan", point)
    assert_restored(tmp_path / "checkpoints", survives)


@needs_buckets
def test_c57_killed_while_writing_to_a_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"{make_bucket().use(monkeypatch).url}/run"
    shelf = shelf_at(url)
    save(shelf, 1)
    killed_while_saving(url, tmp_path / "plan", "checkpoint_written")
    assert list(shelf.folders()) == [1]
    assert_restored(shelf, 1)
    save(shelf, 2)
    assert_restored(shelf, 2)


def shelf_at(place: str) -> Any:
    return BucketShelf(BucketClient(place, patience_s=60.0)) if "://" in place else Path(place)


def killed_while_saving(place: Path | str, plan: Path, point: str) -> None:
    plan.write_text(f"{point} 2")
    killed = subprocess.run(
        [sys.executable, "-m", "tests.system.test_checkpoint_kill", str(place)],
        cwd=ROOT,
        env=os.environ | {PLAN_VARIABLE: str(plan), "JAX_PLATFORMS": "cpu"},
        timeout=120,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL


def assert_restored(place: Path | Shelf, step: int) -> None:
    restored = Checkpointer(place).restore_newest(state_of(0))
    assert restored is not None
    assert (restored.cursor.version.version, restored.skipped) == (step, ())
    assert np.array_equal(restored.state["w"], state_of(step)["w"])


if __name__ == "__main__":
    save(shelf_at(sys.argv[1]), 2)
