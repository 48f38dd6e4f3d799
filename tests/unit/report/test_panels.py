from __future__ import annotations

import msgspec
import pytest

from forebay.report.columns import rounded, tables_of
from forebay.report.data_panels import environment_panel, staleness_panel
from forebay.report.episode_panels import failures_panel, lengths_panel
from forebay.report.learner_panels import batches_panel, learning_panel, time_panel, use_panel
from forebay.report.life_panels import life_panel
from forebay.report.load import load_run
from forebay.report.overview import comparison_of, configuration_panel, figures_of, head_of
from forebay.report.panels import Bars, Chart, Histogram, Note, Ranges, Strips, Table
from tests.unit.report.runs import CONFIG, line, make_run, new_values

ACTORS = [{"live": 20, "finished.terminated": 9, "failures.calc.environment": 2, "leases_lost": 1}]


@pytest.fixture
def new(tmp_path):
    """A run of today's version of the program."""
    lines = [
        line(3.0, 1.0, **new_values(), **{"store.timeouts": 3, "store.errors.environment": 5})
        for _ in range(4)
    ]
    scores = [{"step": 2, "reward": 0.5, "reward_low": 0.4, "reward_high": 0.6, "num_tasks": 8}]
    return load_run(make_run(tmp_path / "new", lines, summary=True, evaluations=scores, actors=ACTORS))


@pytest.fixture
def old(tmp_path):
    """A run that recorded less, with another limit."""
    config = CONFIG | {"staleness": {"max_staleness": 0, "credit": 1}}
    return load_run(make_run(tmp_path / "old", [line(1.0, 3.0, staleness_max=0)], config=config))


@pytest.fixture
def dead(tmp_path):
    """A run that was killed before its first step."""
    return load_run(make_run(tmp_path / "dead"))


def parts(panel, kind):
    return [part for part in panel.parts if isinstance(part, kind)]


def notes(panel) -> str:
    return " ".join(part.text for part in parts(panel, Note))


def test_strips_of_two_runs_have_one_time_scale(new, old) -> None:
    (strips,) = parts(time_panel([old, new]), Strips)
    assert [(row.name, row.width) for row in strips.rows] == [("old", 0.25), ("new", 1.0)]
    assert strips.rows[1].ticks[-1] == "16 s"
    assert "computing 75.0 %" in strips.rows[1].summary
    table, waits = parts(time_panel([new]), Table)[0], parts(time_panel([new]), Bars)[0]
    assert next(row[0].text for row in table.rows) == "computing"
    assert table.rows[0][1].text == "75.0 % · 12 s"
    assert [segment.label for segment in waits.rows[0].segments] == ["episodes that still run"]


def test_one_run_has_a_color_for_each_line_and_two_have_a_color_each(new, old) -> None:
    (busy, _) = use_panel([tables_of(new)]).parts
    assert [(li.label, li.color, li.dash) for li in busy.lines] == [("busy", 0, 0), ("goodput", 1, 0)]
    assert busy.rows[0] == ("busy", "75.0 %", "75.0 %", "75.0 %", "75.0 %", "75.0 %")
    (busy, _) = use_panel([tables_of(old), tables_of(new)]).parts
    colors = [line.color for line in busy.lines]
    assert (colors[0] == colors[1], colors[2] == colors[3], colors[0] == colors[2]) == (True, True, False)
    assert [li.dash for li in busy.lines] == [0, 1, 0, 1]


def test_evaluations_are_drawn_with_their_interval(new) -> None:
    reward = parts(learning_panel([tables_of(new)]), Chart)[0]
    assert [(li.source, li.low, li.high) for li in reward.lines] == [
        ("batches", None, None), ("evaluations", "low", "high"),
    ]  # fmt: skip
    assert tables_of(new).evaluations["reward"] == [0.5]


def test_staleness_stands_against_its_limit(new, old) -> None:
    (histogram,) = parts(staleness_panel([new], [tables_of(new)]), Histogram)
    assert [(b.label, b.heights, b.is_last) for b in histogram.bins] == [
        ("0", (0.0,), False), ("1", (0.0,), False), ("2", (1.0,), False),
        ("3", (0.0,), False), ("4", (0.0,), True),
    ]  # fmt: skip
    assert histogram.caption == "new: mean 2, limit 4"
    both = staleness_panel([old, new], [tables_of(old), tables_of(new)])
    chart = next(part for part in parts(both, Chart) if part.anchor == "staleness")
    assert [mark.value for mark in chart.marks] == [0.0, 4.0]


def test_many_versions_share_bins(tmp_path) -> None:
    config = CONFIG | {"staleness": {"max_staleness": 99}}
    run = load_run(make_run(tmp_path / "run", [line(**{"fresh_tokens.staleness.98": 200})], config=config))
    (histogram,) = parts(staleness_panel([run], [tables_of(run)]), Histogram)
    assert len(histogram.bins) == 34  # three versions each
    assert (histogram.bins[0].label, histogram.bins[-1].label, histogram.bins[-1].is_last) == (
        "0–2",
        "99",
        True,
    )


def test_the_life_of_a_token_adds_up(new, old) -> None:
    panel = life_panel([old, new])
    (bars,) = parts(panel, Bars)
    assert bars.rows[0].total == "10 s"
    assert sum(segment.share for segment in bars.rows[0].segments) == pytest.approx(1.0)
    assert bars.rows[0].segments[0].value == "4.10 s · 41.0 %"  # with its reset
    assert "not recorded by old" in notes(panel)


