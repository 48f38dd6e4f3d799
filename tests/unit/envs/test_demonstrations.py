from __future__ import annotations

from pathlib import Path

import pytest

from forebay.envs.demonstrations import make_demonstrations, read_demonstrations
from forebay.envs.registry import load_task_sets
from forebay.envs.settings import EnvironmentSettings
from forebay.errors import ConfigError


def test_a_file_of_conversations_is_read_and_a_bad_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "spoken.jsonl"
    good = '{"messages": [{"role": "user", "content": "1+1"}, {"role": "assistant", "content": "#2"}]}'
    path.write_text(f"{good}\n\n{good}\n")
    conversations = list(read_demonstrations(path))
    assert [[m.content for m in messages] for messages in conversations] == [["1+1", "#2"]] * 2
    path.write_text(f'{good}\n{{"messages": [{{"role": "robot", "content": "1"}}]}}\n')
    with pytest.raises(ConfigError, match=r"spoken\.jsonl:2 is not a conversation.*A line looks like"):
        list(read_demonstrations(path))


def test_the_calculator_demonstrates_its_tasks_without_mistakes_if_asked() -> None:
    settings = EnvironmentSettings(name="calculator", num_tasks=20)
    tasks = load_task_sets(settings).train[:5]
    made = list(make_demonstrations(settings, tasks, noise=0.0, seed=1))
    assert len(made) == 5
    assert all(messages[0].role == "user" and messages[-1].content.startswith("#") for messages in made)
    assert list(make_demonstrations(settings, tasks, noise=0.9, seed=1)) != made


def test_an_environment_that_cannot_demonstrate_says_what_to_do() -> None:
    settings = EnvironmentSettings(entrypoint="tests.unit.envs.plugin_for_tests:Guess")
    with pytest.raises(ConfigError, match=r"supervised\.demonstrations"):
        list(make_demonstrations(settings, (), noise=0.0, seed=0))
