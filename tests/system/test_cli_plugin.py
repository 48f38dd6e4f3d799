"""A user's own environment and tasks through every command, and a run that is interrupted and orphaned."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import ml_dtypes
import msgspec
import numpy as np
import psutil
import pytest

from forebay.chat import Chat
from forebay.config import stored_config
from forebay.learner.checkpoint_manifest import read_manifest, write_manifest
from forebay.learner.run_directory import read_run_manifest
from forebay.models.checkpoint_io import load_model, read_tensors
from forebay.telemetry.summary import RunSummary, read_summary
from forebay.trajectory import PolicyVersion
from forebay.weights.reader import WeightReader
from tests.system.configs import SMALL_TOML

pytestmark = pytest.mark.timeout(300)
_HANG_S = 120.0
ENVIRONMENT = '''
from forebay.envs.protocol import Message, Observation, Outcome


class Echo:
    """The more often the answer holds the asked letter, the better."""

    def __init__(self, *, bonus=0.0):
        self.bonus = bonus

    async def reset(self, task):
        self.letter = task.payload["letter"]
        return Observation((Message("user", self.letter),))

    async def step(self, action):
        reward = action.text.count(self.letter) / 8 + self.bonus
        return Outcome(reward=reward, terminated=True, metrics={"letters": len(action.text)})

    async def close(self):
        pass
'''
CONFIG = f"""
{SMALL_TOML}
max_turn_tokens = 8

[run]
name = "mine"
seed = 3

[environment.echo]
entrypoint = "my_environment:Echo"
kwargs = {{ bonus = 0.125 }}
tasks = "tasks.jsonl"
holdout_tasks = "held_out.jsonl"

[staleness]
max_staleness = 2

[learner]
steps = 3
checkpoint_every = 2
"""


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a user's environment, tasks and configuration."""
    path = tmp_path_factory.mktemp("workplace")
    (path / "my_environment.py").write_text(ENVIRONMENT)
    (path / "run.toml").write_text(CONFIG)
    for name, letters in (("tasks", "abcdef"), ("held_out", "xyz")):
        lines = [json.dumps({"task_id": letter, "payload": {"letter": letter}}) for letter in letters]
        (path / f"{name}.jsonl").write_text("\n".join(lines))
    return path


