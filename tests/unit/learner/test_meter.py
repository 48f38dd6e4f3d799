from __future__ import annotations

import numpy as np
import pytest

from forebay.clock import ManualClock
from forebay.learner.bare import BareSpeed, full_rows
from forebay.learner.lives import Lives
from forebay.learner.meter import Meter, count_repeated, summarize_run, surviving_lines
from forebay.telemetry.life_log import LifeLog
from forebay.telemetry.metrics import MetricsWriter, read_metrics
from forebay.telemetry.spans import TimeStrip
from forebay.trajectory import PolicyVersion
from tests.unit.learner.small_run import LADDER, ScriptedSource, make_learner, open_at, programs
from tests.unit.models import tiny


def line(step: int, groups: str = "", **values):
    return {"step": step, "groups": groups, **values}


def test_a_step_trained_again_replaces_what_came_after_it() -> None:
    lines = [line(step, groups=f"a{step}") for step in (1, 2, 3)] + [
        line(2, groups="b2"),
        line(3, groups="b3"),
    ]
    kept = surviving_lines(lines)
    assert [entry["groups"] for entry in kept] == ["a1", "b2", "b3"]


def test_c81_a_group_in_two_surviving_batches_is_counted() -> None:
    assert count_repeated([line(1, "g1 g2"), line(2, "g3 g1"), line(3, "g1")]) == 2
    assert count_repeated(surviving_lines([line(1, "g1"), line(2, "g2"), line(2, "g2")])) == 0


@pytest.fixture
def measured(tmp_path):
    """Five batches trained by hand on a clock by hand: 3 s of step, 1 s of waiting."""
    clock = ManualClock()
    strip = TimeStrip(clock)
    store = open_at(clock=clock)
    store.rewind(0)
    bare = BareSpeed()
    bare.calibrate(programs(), programs().init_state(tiny.params()), {b: full_rows(b, 4) for b in LADDER})
    path = tmp_path / "metrics.jsonl"
    with MetricsWriter(path, clock) as writer, LifeLog(tmp_path / "life.jsonl", clock) as log:
        meter = Meter(
            writer,
            strip,
            bare,
            lambda: 0,
            store.stats,
            1,
            Lives(log, clock),
            lambda: {"episodes": 0.75, "packing": 0.25},
        )
        learner = make_learner(account=meter, publish=lambda v, _: store.publish(v, incarnation=0))
        source = ScriptedSource(store, 0, 0, 5, clock=clock)
        for _ in range(5):
            with strip.span("starved"):
                batch = source.next()
                clock.advance(1.0)
            with strip.span("computing"):
                clock.advance(3.0)
            learner.train(batch)
            learner.publish()
    return meter, strip, store, path


def summary_of(measured):
    meter, strip, store, path = measured
    return summarize_run(meter, strip.read(), store.stats(), path, max_staleness=4, group_size=2, compiles=0)


def test_each_batch_leaves_one_whole_line(measured) -> None:
    _, _, _, path = measured
    lines = list(read_metrics(path))
    assert [entry["step"] for entry in lines] == [1, 2, 3, 4, 5]
    second = lines[1]
    assert second["groups"] == "g2 g3"
    assert (second["trajectories"], second["incarnation"], second["nonfinite_updates"]) == (4, 0, 0)
    assert second["fresh_tokens"] == 4 * 5
    assert second["busy"] == pytest.approx(0.75)
    assert second["starved"] == pytest.approx(0.25)
    assert second["tokens_per_s"] == pytest.approx(5.0)
    assert second["store.trajectories.recorded"] == 8
    assert np.isfinite(second["loss"])
    assert (second["wait.episodes_s"], second["wait.packing_s"]) == (0.75, 0.25)
    assert second["trajectories.calculator"] == 4
    assert second["life.generating_s"] == pytest.approx(0.1)
    assert second["life.buffer_s"] == pytest.approx(3.0)  # they ended at 1 s, and were taken at 4 s


def test_c71_each_interval_has_its_own_rate_and_padding_its_own_name(measured) -> None:
    _, _, _, path = measured
    lines = list(read_metrics(path))
    assert [entry["tokens_per_s"] for entry in lines] == pytest.approx([20 / 4.0] * 5)
    assert all(entry["padded_tokens"] > 0 and entry["fresh_tokens"] == 20 for entry in lines)


def test_the_summary_leaves_the_first_batches_out_of_utilization_only(measured) -> None:
    meter = measured[0]
    summary = summary_of(measured)
    assert (summary.steps, summary.trained, summary.lost, summary.repeated) == (5, 20, 0, 0)
    assert summary.busy == pytest.approx(0.75)
    assert summary.starved == pytest.approx(0.25)
    assert summary.steps_per_s == pytest.approx(0.25)
    assert summary.fresh_tokens_per_s == pytest.approx(5.0)
    assert summary.goodput == pytest.approx(meter.bare.seconds(meter.window.work) / 16.0)
    assert summary.accepted == 20
    assert (summary.staleness_max, summary.staleness_mean) == (4, 2.0)  # all were sampled by version 0
    assert summary.life is not None
    assert (summary.life.all.trajectories, summary.life.all.tokens) == (20, 100)  # warm-up counts here
    assert meter.window.batches == 4
    assert meter.window.environment_steps == 16
    assert summary.env_s == pytest.approx(meter.window.environment_s / 16)


def test_lines_of_a_process_that_died_count_once(measured) -> None:
    _, _, store, path = measured
    before = summary_of(measured)
    with MetricsWriter(path, ManualClock()) as writer:
        last = list(read_metrics(path))[-1]
        writer.write(5, {name: value for name, value in last.items() if name not in ("step", "time_s")})
    after = summary_of(measured)
    assert (after.steps, after.trained, after.repeated) == (before.steps, before.trained, 0)
    assert PolicyVersion(0, after.steps) == store.stats().published
