from __future__ import annotations

import json

import pytest

from forebay.report.history import (
    NUM_BUCKETS,
    mean_of,
    read_history,
    state_seconds,
    totals_under,
    weighted_mean,
)
from tests.unit.report.runs import BEGIN_S, line, make_run


def history_of(path):
    return read_history((path / "metrics.jsonl.1", path / "metrics.jsonl"))


def test_lines_become_buckets_and_intervals(tmp_path) -> None:
    run = make_run(tmp_path / "run", [line(3.0, 1.0), line(2.0, 0.0, reward=0.9, other=None)])
    history = history_of(run)
    assert [(b.step, b.time_s, b.num_lines) for b in history.buckets] == [
        (1, BEGIN_S + 4, 1),
        (2, BEGIN_S + 6, 1),
    ]
    assert (history.begin_s, history.end_s, history.num_steps) == (BEGIN_S, BEGIN_S + 6, 2)
    assert [interval.begin_s for interval in history.each_interval()] == [BEGIN_S, BEGIN_S + 4]
    assert mean_of(history.buckets, "reward") == pytest.approx(0.7)
    assert state_seconds(history.buckets)["computing"] == 5.0
    assert history.buckets == history.recent


def test_a_step_trained_again_replaces_itself_and_all_later_ones(tmp_path) -> None:
    lines = [line(reward=float(i)) for i in range(6)]
    lines += [line(reward=10.0 + i, incarnation=1) for i in range(3)]
    history = history_of(make_run(tmp_path / "run", lines, steps=[1, 2, 3, 4, 5, 6, 4, 5, 6]))
    assert [b.mean("reward") for b in history.buckets] == [0.0, 1.0, 2.0, 10.0, 11.0, 12.0]
    assert (history.num_steps, history.num_repeated, history.incarnation) == (6, 3, 1)
    assert len(list(history.each_interval())) == 9


def test_a_million_lines_would_cost_as_many_buckets_as_a_thousand(tmp_path) -> None:
    count = 2 * NUM_BUCKETS + 3
    history = history_of(make_run(tmp_path / "run", [line(reward=float(i % 3)) for i in range(count)]))
    assert len(history.buckets) == 401  # three lines each
    assert sum(bucket.num_lines for bucket in history.buckets) == count
    assert {bucket.mean("reward") for bucket in history.buckets} == {1.0}
    assert history.buckets[0].largest("reward") == 2.0
    # Four seconds a line: the last five minutes are the last 76 lines.
    assert sum(bucket.num_lines for bucket in history.recent) == 76


def test_torn_lines_are_counted_and_the_others_kept(tmp_path) -> None:
    run = make_run(tmp_path / "run", [line(), line()])
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": "three", "time_s": 1}\n\xff\xfe\n[]\n{"step":3,"ti')
    history = history_of(run)
    assert (history.num_steps, history.num_unreadable) == (2, 4)


def test_the_file_that_rotation_replaced_comes_first(tmp_path) -> None:
    run = make_run(tmp_path / "run", [line(reward=0.1), line(reward=0.2)])
    first, second = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (run / "metrics.jsonl.1").write_bytes(first)
    (run / "metrics.jsonl").write_bytes(second)
    assert [b.mean("reward") for b in history_of(run).buckets] == [0.1, 0.2]


def test_no_metrics_are_an_empty_history(tmp_path) -> None:
    history = history_of(tmp_path)
    assert (history.num_steps, history.buckets, history.begin_s, history.end_s) == (0, (), None, None)


def test_metrics_that_are_no_numbers_are_left_out(tmp_path) -> None:
    run = make_run(tmp_path / "run", [line(reward=None, groups="g1 g2", flag=True), line(reward=0.5)])
    history = history_of(run)
    assert mean_of(history.buckets, "reward") == 0.5
    assert not {"groups", "flag"} & history.names
    assert json.loads((run / "metrics.jsonl").read_bytes().splitlines()[0])["groups"] == "g1 g2"


def test_means_weigh_by_another_metric_and_totals_go_by_prefix(tmp_path) -> None:
    lines = [
        line(fill=0.2, fresh_tokens=100, **{"masked.stale": 3}),
        line(fill=0.8, fresh_tokens=300, **{"masked.stale": 4}),
    ]
    buckets = history_of(make_run(tmp_path / "run", lines)).buckets
    assert weighted_mean(buckets, "fill", "fresh_tokens") == pytest.approx(0.65)
    assert weighted_mean(buckets, "fill", "absent") is None
    assert totals_under(buckets, "masked.") == {"stale": 7.0}