def start(workplace: Path, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    environ = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    return subprocess.Popen(
        [sys.executable, "-m", "forebay", *arguments],
        cwd=workplace,
        env=environ,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )


def forebay(workplace: Path, *arguments: str, code: int = 0) -> tuple[str, str]:
    """Run a command to its end and return what it printed."""
    process = start(workplace, *arguments)
    out, err = process.communicate(timeout=_HANG_S)
    assert process.returncode == code, (out, err)
    return out, err


def wait_for_step(process: subprocess.Popen[str], run: Path, step: int) -> None:
    """Wait until a run has trained a step."""
    deadline_s = time.monotonic() + _HANG_S
    while newest_step(run) < step:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


def newest_step(run: Path) -> int:
    lines = (run / "metrics.jsonl").read_text().splitlines() if (run / "metrics.jsonl").exists() else []
    return json.loads(lines[-1])["step"] if lines and lines[-1].endswith("}") else 0


def saved_step(run: Path) -> int:
    return max(int(path.name.removeprefix("step_")) for path in (run / "checkpoints").glob("step_*"))


def test_an_own_environment_is_trained_exported_evaluated_and_trained_on(workplace: Path) -> None:
    out, err = forebay(workplace, "train", "run.toml")
    run = workplace / "runs" / "mine"
    assert f"starting {run}, which compiles first; logs in {run / 'logs'}" in err
    assert "step 3/3" in err
    assert "3 steps; learner busy" in out
    assert "12 accepted, 12 trained, 0 discarded, 0 lost, 0 repeated" in out
    assert "forebay export runs/mine" in out
    summary = read_summary(run / "summary.json", RunSummary)
    assert (summary.steps, summary.lost, summary.repeated, summary.compiles_after_warmup) == (3, 0, 0, 0)
    assert summary.reward_first is not None and summary.reward_first >= 0.125
    check_export(workplace, run)
    out, _ = forebay(workplace, "eval", "runs/mine", "--num-tasks", "2")
    assert "version 3: reward 0." in out and "on 2 held-out tasks" in out
    check_best(workplace, run)
    out, _ = forebay(workplace, "store", "verify", "runs/mine")
    assert "0 trajectories lost" in out


def check_best(workplace: Path, run: Path) -> None:
    """Let an older checkpoint be the one with the best evaluation, and export and evaluate it."""
    checkpoint = run / "checkpoints" / "step_2"
    best = msgspec.structs.replace(read_manifest(checkpoint), metric=0.9)
    write_manifest(checkpoint, best, fsync=False)
    out, _ = forebay(workplace, "export", "runs/mine", "--to", "best", "--best")
    assert out == "version 2 (incarnation 0) written to best\n"
    (published,) = WeightReader(run / "weights").versions()[-2:-1]
    assert published == PolicyVersion(0, 2)
    _, second = WeightReader(run / "weights").load(published)
    exported = read_tensors(workplace / "best")
    assert all(np.array_equal(exported[name], second[name]) for name in second)
    before = (run / "eval.jsonl").read_text()
    out, _ = forebay(workplace, "eval", "runs/mine", "--best", "--num-tasks", "2")
    assert "version 2: reward 0." in out and "on 2 held-out tasks" in out
    assert (run / "eval.jsonl").read_text() == before


def check_export(workplace: Path, run: Path) -> None:
    """Export in both types, and compare with what was published."""
    version, published = WeightReader(run / "weights").load(None)
    assert version == PolicyVersion(0, 3)
    forebay(workplace, "export", "runs/mine", "--to", "hf")
    exported = read_tensors(workplace / "hf")
    assert exported.keys() == published.keys()
    assert all(np.array_equal(exported[name], published[name]) for name in published)
    assert Chat.load(workplace / "hf").fingerprint == Chat.load(run / "model").fingerprint
    config, _ = load_model(workplace / "hf")
    assert (config.num_layers, config.hidden_size) == (1, 16)
    forebay(workplace, "export", "runs/mine", "--to", "half", "--dtype", "bfloat16")
    assert json.loads((workplace / "half" / "config.json").read_text())["torch_dtype"] == "bfloat16"
    rounded = read_tensors(workplace / "half")
    assert {tensor.dtype for tensor in rounded.values()} == {np.dtype(ml_dtypes.bfloat16)}
    name = "model.embed_tokens.weight"
    assert np.array_equal(rounded[name], published[name].astype(ml_dtypes.bfloat16))


def test_a_run_from_an_export_is_orphaned_resumed_and_interrupted(workplace: Path) -> None:
    run = workplace / "runs" / "second"
    endless = (
        "train", "run.toml", "model.path=half", "run.name=second", "learner.steps=100000",
        "optimizer.learning_rate=1e-9",  # however many steps it takes meanwhile, the weights stay
    )  # fmt: skip
    process = start(workplace, *endless, start_new_session=True)
    wait_for_step(process, run, 3)
    _, err = forebay(workplace, *endless, code=2)
    assert err.startswith("error: ") and f"process {process.pid}" in err
    check_begins_with(run, workplace / "half")
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) >= 3
    process.kill()
    _, alive = psutil.wait_procs(children, timeout=_HANG_S)
    assert alive == []
    process.communicate(timeout=_HANG_S)

    process = start(workplace, *endless, "learner.checkpoint_every=3")
    wait_for_step(process, run, newest_step(run) + 1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=_HANG_S)
    assert (process.returncode, saved_step(run)) == (130, newest_step(run))
    assert "the same command goes on" in err
    steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert set(range(1, steps[-1] + 1)) <= set(steps)
    kept = stored_config(read_run_manifest(run).config, run / "manifest.json")
    assert kept.learner.checkpoint_every == 3
    forebay(workplace, "store", "verify", "runs/second")


def check_begins_with(run: Path, model: Path) -> None:
    """Check that the run's model has the shape of the one that it began with, some tiny steps away."""
    given = read_tensors(model)
    _, newest = WeightReader(run / "weights").load(None)
    assert newest.keys() == given.keys()
    for name, tensor in given.items():
        np.testing.assert_allclose(newest[name], tensor.astype(np.float32), atol=1e-3)
