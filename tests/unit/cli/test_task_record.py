from __future__ import annotations

import json
from pathlib import Path

import pytest

from forebay.cli.runs import own_run
from forebay.config import RunConfig, load_config
from forebay.errors import ConfigError


def config(tmp_path: Path, *overrides: str) -> RunConfig:
    tasks = f"environment.calculator.tasks={tmp_path / 'tasks.jsonl'}"
    return load_config(None, [f"run.directory={tmp_path}", "run.name=x", tasks, *overrides])


def write_tasks(tmp_path: Path, count: int, shift: int = 0) -> None:
    lines = [
        json.dumps({"task_id": f"t{i}", "payload": {"expression": f"{i}+{1 + shift}"}}) for i in range(count)
    ]
    (tmp_path / "tasks.jsonl").write_text("\n".join(lines))


@pytest.mark.parametrize(("count", "shift"), [(30, 0), (50, 0), (40, 1)])
def test_c61_another_data_set_at_resume_is_refused_with_both_sizes(
    tmp_path: Path, count: int, shift: int
) -> None:
    write_tasks(tmp_path, 40)
    own_run(config(tmp_path))[0].close()
    own_run(config(tmp_path))[0].close()
    write_tasks(tmp_path, count, shift)
    with pytest.raises(ConfigError, match="tasks of environment calculator are not those") as caught:
        own_run(config(tmp_path))
    kept = json.loads((tmp_path / "x" / "tasks.json").read_text())["calculator"]
    assert kept["num_train"] + kept["num_held_out"] == 40
    assert f"limit {kept['num_train']} to train on, {kept['num_held_out']} held out" in str(caught.value)
    assert "another run.name" in str(caught.value)
    write_tasks(tmp_path, 40)
    own_run(config(tmp_path))[0].close()


def test_a_damaged_record_says_what_to_do(tmp_path: Path) -> None:
    write_tasks(tmp_path, 40)
    own_run(config(tmp_path))[0].close()
    (tmp_path / "x" / "tasks.json").write_text("{")
    with pytest.raises(ConfigError, match=r"tasks\.json is damaged.*Remove it"):
        own_run(config(tmp_path))
