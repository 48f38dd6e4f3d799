from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from forebay.cli.comparison import compare, describe
from forebay.cli.runs import own_run
from forebay.config import load_config
from forebay.errors import ConfigError, RunLockedError
from forebay.telemetry.summary import ComparisonSummary
from tests.unit.cli.test_train import SUMMARY


def test_both_runs_are_shown_side_by_side(tmp_path: Path) -> None:
    sync = msgspec.structs.replace(SUMMARY, busy=0.126, max_staleness=0, env_s=None)
    lines = describe(ComparisonSummary(sync=sync, decoupled=SUMMARY), tmp_path).splitlines()
    busy = next(line for line in lines if "learner computing" in line)
    assert busy.split()[-4:] == ["12.6%", "│", "97.4%", "│"]
    environment = next(line for line in lines if "environment step" in line)
    assert environment.split()[-4:] == ["-", "│", "1.00", "│"]
    assert max(map(len, lines[:-1])) <= 78
    assert str(tmp_path / "summary.json") in lines[-1]


def test_bad_settings_and_strange_files_leave_an_earlier_comparison_alone(tmp_path: Path) -> None:
    (tmp_path / "sync").mkdir()
    (tmp_path / "summary.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"learner\.steps"):
        compare(tmp_path, 5.0, 5.0, ["learner.stps=3"])
    assert (tmp_path / "summary.json").exists()
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(ConfigError, match=r"holds something else: thesis\.tex"):
        compare(tmp_path, 5.0, 5.0)
    assert (tmp_path / "sync").exists()


def test_a_comparison_that_is_going_on_keeps_its_files(tmp_path: Path) -> None:
    directory, _ = own_run(load_config(None), tmp_path / "sync")
    with directory, pytest.raises(RunLockedError):
        compare(tmp_path, 5.0, 5.0)
    assert (tmp_path / "sync" / "manifest.json").exists()
