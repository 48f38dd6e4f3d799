"""A token's life: whatever the stamps say, no stage is negative, and stages and residual are the whole."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.telemetry.life_table import Weighed, tabulate, whole
from forebay.telemetry.residence import MAX_STAGE_S, BatchStamps, GroupStamps, StepStamps, live_through
from forebay.trajectory import StepRecord
from tests.unit.telemetry.lives import trajectory

spans = st.floats(0, 1e5)
absurd = st.floats(-1e300, 1e300)


@st.composite
def stamped(draw: st.DrawFn, times: st.SearchStrategy[float]):
    """Draw a trajectory with the stamps of its way; in order if `times` are spans."""
    steps = tuple(
        StepRecord(None, "stop", *draw(st.tuples(times, times, times)))
        for _ in range(draw(st.integers(0, 4)))
    )
    reset_s = draw(st.none() | times)
    inside_s = sum(s.generator_wait_s + s.generate_s + s.environment_s for s in steps) + (reset_s or 0.0)
    at_s = 1e6 + draw(times)
    dispatched_s = draw(st.sampled_from((at_s, None)))
    admission_s = draw(times)
    started_s = at_s + draw(times) + admission_s
    finished_s = started_s + inside_s + draw(times)
    settled_s = finished_s + draw(times)
    taken_wall_s = settled_s + draw(times)
    taken_s = draw(times)
    recorded_s = taken_s + draw(times)
    step_s = draw(times)
    ended_s = recorded_s + draw(times) + step_s
    one = trajectory(
        steps=steps, sequences=(), reset_s=reset_s, admission_s=admission_s,
        started_s=started_s, finished_s=finished_s,
        attempt=draw(st.integers(0, 2)),
    )  # fmt: skip
    batch = BatchStamps(taken_wall_s, taken_s, recorded_s)
    step = StepStamps(taken_wall_s + ended_s - taken_s, ended_s, step_s)
    return one, GroupStamps(dispatched_s, settled_s), batch, step


@given(stamped(spans))
def test_stages_of_clocks_that_agree_add_up_to_the_whole_life(way) -> None:
    lived = live_through(*way)
    assert lived.clamped == ()
    assert all(seconds >= 0.0 for seconds in lived.seconds.values())
    assert sum(lived.seconds.values()) == pytest.approx(lived.total_s, rel=1e-9, abs=1e-3)


@given(stamped(absurd), st.integers(0, 2**53 - 1))
def test_whatever_stamps_say_nothing_is_negative_and_nothing_is_silent(way, fresh_tokens) -> None:
    lived = live_through(*way)
    assert all(0.0 <= seconds <= MAX_STAGE_S for seconds in lived.seconds.values())
    assert sum(lived.seconds.values()) + lived.residual_s == pytest.approx(lived.total_s, abs=1e-3)
    one, group, batch, step = way
    stamps = (one.started_s, one.finished_s, one.admission_s, *group, *batch, *step)
    rounding_s = 16 * math.ulp(max(abs(stamp) for stamp in stamps if stamp is not None))
    if abs(lived.residual_s) > 1e-3 + rounding_s:
        assert lived.clamped
    table = tabulate([Weighed("e", lived, fresh_tokens)])
    assert whole(table).residual_trajectory_s == pytest.approx(lived.residual_s, abs=1e-3)
