from __future__ import annotations

from pathlib import Path

import pytest

from forebay.config import load_config
from forebay.config.changes import changes
from forebay.config.dump import tree_to_toml
from tests.house.sources import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.toml"))


def test_only_what_differs_from_the_defaults_is_named() -> None:
    config = load_config(
        None, ["learner.steps=7", "learner.checkpoint_every=20", "environment.calculator.weight=2.0"]
    )
    assert changes(config) == {"learner": {"steps": 7}, "environment": {"calculator": {"weight": 2.0}}}
    assert changes(load_config(None)) == {}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_changes_load_as_the_same_configuration(
    example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    config = load_config(example)
    (tmp_path / "changes.toml").write_text(tree_to_toml(changes(config)))
    assert load_config(tmp_path / "changes.toml") == config


def test_an_environment_that_is_all_defaults_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(
        "[environment.sums]\n[environment.calculator]\n[environment.other.latency]\nmean_s = 1.0\n"
    )
    config = load_config(path)
    assert changes(config)["environment"] == {
        "sums": {},
        "calculator": {},
        "other": {"latency": {"mean_s": 1.0}},
    }
    path.write_text(tree_to_toml(changes(config)))
    assert load_config(path) == config
