import json
import math

import pytest

from forebay.errors import ConfigError
from forebay.telemetry.summary import ComparisonSummary, RunSummary, read_summary, write_summary

KEYS = [
    "busy",
    "goodput",
    "starved",
    "steps",
    "steps_per_s",
    "fresh_tokens_per_s",
    "max_staleness",
    "group_size",
    "step_s",
    "env_s",
    "reward_first",
    "reward_last",
    "staleness_max",
    "staleness_mean",
    "discarded",
    "masked_tokens",
    "compiles_after_warmup",
    "accepted",
    "trained",
    "lost",
    "repeated",
]


def summary_of(**changes):
    values = {key: number for number, key in enumerate(KEYS)}
    return RunSummary(**(values | changes))


def test_the_keys_are_those_that_scripts_rely_on(tmp_path):
    write_summary(tmp_path / "run" / "summary.json", summary_of())
    written = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert list(written) == [*KEYS, "life", "decisions"]
    assert written == {key: number for number, key in enumerate(KEYS)} | {"life": None, "decisions": None}
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["summary.json"]


def test_a_figure_that_is_not_finite_is_null(tmp_path):
    write_summary(tmp_path / "s.json", summary_of(goodput=math.nan, env_s=math.inf, busy=None))
    written = json.loads((tmp_path / "s.json").read_text())
    assert (written["goodput"], written["env_s"], written["busy"]) == (None, None, None)
    assert read_summary(tmp_path / "s.json", RunSummary).goodput is None


def test_a_comparison_nests_both_runs(tmp_path):
    comparison = ComparisonSummary(sync=summary_of(busy=0.1), decoupled=summary_of(busy=0.98))
    write_summary(tmp_path / "s.json", comparison)
    assert json.loads((tmp_path / "s.json").read_text())["decoupled"]["busy"] == 0.98
    assert read_summary(tmp_path / "s.json", ComparisonSummary) == comparison


def test_what_is_no_summary_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"no summary at .* The run has not ended yet"):
        read_summary(tmp_path / "s.json", RunSummary)
    write_summary(tmp_path / "s.json", summary_of())
    with pytest.raises(ConfigError, match="is not a ComparisonSummary"):
        read_summary(tmp_path / "s.json", ComparisonSummary)
