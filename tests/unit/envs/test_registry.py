from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from forebay.clock import ManualClock
from forebay.envs.calculator import Calculator
from forebay.envs.latency import LatencyEnvironment
from forebay.envs.protocol import Action
from forebay.envs.registry import load_class, load_environment, load_task_sets
from forebay.envs.settings import EnvironmentSettings
from forebay.errors import ConfigError

PLUGIN = "tests.unit.envs.plugin_for_tests"


def settings(**values: object) -> EnvironmentSettings:
    return EnvironmentSettings(**values)  # type: ignore[arg-type]


def test_a_built_in_environment() -> None:
    kind = load_environment(settings(kwargs={"extra_turns": 1}), ManualClock())
    assert kind.name == "calculator"
    assert isinstance(kind.make(0), Calculator)
    assert kind.make(0) is not kind.make(0)


def test_a_users_environment_needs_a_class_and_a_line() -> None:
    async def main() -> float | None:
        mine = settings(entrypoint=f"{PLUGIN}:Guess", kwargs={"most": 7})
        kind = load_environment(mine, ManualClock())
        environment = kind.make(0)
        observation = await environment.reset(load_task_sets(mine).train[0])
        assert observation.messages[0].content == "0 to 7"
        return (await environment.step(Action(text="0"))).reward

    assert asyncio.run(main()) == 1.0


def test_modules_of_the_working_directory_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_own_env.py").write_text(
        "class Mine:\n"
        + "".join(f"    async def {verb}(self, *_): ...\n" for verb in ("reset", "step", "close"))
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["/nowhere"])
    assert load_class("my_own_env:Mine").__name__ == "Mine"


@pytest.mark.parametrize(
    ("entrypoint", "message"),
    [
        ("web", r"no environment is called 'web' \(limit calculator, gymnasium, reasoning-gym, textarena\)"),
        ("no.such.module:Class", "cannot be imported: No module named 'no"),
        (f"{PLUGIN}:Missing", "cannot be imported: .* has no attribute 'Missing'"),
        (f"{PLUGIN}:Incomplete", r"not an environment class \(got no step, close\)"),
    ],
)
def test_what_cannot_be_loaded_is_explained(entrypoint: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_environment(settings(entrypoint=entrypoint), ManualClock())


def test_wrong_keyword_arguments_are_refused_at_once() -> None:
    with pytest.raises(ConfigError, match=r"refuses its kwargs: .*'turns'"):
        load_environment(settings(kwargs={"turns": 3}), ManualClock())


def test_latency_is_seeded_by_the_episode() -> None:
    kind = load_environment(settings(latency={"mean_s": 1.0}), ManualClock())
    first, second = kind.make(1), kind.make(2)
    assert isinstance(first, LatencyEnvironment)
    assert isinstance(second, LatencyEnvironment)
    assert first._delays.delay_s(1) != second._delays.delay_s(1)
    assert first._delays.delay_s(1) == kind.make(1)._delays.delay_s(1)  # type: ignore[attr-defined]


def test_generated_tasks_and_their_share_held_out() -> None:
    sets = load_task_sets(settings(num_tasks=200, holdout_fraction=0.2, tasks_kwargs={"max_operations": 1}))
    assert len(sets.train) + len(sets.held_out) == 200
    assert 20 < len(sets.held_out) < 60
    assert not {t.task_id for t in sets.train} & {t.task_id for t in sets.held_out}
    assert {t.environment for t in sets.train} == {"calculator"}


def test_tasks_and_held_out_tasks_from_files(tmp_path: Path) -> None:
    for name, numbers in (("all", range(5)), ("held", range(3, 8))):
        lines = [json.dumps({"task_id": f"t{i}", "payload": {"expression": f"{i}+1"}}) for i in numbers]
        (tmp_path / name).write_text("\n".join(lines))
    sets = load_task_sets(settings(tasks=str(tmp_path / "all"), holdout_tasks=str(tmp_path / "held")))
    assert [t.task_id for t in sets.train] == ["t0", "t1", "t2"]
    assert [t.task_id for t in sets.held_out] == [f"t{i}" for i in range(3, 8)]


def test_an_environment_without_tasks_is_refused() -> None:
    with pytest.raises(ConfigError, match="has no generate_tasks"):
        load_task_sets(settings(entrypoint=f"{PLUGIN}:Blocking"))
    with pytest.raises(ConfigError, match="no task is left"):
        load_task_sets(settings(num_tasks=1, holdout_fraction=0.9999999))
    with pytest.raises(ConfigError, match="generate_tasks failed"):
        load_task_sets(settings(tasks_kwargs={"wrong": 1}))
