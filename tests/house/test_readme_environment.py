"""The environment that the README shows: it fits on a screen, is configured as shown, and runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from forebay.actors.boundary import FaultBoundary
from forebay.actors.episode import Assignment, EpisodeRunner
from forebay.config import RunConfig, load_config
from forebay.envs.registry import load_environment, load_task_sets
from forebay.trajectory import Sampling, Trajectory
from tests.house.surface import README
from tests.unit.actors.support import CHAT, LoopClock, ScriptedGenerator, run_virtual

MAX_LINES = 30
NAMES = ("guess.py", "guess.toml")


def example(name: str) -> str:
    """Return what the README says a file should hold."""
    fence = re.compile(rf"<!-- example: {re.escape(name)} -->\n```\w+\n(.*?)\n```\n", re.DOTALL)
    found = fence.search(README.read_text())
    assert found, f"the README shows no {name}"
    return found[1] + "\n"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    """The configuration of a reader who saved both files and stands beside them."""
    for name in NAMES:
        (tmp_path / name).write_text(example(name))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return load_config(tmp_path / "guess.toml")


def play(config: RunConfig, guesses: str, number: int) -> Trajectory:
    """Run an episode in which the model guesses one digit a turn."""
    environment = load_environment(config.environment["guess"], LoopClock())
    tasks = load_task_sets(config.environment["guess"]).train
    task = next(task for task in tasks if task.payload["number"] == number)
    said = iter(guesses)

    async def run() -> Trajectory:
        generator = ScriptedGenerator(policy=lambda prompt: next(said))
        runner = EpisodeRunner(
            generator=generator,
            info=await generator.info(),
            chat=CHAT,
            environments={environment.name: environment},
            sampling=Sampling(),
            max_turn_tokens=4,
            clock=LoopClock(),
            boundary=FaultBoundary(1.0),
        )
        name = Assignment(trajectory_id="t", episode_id="e", run_id="r", group_id="g", asked_s=0.0)
        return await runner.run(task, name)

    return run_virtual(run())


def test_example_is_short() -> None:
    assert sum(len(example(name).splitlines()) for name in NAMES) <= MAX_LINES


def test_the_right_guess_pays_one(config: RunConfig) -> None:
    trajectory = play(config, "386", number=6)
    assert (trajectory.reward, trajectory.finish) == (1.0, "terminated")
    assert [step.reward for step in trajectory.steps] == [0.0, 0.0, 1.0]
    text = CHAT.decode(trajectory.sequences[0].tokens)
    assert text == (
        "<bos><user>0 to 9?<end><assistant>3<end><tool>higher<end>"
        "<assistant>8<end><tool>lower<end><assistant>6<end>"
    )


def test_five_wrong_guesses_pay_nothing(config: RunConfig) -> None:
    trajectory = play(config, "00000", number=6)
    assert (trajectory.reward, trajectory.finish) == (0.0, "truncated")
