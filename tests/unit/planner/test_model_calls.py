"""Model calls whose time in a slot, and whose wait, follow from what was measured one after another."""

from __future__ import annotations

import random
import statistics

import msgspec
import pytest

from forebay.planner.distribution import constant
from forebay.planner.model_calls import CallTimes, mean_wait, time_in_slot
from forebay.planner.profile import GeneratorLevel, GeneratorProfile, Profile
from forebay.planner.scenario import Scenario
from forebay.planner.simulation import Outcome, simulate
from tests.unit.planner.profiles import ORIGIN, profile


def level(
    requests: int, *, call_s: float = 0.25, wait_s: float | None = None, in_slot_s: float | None = None
) -> GeneratorLevel:
    """Return what calls one after another took; the rest of a call is its way there and back."""
    return GeneratorLevel(
        requests=requests,
        tokens_per_s=1.0,
        call_s=constant(call_s),
        wait_s=None if wait_s is None else constant(wait_s),
        prefill_s=None if in_slot_s is None else constant(0.0),
        decode_s=None if in_slot_s is None else constant(in_slot_s),
    )


def generator_of(slots: int, *levels: GeneratorLevel) -> GeneratorProfile:
    return GeneratorProfile(origin=ORIGIN, slots=slots, levels=levels)


def with_generator(slots: int, *levels: GeneratorLevel) -> Profile:
    return msgspec.structs.replace(profile(), generator=generator_of(slots, *levels))


def run(found: Profile, **values: object) -> Outcome:
    settings = {"groups": 4, "group_size": 2, "poll_max_s": 0.0, "steps": 100, "max_staleness": 8, **values}
    return simulate(found, Scenario(**settings))


def test_a_slot_is_held_as_long_as_the_generator_says() -> None:
    assert time_in_slot(generator_of(4, level(1)), 1) == 0.25
    told = generator_of(5, level(1, in_slot_s=0.2), level(5, in_slot_s=0.1, wait_s=0.1))
    assert [time_in_slot(told, load) for load in (1, 3, 9)] == pytest.approx([0.2, 0.15, 0.1])


def test_slots_that_are_never_free_give_no_more_calls_than_there_ever_were() -> None:
    """32 at a time were answered every 0.5 s, 64 a second: a call holds one of 16 slots for 0.25 s."""
    levels = [level(1, in_slot_s=0.05, call_s=0.1), level(32, in_slot_s=0.05, call_s=0.4, wait_s=0.1)]
    found = generator_of(16, *levels)
    assert [time_in_slot(found, load) for load in (2, 8, 16, 20)] == pytest.approx([0.05, 0.125, 0.25, 0.25])
    # Where nobody waited for a slot, nothing is known of that.
    assert time_in_slot(generator_of(32, *levels), 32) == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("call_s", "wait_s", "expected_s"),
    [(0.25, 0.04, 0.02), (0.26, 0.03, 0.02), (0.35, 0.04, 0.04), (0.25, 0.0, 0.0)],
    ids=["at once", "on its way for a quarter of a block", "longer than a block", "none"],
)
def test_a_call_at_any_time_waits_for_half_a_block(call_s: float, wait_s: float, expected_s: float) -> None:
    levels = [level(4, call_s=call_s, wait_s=wait_s, in_slot_s=0.25)]
    assert mean_wait(levels, 4) == pytest.approx(expected_s)
    found = with_generator(64, *levels).generator
    assert found is not None
    times = CallTimes(found, 64, 2.0, random.Random(0))
    waits_s = [times.draw_wait(4) for _ in range(2000)]
    assert statistics.fmean(waits_s) == pytest.approx(2.0 * expected_s, rel=0.05)
    assert max(waits_s) <= 4.0 * expected_s
    assert (times.draw(4), times.draw_in_slot(4)) == (2.0 * call_s, 0.5)


def test_what_is_waited_for_at_a_free_slot_is_hidden_by_a_full_generator() -> None:
    """Two slots, held for 0.25 s, three calls an episode: 8/3 a second, whatever else a call takes."""
    slow = level(2, call_s=0.35, wait_s=0.3, in_slot_s=0.25)
    few = with_generator(64, slow, level(64, call_s=0.35, wait_s=0.3, in_slot_s=0.25))
    assert run(few, slots=2).busy == pytest.approx(8.0 / 3.0 / 4.0, rel=0.02)
    # With free slots it is waited for: half of a block of 0.3 + 0.1 s, and the way.
    free = run(few)
    assert free.phases_s["generate"] == pytest.approx(3 * 0.35)
    assert free.phases_s["generator_queue"] == pytest.approx(3 * 0.2, rel=0.05)
    assert free.episode_s == pytest.approx(3 * (1.0 + 0.35 + 0.2), rel=0.02)


def test_a_call_that_weights_release_begins_with_them() -> None:
    """In a synchronous run all wait for the weights, and so for no block; later calls do."""
    found = with_generator(64, level(8, call_s=0.25, wait_s=0.2, in_slot_s=0.25))
    weights = profile(weights_s=0.5).weights
    outcome = run(msgspec.structs.replace(found, weights=weights), max_staleness=0)
    waited_s = outcome.phases_s["generator_queue"] - 0.5
    assert waited_s == pytest.approx(2 * 0.1, rel=0.1)


def test_a_full_generator_goes_on_with_the_episodes_that_it_knows() -> None:
    found = with_generator(2, level(2, in_slot_s=0.25))
    known, in_order = (run(found, follow_ups_first=first) for first in (True, False))
    assert known.busy == pytest.approx(in_order.busy, rel=0.02)
    assert known.staleness_mean < in_order.staleness_mean - 1.0
