from __future__ import annotations

import pytest

from forebay.report.history import empty_history, read_history
from forebay.report.strip import build_strip, paths
from forebay.telemetry.spans import STATES
from tests.unit.report.runs import line, make_run, times

COMPUTING, STARVED = STATES.index("computing"), STATES.index("starved")


def strip_of(path, lines, num_columns):
    history = read_history((make_run(path, lines) / "metrics.jsonl",))
    return build_strip(history, num_columns)


def test_states_stand_in_the_order_of_the_loop(tmp_path) -> None:
    # Starved for two seconds, computing for two; then publishing one second, starved one, computing two.
    first, second = times(2.0, 2.0), times(2.0, 1.0, publishing=1.0)
    strip = strip_of(tmp_path / "run", [line() | first, line() | second], 8)
    names = [max(STATES, key=lambda s, c=column: c[STATES.index(s)]) for column in strip.columns]
    assert names == ["starved"] * 2 + ["computing"] * 2 + ["publishing", "starved"] + ["computing"] * 2
    assert strip.duration_s == 8.0


def test_columns_share_what_lies_across_them(tmp_path) -> None:
    strip = strip_of(tmp_path / "run", [line(3.0, 1.0)], 2)
    assert strip.columns[0][STARVED] == pytest.approx(0.5)
    assert strip.columns[0][COMPUTING] == pytest.approx(0.5)
    assert strip.columns[1][COMPUTING] == pytest.approx(1.0)


def test_time_without_a_learner_stays_empty(tmp_path) -> None:
    # Ten seconds pass, of which the second line only accounts for two.
    gap = line() | times(2.0, 0.0) | {"time.down": 8.0}
    strip = strip_of(tmp_path / "run", [line(2.0, 0.0), gap], 6)
    assert [round(sum(column), 6) for column in strip.columns] == [1.0, 0.0, 0.0, 0.0, 0.0, 1.0]
    assert strip.duration_s == 12.0


def test_every_second_is_on_the_strip_once(tmp_path) -> None:
    lines = [line(0.1 * (i % 7), 0.3 + 0.01 * i, packing=0.01) for i in range(200)]
    strip = strip_of(tmp_path / "run", lines, 37)
    width_s = strip.duration_s / 37
    assert sum(column[COMPUTING] for column in strip.columns) * width_s == pytest.approx(
        sum(0.1 * (i % 7) for i in range(200)), rel=1e-6
    )


def test_paths_stack_what_is_useful_at_the_bottom(tmp_path) -> None:
    strip = strip_of(tmp_path / "run", [line(3.0, 1.0)], 2)
    assert paths(strip) == {"computing": "M0 50H1V100H0zM1 0H2V100H1z", "starved": "M0 0H1V50H0z"}


def test_before_the_first_batch_there_is_no_strip() -> None:
    assert build_strip(empty_history()) is None
