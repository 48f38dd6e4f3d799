"""What `forebay init env` writes works at once: its test, the checks, a training, and playing after it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.configs import SHORT

pytestmark = pytest.mark.timeout(300)
_HANG_S = 200.0


def start(directory: Path, *arguments: str, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
    environ = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "PYTHONPATH")}
    return subprocess.Popen(
        [sys.executable, "-m", *arguments],
        cwd=directory,
        env=environ,
        text=True,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def run(directory: Path, *arguments: str) -> str:
    process = start(directory, *arguments)
    out, err = process.communicate(timeout=_HANG_S)
    assert process.returncode == 0, (out, err)
    return out


@pytest.fixture(scope="module")
def maze(tmp_path_factory: pytest.TempPathFactory) -> Path:
    parent = tmp_path_factory.mktemp("newcomer")
    run(parent, "forebay", "init", "env", "maze")
    return parent / "maze"


def test_its_own_test_passes(maze: Path) -> None:
    assert "3 passed" in run(maze, "pytest", "-q")


def test_a_fault_that_is_added_is_found_by_its_own_test(maze: Path, tmp_path: Path) -> None:
    broken = tmp_path / "maze"
    broken.mkdir()
    for name in ("maze.py", "maze.toml", "test_maze.py"):
        (broken / name).write_text((maze / name).read_text().replace("reward=reward,", "reward=str(reward),"))
    process = start(broken, "pytest", "-q", "-k", "contract")
    out, _ = process.communicate(timeout=_HANG_S)
    assert process.returncode == 1
    assert "a reward is str '0.0'" in out and "Return a float" in out


def test_it_trains_and_what_came_out_can_be_watched(maze: Path) -> None:
    assert "maze:Maze: 0 faults, 0 warnings" in run(maze, "forebay", "env", "check", "--config", "maze.toml")
    run(maze, "forebay", "train", "maze.toml", "--dry-run")
    assert "2 steps" in run(maze, "forebay", "train", "maze.toml", *SHORT)
    shown = run(maze, "forebay", "play", "runs/maze", "--task", "number-3")
    assert "task number-3 of maze" in shown and "mean logprob -" in shown and "reward" in shown
    entry = json.loads(
        run(maze, "forebay", "play", "maze.toml", "--run", "runs/maze", "--json", "--seed", "4")
    )
    said = [event for event in entry["events"] if event["type"] == "Said"]
    assert 1 <= len(said) <= 4
    for event in said:
        assert 1 <= len(event["tokens"]) == len(event["logprobs"]) <= 4
        assert all(logprob <= 1e-3 for logprob in event["logprobs"])
    assert entry["finish"] == "terminated" and 0.0 <= entry["reward"] <= 1.0


def test_ctrl_c_ends_a_game_at_once_with_130(maze: Path) -> None:
    process = start(maze, "forebay", "play", "maze.toml", stdin=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("0\n")
    process.stdin.flush()
    shown = ""
    while "environment" not in shown:
        shown += process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert process.wait(_HANG_S) == 130
    out, err = process.communicate(timeout=_HANG_S)
    assert "Traceback" not in out + err
