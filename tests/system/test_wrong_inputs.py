"""What goes wrong with a real run, and the one clear line that says so: environments, interrupts, damage."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from forebay.telemetry.metrics import read_metrics
from forebay.telemetry.summary import RunSummary, read_summary
from tests.system.configs import SMALL_TOML

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


class Gated(Echo):
    async def reset(self, task):
        while Path("closed").exists():
            await asyncio.sleep(0.05)
        return await super().reset(task)


class HangsInReset(Echo):
    async def reset(self, task):
        await asyncio.sleep(3600.0)


class TextReward(Echo):
    reward = "1.0"
"""
CONFIG = f"""
{SMALL_TOML}
max_turn_tokens = 4

[environment.mine]
entrypoint = "wrong_environments:Echo"
num_tasks = 20
step_timeout_s = 1.0

[learner]
steps = 3
checkpoint_every = 1
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
        self._err = Path(tempfile.mkstemp(dir=workplace, prefix="stderr-")[1])
        with self._err.open("w") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "forebay", *arguments],
                cwd=workplace,
                env=inherited | environ,
                text=True,
                stdout=subprocess.PIPE,
                stderr=err,
            )

    def said(self) -> str:
        """Return what it has written to stderr so far."""
        return self._err.read_text()

    def end(self) -> tuple[int, str, str]:
        out, _ = self.process.communicate(timeout=_HANG_S)
        return self.process.returncode, out, self.said()

    def wait_until(self, reached: Callable[[], bool]) -> None:
        """Wait for something that stays true once it is."""
        deadline_s = time.monotonic() + _HANG_S
        while not reached():
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < deadline_s, self.said()
            time.sleep(0.05)

    def children(self) -> dict[str, psutil.Process]:
        """Return the processes that it started, by their command."""
        return {child.cmdline()[3]: child for child in psutil.Process(self.process.pid).children()}


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
    assert last.startswith("error: learner: nothing moved (got ")
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
    gated = ("train", "run.toml", "environment.mine.entrypoint=wrong_environments:Gated")
    (workplace / "closed").touch()
    first = started(*gated)
    run = workplace / "runs" / "run"
    first.wait_until((run / "weights" / "latest").exists)  # they are there before anything is compiled
    first.process.kill()
    first.end()
    assert not any((run / "checkpoints").iterdir())
    (workplace / "closed").unlink()
    code, out, err = started(*gated).end()
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
    # The learner alone: what else a training starts has nothing to say about it.
    code, _, err = started("learn", "runs/wider").end()
    last = err.splitlines()[-1]
    assert code == 4 and last.startswith("error: ") and "saved by another model" in last, err


def test_a_second_interrupt_ends_at_once_and_the_next_start_resumes(started: Any, workplace: Path) -> None:
    run = workplace / "runs" / "run"
    endless = ("train", "run.toml", "learner.steps=100000")
    first = started(*endless, f"launch.stop_grace_s={10 * _HANG_S}")
    # Which checkpoints there are changes, that there is one does not.
    first.wait_until(lambda: any((run / "checkpoints").glob("step_*/manifest.json")))
    first.wait_until(lambda: "/100000  " in first.said())
    first.children()["learn"].suspend()  # it would end by itself, and so soon that nobody could hurry it
    first.process.send_signal(signal.SIGINT)
    first.wait_until(lambda: "stopping: learner ends its step and saves" in first.said())
    first.process.send_signal(signal.SIGINT)
    code, _, err = first.end()
    assert code == 130
    assert "(its last steps took " in err and "before it had saved its state, as asked" in err
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
