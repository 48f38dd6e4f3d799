from __future__ import annotations

from pathlib import Path

import pytest

from forebay.clock import ManualClock
from forebay.report import load_run, render_page, verdict_of
from forebay.report.life_panels import life_panel, little_of
from forebay.report.panels import Bars, Note, Table
from forebay.telemetry.life_log import LifeLog
from forebay.telemetry.life_table import Weighed, tabulate
from forebay.telemetry.little import Flow
from forebay.telemetry.residence import live_through
from tests.unit.report.runs import BEGIN_S, line, make_run, new_values
from tests.unit.telemetry.lives import BATCH, GROUP, STEP, trajectory


def write_lives(
    run: Path, num_batches: int = 3, *, environments=("search", "code"), clock_error_s=0.0
) -> None:
    """Write lives of 52.5 s, each of whose stages is known; 18 s are steps of the environment."""
    clock = ManualClock(BEGIN_S)
    with LifeLog(run / "life.jsonl", clock) as log:
        for step in range(1, num_batches + 1):
            clock.advance(40.0)
            moved = trajectory(started_s=1003.5 + clock_error_s, finished_s=1030.0 + clock_error_s)
            group = GROUP._replace(settled_s=1040.0 + clock_error_s)
            lives = [Weighed(name, live_through(moved, group, BATCH, STEP), 4) for name in environments]
            flows = {"buffer": Flow(2, 12.0, 10, 3.0, 9.0), "episodes": Flow(2, 54.0, 10, 13.5, 18.3)}
            log.write(step, 40.0, tabulate(lives), flows)


@pytest.fixture
def recorded(tmp_path):
    # An actor looked ten times in 5 s: each time one episode was with the generator, one in the environment.
    actors = [
        {"live": 2, "looks": 10 * i} | {f"{what}.{place}": 10 * i for what in ("seen", "seen_squared")
                                        for place in ("generator", "environment")}
        for i in range(1, 25)
    ]  # fmt: skip
    run = make_run(tmp_path / "run", [line(30.0, 10.0, **new_values("search"))] * 3, actors=actors)
    write_lives(run)
    return load_run(run)


def tables(runs, title: str) -> Table:
    return next(p for p in life_panel(runs).parts if isinstance(p, Table) and title in p.title)


def row(table: Table, name: str) -> list[str]:
    return next([cell.text for cell in cells[1:]] for cells in table.rows if cells[0].text == name)


def test_the_table_has_a_column_for_each_environment_and_adds_up(recorded) -> None:
    table = tables([recorded], "Share of the life")
    assert table.headers == ("stage", "all environments", "code", "search")
    assert row(table, "environment: steps") == ["34.3 % · 18 s"] * 3
    assert row(table, "waiting for an actor")[0] == "6.7 % · 3.50 s"
    assert row(table, "residual") == ["0.0 % · 0 s"] * 3
    assert row(table, "whole life") == ["100.0 % · 52.5 s"] * 3
    assert row(table, "recorded")[0] == "24 tokens of 6 trajectories"
    shares = [cells[1].share for cells in table.rows if cells[1].share is not None]
    assert sum(shares[:-1]) == pytest.approx(1.0)


def test_an_environment_may_be_called_all(tmp_path) -> None:
    run = make_run(tmp_path / "run", [line(30.0, 10.0, **new_values("all"))])
    write_lives(run, environments=("all", "code", "code"))
    table = tables([load_run(run)], "Share of the life")
    assert table.headers == ("stage", "all environments", "all", "code")
    assert row(table, "recorded") == [
        "36 tokens of 9 trajectories", "12 tokens of 3 trajectories", "24 tokens of 6 trajectories"
    ]  # fmt: skip


def test_percentiles_are_there_for_tokens_and_for_trajectories(recorded) -> None:
    table = tables([recorded], "search: percentiles")
    assert len(row(table, "in the buffer")) == 6
    assert row(table, "in the buffer")[0] == row(table, "in the buffer")[3] == "6.00 s"
    assert row(table, "residual")[1] == "–"


def test_littles_law_is_shown_with_its_ratio_and_what_it_means(recorded) -> None:
    balances = {one.queue: one for one in little_of(recorded)}
    # 2 groups in 40 s, 6 s each: 0.3 inside; seen 0.3.
    assert (balances["buffer"].inside, balances["buffer"].ratio) == pytest.approx((0.3, 1.0))
    # The actor saw one episode in an environment; 2 episodes of 18 s in 40 s are 0.9.
    assert balances["environment"].ratio == pytest.approx(1 / 0.9)
    table = tables([recorded], "Little's law")
    assert row(table, "groups in the buffer")[-1] == "agrees"


def test_the_sentence_stands_in_verdict_and_panel(recorded) -> None:
    sentence = verdict_of(recorded).life
    # Of each of the two environments a fifth: nothing else takes more.
    assert sentence.startswith("20 % of a token's life of 52 s is spent in environment `search`")
    notes = [part.text for part in life_panel([recorded]).parts if isinstance(part, Note)]
    assert f"{sentence}." in notes


def test_clocks_that_disagree_are_told(tmp_path) -> None:
    run = make_run(tmp_path / "run", [line()] * 3)
    write_lives(run, clock_error_s=60.0)
    notes = [part.text for part in life_panel([load_run(run)]).parts if isinstance(part, Note)]
    assert any("Clocks disagreed: of 6 trajectories" in note and "in the buffer 6" in note for note in notes)


def test_a_run_of_an_older_version_shows_what_it_recorded(tmp_path) -> None:
    old = load_run(make_run(tmp_path / "old", [line(**new_values())] * 3))
    panel = life_panel([old])
    (bars,) = [part for part in panel.parts if isinstance(part, Bars)]
    assert bars.rows[0].total == "10 s"
    bare = life_panel([load_run(make_run(tmp_path / "bare", [line()]))])
    assert [part.text for part in bare.parts] == ["Life of a token: not recorded by bare."]


def test_two_runs_stand_below_one_another(recorded, tmp_path) -> None:
    old = load_run(make_run(tmp_path / "old", [line(**new_values())] * 3))
    page = render_page([old, recorded])
    assert "run: Little&#39;s law" in page
    assert "run: search" in page
