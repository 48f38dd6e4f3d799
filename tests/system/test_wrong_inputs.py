"""What goes wrong with a real run, and the one clear line that says so: environments, interrupts, damage."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forebay.telemetry.metrics import read_metrics
from forebay.telemetry.summary import RunSummary, read_summary

pytestmark = pytest.mark.timeout(300)
_HANG_S = 120.0
ENVIRONMENT = """
import asyncio
from pathlib import Path

from forebay.envs.protocol import Message, Observation, Outcome


class Echo:
    reward = 1.0

    async def reset(self, task):
        return Observation((Message("user", "a"),))

    async def step(self, action):
        return Outcome(reward=self.reward, terminated=True)

    async def close(self):
        pass

    @staticmethod
    def generate_tasks(num_tasks, seed):
        return ({"task_id": f"t{i}", "payload": {}} for i in range(num_tasks))


class HangsInReset(Echo):
    async def reset(self, task):
        await asyncio.sleep(3600.0)


class TextReward(Echo):
    reward = "1.0"
"""
CONFIG = """
[model]
hidden_size = 16
intermediate_size = 32
num_layers = 1
num_heads = 2
num_kv_heads = 1
max_position = 64

[environment.mine]
entrypoint = "wrong_environments:Echo"
num_tasks = 20
step_timeout_s = 1.0

[batching]
groups = 2
group_size = 2
max_length = 32
rows = 2
max_programs = 1

[learner]
steps = 3
checkpoint_every = 1

[generator]
port = 0
context = 32
slots = 4
prefill_chunks = [16]
parked_episodes = 8

[actors]
episodes_per_process = 8
max_turn_tokens = 4
"""


@pytest.fixture
def workplace(tmp_path: Path) -> Path:
    (tmp_path / "wrong_environments.py").write_text(ENVIRONMENT)
    (tmp_path / "run.toml").write_text(CONFIG)
    return tmp_path


class Started:
    """A `forebay` command in a process of its own."""

    def __init__(self, workplace: Path, *arguments: str, **environ: str) -> None:
        inherited = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "forebay", *arguments],
            cwd=workplace,
            env=inherited | environ,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=_HANG_S)
        return self.process.returncode, out, err

    def wait_for(self, what: Path) -> None:
        """Wait until a file is there and not empty."""
        deadline_s = time.monotonic() + _HANG_S
        while not (what.exists() and what.stat().st_size):
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline_s, what
            time.sleep(0.05)


@pytest.fixture
def started(workplace: Path) -> Iterator[Any]:
    """Start commands in the workplace; whatever still runs at the end is killed."""
    commands: list[Started] = []

    def start(*arguments: str, **environ: str) -> Started:
        commands.append(Started(workplace, *arguments, **environ))
        return commands[-1]

    yield start
    for command in commands:
        if command.process.poll() is None:
            command.process.kill()
            command.process.communicate()


def test_environments_that_never_work_are_named_while_and_when_the_run_ends(
    started: Any, workplace: Path
) -> None:
    text = "environment.texts.entrypoint=wrong_environments:TextReward"
    hang = (
        "environment.mine.entrypoint=wrong_environments:HangsInReset",
        "environment.mine.step_timeout_s=0.3",
    )
    code, _, err = started("train", "run.toml", text, *hang, "learner.no_progress_s=12.0").end()
    assert code == 3
    *during, last = err.splitlines()
    assert last.startswith("error: learner: nothing moved (got 12.")
    for piece in (
        "environment mine was still in reset when the deadline of each of its",
        "forebay env check wrong_environments:HangsInReset",
        "environment texts failed",
        "a reward must be a number, got str '1.0'",
        "forebay env check wrong_environments:TextReward",
    ):
        assert piece in last and any(piece in line for line in during), err
    assert "Traceback" not in err


def test_a_run_killed_before_its_first_step_goes_on_and_lends_its_checkpoints_to_nobody(
    started: Any, workplace: Path
) -> None:
    first = started("train", "run.toml")
    run = workplace / "runs" / "run"
    first.wait_for(run / "weights" / "latest")  # the first weights are there before anything is compiled
    first.process.kill()
    first.end()
    assert not any((run / "checkpoints").iterdir())
    code, out, err = started("train", "run.toml").end()
    assert code == 0, err
    assert f"resuming {run}" in err and "3 steps" in out
    assert "0 lost, 0 repeated" in out
    refuse_checkpoints_of_another_architecture(started, run)


def refuse_checkpoints_of_another_architecture(started: Any, run: Path) -> None:
    """Put the checkpoints of a run into a wider one, which must not take them for its own."""
    wider = ("train", "run.toml", "run.name=wider", "model.hidden_size=32")
    assert started(*wider, "--prepare").end()[0] == 0
    target = run.with_name("wider") / "checkpoints"
    target.rmdir()
    (run / "checkpoints").rename(target)
    code, _, err = started(*wider, "launch.max_restarts=0").end()
    last = err.splitlines()[-1]
    assert code == 4 and last.startswith("error: ") and "saved by another model" in last, err


def test_a_second_interrupt_ends_at_once_and_the_next_start_resumes(started: Any, workplace: Path) -> None:
    run = workplace / "runs" / "run"
    endless = ("train", "run.toml", "learner.steps=100000")
    first = started(*endless, "launch.stop_grace_s=100.0")
    first.wait_for(run / "metrics.jsonl")
    first.wait_for(run / "checkpoints" / "step_1" / "manifest.json")
    first.process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    first.process.send_signal(signal.SIGINT)
    asked_s = time.monotonic()
    code, _, err = first.end()
    assert code == 130 and time.monotonic() - asked_s < 20.0
    assert "the same command goes on with runs/run" in err and "Traceback" not in err
    damage(run)
    before = max(record["step"] for record in read_metrics(run / "metrics.jsonl"))
    code, out, err = started("train", "run.toml", f"learner.steps={before + 2}").end()
    assert code == 0, err
    assert f"{before + 2} steps" in out and "Traceback" not in err
    summary = read_summary(run / "summary.json", RunSummary)
    assert (summary.lost, summary.repeated) == (0, 0)
    steps = [record["step"] for record in read_metrics(run / "metrics.jsonl")]
    assert steps[-1] == before + 2


def damage(run: Path) -> None:
    """Cut the last line of the metrics and of the evaluations, as a full disk does."""
    for name in ("metrics.jsonl", "eval.jsonl"):
        with (run / name).open("ab") as file:
            file.write(b'{"step":99,"reward":0.')


def test_two_versions_of_the_package_are_refused_before_anything_is_made(
    started: Any, workplace: Path
) -> None:
    package = workplace / "elsewhere" / "forebay"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text('__version__ = "0.0.1"\n')
    program = "import sys; sys.path.append('elsewhere'); from forebay.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "train", "run.toml"],
        cwd=workplace,
        capture_output=True,
        text=True,
        timeout=_HANG_S,
    )
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert line.startswith("error: two versions of the package: ") and f"0.0.1 in {package}" in line
    assert not (workplace / "runs").exists()
