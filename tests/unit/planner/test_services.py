"""What simulated episodes wait for, as it follows from what was measured."""

from __future__ import annotations

import random

import msgspec
import pytest

from forebay.planner.distribution import Distribution, constant, sampled
from forebay.planner.profile import EnvironmentLevel, EnvironmentProfile, Traffic
from forebay.planner.scenario import Scenario
from forebay.planner.services import EnvironmentTimes, places_of, prompts_of
from forebay.planner.simulation import simulate
from tests.unit.planner.profiles import environment, profile


def level(concurrency: int, steps_per_s: float, step_s: float) -> EnvironmentLevel:
    return EnvironmentLevel(concurrency=concurrency, steps_per_s=steps_per_s, step_s=constant(step_s))


def limited() -> EnvironmentProfile:
    """Return what an audit says of 6 answers at a time, of 1 s each."""
    levels = (level(1, 1.0, 1.0), level(4, 4.0, 1.0), level(16, 6.0, 16 / 6), level(64, 5.9, 64 / 5.9))
    return msgspec.structs.replace(environment(), levels=levels, knee=16, concurrency=4)


def times(found: EnvironmentProfile, traffic: Traffic | None = None, **values: object) -> EnvironmentTimes:
    return EnvironmentTimes(found, Scenario(**values), 10.0, random.Random(0), traffic)


def test_a_knee_tells_how_many_answers_there_are_at_a_time() -> None:
    assert places_of(limited()) == (6, 1.0)
    assert places_of(msgspec.structs.replace(limited(), knee=None)) == (None, 1.0)
    assert times(limited()).at_once == 6
    assert times(limited(), environment_concurrency=2).at_once == 2


def test_waiting_at_a_knee_is_not_counted_twice() -> None:
    """Many live episodes queue for the 6 places; each answer still takes its second."""
    assert times(limited()).step_s(final=False, live=64) == pytest.approx(1.0)
    found = msgspec.structs.replace(profile(), environments={"tools": limited()})
    outcome = simulate(found, Scenario(groups=4, group_size=2, max_staleness=8, steps=100))
    # 3 answers of 1 s an episode, 6 at a time: 2 episodes a second, of the 4 that the learner would eat.
    assert outcome.episodes_per_s == pytest.approx(2.0, rel=0.02)
    assert outcome.busy == pytest.approx(0.5, rel=0.03)


def test_a_fraction_of_a_place_is_made_up_for_by_the_pace() -> None:
    """5.5 places' worth of answers a second: six places, each a little slower."""
    levels = (level(4, 4.0, 1.0), level(16, 5.5, 16 / 5.5))
    found = msgspec.structs.replace(limited(), levels=levels)
    assert places_of(found) == (6, 6 / 5.5)
    whole = msgspec.structs.replace(profile(), environments={"tools": found})
    outcome = simulate(whole, Scenario(groups=4, group_size=2, max_staleness=8, steps=100))
    assert outcome.episodes_per_s == pytest.approx(5.5 / 3, rel=0.02)


def test_without_a_knee_steps_slow_down_as_they_were_measured_to() -> None:
    levels = (level(4, 5.0, 0.75), level(16, 16.0, 0.75), level(64, 40.0, 1.5))
    found = msgspec.structs.replace(environment(), levels=levels, concurrency=16)
    # Steps that end an episode take no time and are in the levels' means: those compare among themselves.
    assert times(found).step_s(final=False, live=8) == pytest.approx(1.0)
    assert times(found).step_s(final=False, live=64) == pytest.approx(2.0)
    undisturbed = msgspec.structs.replace(found, concurrency=64)
    assert times(undisturbed).step_s(final=False, live=64) == pytest.approx(1.0)


def asked(**changed: Distribution) -> Traffic:
    """Return what episodes of 2 or 6 turns ask: prompts from 12 tokens on, 100 in all, 28 sampled."""
    traffic = Traffic(
        num_episodes=4,
        turns=sampled([2.0, 6.0]),
        prompt_tokens=sampled([12.0, 20.0, 60.0]),
        computed_tokens=constant(1.0),
        sampled_tokens=constant(7.0),
        episode_tokens=constant(100.0),
        action_tokens=constant(28.0),
        trajectory_bytes=constant(1.0),
    )
    return msgspec.structs.replace(traffic, **changed)


def test_what_the_model_itself_asked_comes_first() -> None:
    found = times(environment(), asked())
    assert (found.mean_turns, found.mean_tokens, found.tokens()) == (4.0, 7.0, 7.0)
    assert (times(environment()).mean_turns, times(environment()).mean_tokens) == (3.0, 10.0)


def test_lengths_are_those_of_prompts_and_of_what_comes_between_calls() -> None:
    told = asked(first_prompt_tokens=constant(15.0), observed_tokens=constant(4.0), turns=constant(3.0))
    found = times(environment(), told)
    assert found.tells_lengths
    assert [found.prompt_tokens(call) for call in range(3)] == [15.0, 4.0, 4.0]
    assert found.length() == 15 + 2 * 4 + 3 * 7
    assert not times(environment()).tells_lengths and times(environment()).prompt_tokens(0) == 0.0


def test_lengths_that_were_not_told_apart_are_right_on_the_average() -> None:
    """72 tokens were not sampled: 12 of the first prompt, the rest before 3 later calls, on the average."""
    first, between = prompts_of(asked())
    assert (first.mean, between.mean) == (12.0, 20.0)
    first, between = prompts_of(asked(turns=constant(1.0)))
    assert (first.mean, between.mean) == (72.0, 0.0)


def test_first_prompts_of_episodes_of_one_call_are_as_they_were() -> None:
    uneven = sampled([10.0, 30.0])
    assert prompts_of(asked(turns=constant(1.0), first_prompt_tokens=uneven)) == (uneven, constant(0.0))
