from __future__ import annotations

from forebay.clock import ManualClock
from forebay.report.actor_logs import ActorLogs
from forebay.report.decision_panel import decision_panel, decisions_of, sentence_of, with_decisions
from forebay.report.load import load_run
from forebay.telemetry.metrics import MetricsWriter
from forebay.telemetry.summary import EpisodeDecisions, RunSummary
from tests.unit.report.runs import SUMMARY, line, make_run

TOLD = {"episodes_allowed.calc": 48.0, "decisions.calc.more": 2, "decisions.calc.refused": 5}


def test_decisions_are_counted_by_environment_and_kind_the_most_frequent_first() -> None:
    logs = ActorLogs(
        counters={"decisions.a.b.more": 2, "decisions.a.b.held": 5, "decisions.c.more": 1, "claimed": 9},
        allowed={"a.b": 56.0},
    )
    decided = decisions_of(logs)
    assert decided == {
        "a.b": EpisodeDecisions(allowed=56.0, counts={"held": 5, "more": 2}),
        "c": EpisodeDecisions(allowed=None, counts={"more": 1}),
    }
    assert sentence_of("a.b", decided["a.b"]) == "`a.b`: 56 episodes at last; 7 decisions: 5 held, 2 more"
    assert sentence_of("c", decided["c"]) == "`c`: not recorded; 1 decisions: 1 more"


def test_a_fixed_number_is_told_from_one_that_was_found(tmp_path) -> None:
    clock = ManualClock(1000.0)
    with MetricsWriter(tmp_path / "actor-0.jsonl", clock) as writer:
        writer.write(0, {"claimed": 1})
    summary = RunSummary(**SUMMARY)
    assert with_decisions(summary, tmp_path) == summary
    with MetricsWriter(tmp_path / "actor-1.jsonl", clock) as writer:
        writer.write(0, TOLD)
    assert with_decisions(summary, tmp_path).decisions == {
        "calc": EpisodeDecisions(allowed=48.0, counts={"refused": 5, "more": 2})
    }


def test_the_panel_is_there_only_if_something_was_decided(tmp_path) -> None:
    fixed = load_run(make_run(tmp_path / "fixed", [line()], actors=[{"claimed": 1}]))
    found = load_run(make_run(tmp_path / "found", [line()], actors=[TOLD]))
    assert decision_panel([fixed]) is None
    panel = decision_panel([fixed, found])
    assert panel is not None
    assert [part.text for part in panel.parts[:2]] == [
        "fixed: the number of episodes in flight was fixed.",
        "found: `calc`: 48 episodes at last; 7 decisions: 5 refused, 2 more.",
    ]
    table = panel.parts[2]
    assert table.headers == ("environment", "allowed", "more", "refused")
    assert [cell.text for cell in table.rows[0]] == ["calc", "48", "2", "5"]
