"""A person plays, through a pipe; models play in tests/system."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from forebay.cli.playing import Wanted, choose_task, play_episode, seated
from forebay.cli.runs import own_run
from forebay.cli.transcript import Answered, Event, Posed
from forebay.config import RunConfig, load_config
from forebay.errors import ConfigError, EnvironmentFailure
from forebay.trajectory import Trajectory

MISBEHAVING = "tests.unit.envs.misbehaving"
CONFIG = """\
[environment.sums]
entrypoint = "calculator"
num_tasks = 50
tasks_kwargs = { max_operations = 1 }
latency.mean_s = 60.0
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "sums.toml"
    path.write_text(CONFIG)
    return path


def play(
    path: Path, monkeypatch: pytest.MonkeyPatch, *answers: str, task: str | None = None
) -> tuple[list[Event], Trajectory | None]:
    """Play with answers that are there from the beginning."""
    reader, writer = os.pipe()
    os.write(writer, "".join(f"{answer}\n" for answer in answers).encode())
    os.close(writer)
    events: list[Event] = []
    with os.fdopen(reader) as stdin, seated(Wanted(path, None, None, True)) as (config, player):
        monkeypatch.setattr(sys, "stdin", stdin)
        posed = choose_task(config, task, seed=1)
        return events, play_episode(config, player, posed, 1, events.append, lambda: None)


def expression(config: RunConfig) -> str:
    return str(choose_task(config, None, seed=1).payload["expression"])


def test_a_person_plays_an_episode_to_its_end(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    posed = expression(load_config(config))
    events, trajectory = play(config, monkeypatch, f"{posed}=", "nonsense", "#1000000")
    assert trajectory is not None
    assert (trajectory.reward, trajectory.finish) == (0.0, "terminated")
    assert [type(event).__name__ for event in events] == ["Posed", *["Said", "Answered"] * 3]
    first, second = events[0], events[4]
    assert isinstance(first, Posed) and first.messages[0].content == posed
    assert isinstance(second, Answered) and second.messages[0].content == "err"


def test_the_end_of_the_input_leaves(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events, trajectory = play(config, monkeypatch, "1+1=")
    assert trajectory is None
    assert len(events) == 3


def test_the_task_is_the_one_that_is_named(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load_config(config)
    chosen = choose_task(loaded, None, seed=5)
    assert choose_task(loaded, chosen.task_id, seed=9).payload == chosen.payload
    assert choose_task(loaded, chosen.task_id, seed=9).seed == 9
    assert len({choose_task(loaded, None, seed=seed).task_id for seed in range(8)}) > 1
    with pytest.raises(ConfigError, match=f"'{chosen.task_id}x'.* There is {chosen.task_id}, for instance"):
        choose_task(loaded, f"{chosen.task_id}x", seed=0)


def test_an_environment_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "picky.toml"
    path.write_text(f'[environment.picky]\nentrypoint = "{MISBEHAVING}:Picky"\n')
    with pytest.raises(EnvironmentFailure, match=r"picky/play-.*/step raised ValueError: what is that"):
        play(path, monkeypatch, " ")


def test_one_player_is_named_and_must_exist(config: Path, tmp_path: Path) -> None:
    for wanted, message in (
        (Wanted(config, "a", None, True), "more than one player"),
        (Wanted(config, "a", tmp_path, False), "more than one player"),
        (Wanted(config, str(tmp_path / "none"), None, False), "no model directory .*none"),
        (Wanted(config, None, tmp_path / "none", False), "none is not a run directory"),
        (Wanted(tmp_path, None, None, False), "is not a run directory"),
        (Wanted(tmp_path / "none.toml", None, None, False), "no configuration file"),
    ):
        with pytest.raises(ConfigError, match=message), seated(wanted):
            pass


def test_a_configuration_is_played_by_a_person_and_a_run_by_its_weights(config: Path, tmp_path: Path) -> None:
    directory, run = own_run(load_config(config), tmp_path / "run")
    directory.close()
    with seated(Wanted(config, None, None, False)) as (_, player):
        assert (player.name, player.weights) == ("person", None)
    with seated(Wanted(tmp_path / "run", None, None, False)) as (own, player):
        assert own == run.config
        assert player.weights is not None and player.weights.run_id == run.run_id
    with seated(Wanted(tmp_path / "run", None, None, True)) as (_, player):
        assert (player.name, player.chat.fingerprint) == ("person", run.chat.fingerprint)
    with seated(Wanted(config, None, tmp_path / "run", False)) as (_, player):
        assert player.weights is not None and player.weights.run_id == run.run_id
        with pytest.raises(ConfigError, match="has no weights yet"):
            play_episode(load_config(config), player, choose_task(run.config, None, 0), 0, print, print)
