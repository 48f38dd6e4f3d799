from __future__ import annotations

import math

import pytest

from forebay.telemetry.residence import MAX_STAGE_S, GroupStamps, live_through
from tests.unit.telemetry.lives import BATCH, GROUP, STEP, trajectory


def test_every_second_of_a_life_has_its_stage() -> None:
    lived = live_through(trajectory(), GROUP, BATCH, STEP)
    assert lived.seconds == pytest.approx({
        "admission": 3.5,  # dispatched at 1000, claimed at 1003, reset at 1003.5
        "reset": 3.0,
        "generator_queue": 1.5,
        "generating": 3.5,
        "environment": 18.0,
        "other": 0.5,  # 26.5 s of episode, of which 26 are known
        "group": 10.0,  # ended at 1030, settled at 1040
        "buffer": 6.0,
        "packing": 0.5,
        "handover": 2.0,  # recorded at 146.5, the step began at 148.5
        "training": 4.0,
    })  # fmt: skip
    assert (lived.total_s, lived.clamped) == (52.5, ())
    assert lived.residual_s == pytest.approx(0.0)


def test_a_later_attempt_books_what_came_before_it_on_retries() -> None:
    lived = live_through(trajectory(attempt=1), GROUP, BATCH, STEP)
    assert (lived.seconds["retries"], lived.seconds["admission"]) == pytest.approx((3.0, 0.5))
    assert lived.residual_s == pytest.approx(0.0)


def test_a_frame_without_a_reset_has_none_rather_than_0() -> None:
    lived = live_through(trajectory(reset_s=None), GROUP, BATCH, STEP)
    assert "reset" not in lived.seconds
    assert lived.seconds["other"] == pytest.approx(3.5)


def test_a_life_without_a_dispatch_begins_at_the_claim() -> None:
    lived = live_through(trajectory(), GroupStamps(None, 1040.0), BATCH, STEP)
    assert (lived.seconds["admission"], lived.total_s) == pytest.approx((0.5, 49.5))
    assert lived.residual_s == pytest.approx(0.0)


def test_a_clock_that_steps_back_makes_no_stage_negative_and_is_counted() -> None:
    # The actor's clock is a minute ahead: it ends after the learner took it.
    ahead = trajectory(started_s=1063.5, finished_s=1090.0)
    lived = live_through(ahead, GroupStamps(1000.0, 1090.0), BATCH, STEP)
    assert lived.clamped == ("buffer",)
    assert (lived.seconds["admission"], lived.seconds["buffer"]) == pytest.approx((63.5, 0.0))
    assert lived.residual_s == pytest.approx(-44.0)  # what the buffer would have been
    behind = trajectory(started_s=3.5, finished_s=30.0)
    lived = live_through(behind, GroupStamps(1000.0, 30.0), BATCH, STEP)
    assert lived.clamped == ("admission",)
    assert lived.seconds["buffer"] == pytest.approx(1016.0)


@pytest.mark.parametrize("changes", [
    {"started_s": -1e308, "finished_s": 1e308}, {"reset_s": -1e308}, {"reset_s": 1e308},
    {"started_s": 1e308, "finished_s": -1e308, "admission_s": 1e308},
])  # fmt: skip
def test_absurd_stamps_stay_within_bounds(changes) -> None:
    lived = live_through(trajectory(**changes), GROUP, BATCH, STEP)
    assert all(0.0 <= seconds <= MAX_STAGE_S for seconds in (*lived.seconds.values(), lived.total_s))
    assert lived.clamped
    assert math.isfinite(lived.residual_s)