def test_latencies_are_told_by_environment(new, old) -> None:
    table = parts(environment_panel([new], [tables_of(new)]), Table)[0]
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["calc, step", "1.00 s", "2.00 s", "3.00 s", "4.00 s"],
        ["calc, episode", "2.00 s", "6.00 s", "8.00 s", "9.00 s"],
    ]
    assert "not recorded" in notes(environment_panel([old], [tables_of(old)]))


def test_lengths_are_told_by_stage(new) -> None:
    panel = lengths_panel([new])
    (ranges,) = parts(panel, Ranges)
    assert [(row.label, row.words, row.p99) for row in ranges.rows] == [
        ("accepted", ("10", "20", "25"), 1.0), ("trained", ("10", "20", "25"), 1.0),
    ]  # fmt: skip
    assert "started: not recorded" in notes(panel)


def test_failures_are_told_by_cause(new) -> None:
    failures, finishes = parts(failures_panel([new]), Table)
    assert {row[0].text: row[1].text for row in failures.rows} == {
        "attempt failed: environment": "5",
        "episode ended by a deadline": "3",
        "episode failed: calc.environment": "2",
        "lease lost": "1",
    }
    assert failures.rows[0][1].share == 1.0
    assert [cell.text for cell in finishes.rows[1]] == ["timeout", "4 · 6.2 %"]


def test_masked_tokens_are_told_by_reason(new) -> None:
    table = parts(batches_panel([new], [tables_of(new)]), Table)[0]
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["trained", "800 · 95.2 %"], ["masked: unscored", "40 · 4.8 %"],
    ]  # fmt: skip


def test_a_critic_and_a_reference_are_drawn_where_there_is_one_and_not_missed_elsewhere(new) -> None:
    few = {"reference_kl", "critic", "value"}
    without = learning_panel([tables_of(new)])
    assert few.isdisjoint(chart.anchor for chart in parts(without, Chart))
    assert "critic" not in notes(without) and "reference" not in notes(without)
    tables = tables_of(new)
    columns = dict.fromkeys(
        ("reference_kl", "value.mean", "value.explained_variance"), tables.batches["reward"]
    )
    having = learning_panel([msgspec.structs.replace(tables, batches={**tables.batches, **columns})])
    assert few.issubset(chart.anchor for chart in parts(having, Chart))


def test_what_a_dead_run_lacks_is_said(dead) -> None:
    tables = [tables_of(dead)]
    for panel in (
        time_panel([dead]), use_panel(tables), learning_panel(tables), staleness_panel([dead], tables),
        life_panel([dead]), environment_panel([dead], tables), lengths_panel([dead]),
        batches_panel([dead], tables),
    ):  # fmt: skip
        assert len(notes(panel)) > 10
        assert parts(panel, Chart) == []
    assert "no batch was trained" in notes(time_panel([dead]))
    assert "Nothing failed" in notes(failures_panel([dead]))


def test_key_figures_are_those_of_the_summary_or_of_the_metrics(new, old, dead) -> None:
    values = {figure.name: figure.values for figure in figures_of([new, old, dead])}
    assert values["Busy"] == ("75.0 %", "25.0 %", "not recorded")
    assert values["Reward"] == ("0.250 → 0.500", "0.500 → 0.500", "not recorded")
    assert values["Held-out reward"] == ("0.500", "not recorded", "not recorded")
    assert values["Staleness"] == ("2 / 4", "2 / 0", "not recorded / not recorded")
    assert values["Lost / repeated"] == ("0 / 0", "not recorded", "not recorded")
    assert values["Steps"] == ("4 in 16 s", "1 in 4.00 s", "0 in 0 s")


def test_two_runs_are_compared_in_one_sentence(new, old, dead) -> None:
    assert comparison_of([old, new]) == (
        "new trains 1.0 times as many fresh tokens a second as old: "
        "old is busy 25.0 % of the time, new 75.0 %."
    )
    assert comparison_of([new]) == comparison_of([new, dead]) == ""


def test_the_head_tells_verdict_and_proposals(new, dead) -> None:
    head = head_of(new)
    assert head.standing == "bad"
    assert "starved 25 % of the whole run (16 s): environment `calc`" in head.sentence
    assert [setting.split("=")[0] for setting in head.settings] == ["staleness.max_staleness"]
    assert head_of(dead).ending == "ended without a summary"


def test_settings_that_differ_are_listed(new, old) -> None:
    differing = parts(configuration_panel([old, new]), Table)[0]
    assert [[cell.text for cell in row] for row in differing.rows] == [
        ["staleness.max_staleness", "0", "4"],
        ["staleness.credit", "1", "null"],
        ["staleness.on_stale", "(absent)", '"wait"'],
    ]
    assert "All settings are equal." in notes(configuration_panel([new, new]))


@pytest.mark.parametrize(
    ("value", "kept"),
    [(0.123456, 0.1235), (98765.4321, 98765.0), (3.0, 3.0), (float("nan"), None), (None, None), (0.0, 0.0)],
)
def test_values_keep_the_digits_that_a_chart_shows(value, kept) -> None:
    assert rounded(value) == pytest.approx(kept, abs=0.5 if kept and kept > 1e4 else 1e-9)
