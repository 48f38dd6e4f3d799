"""Levels: knees of turns that take known times."""

from __future__ import annotations

import math

import pytest

from forebay.actors.levels import Levels, Turn


def turns(count: int, seconds: float, *, number: int = 0, generator_s: float = 0.0) -> list[Turn]:
    return [Turn(number, 0.0, generator_s, seconds - generator_s)] * count


def test_more_answers_are_no_knee() -> None:
    levels = Levels()
    levels.add(16, turns(64, 1.0), 0.0, 0.0)
    levels.add(32, turns(64, 1.2), 0.0, 1.0)
    assert levels.knee(32) is None


def test_twice_the_time_for_twice_the_episodes_is_a_knee() -> None:
    levels = Levels()
    levels.add(32, turns(200, 1.0), 0.0, 0.0)
    levels.add(64, turns(200, 2.0), 0.0, 1.0)
    knee = levels.knee(64)
    assert knee is not None
    assert knee.slower == pytest.approx(2.0)
    assert knee.level == pytest.approx(32.0)
    assert knee.of_environment


def test_between_two_levels_lies_what_brings_as_much() -> None:
    levels = Levels()
    levels.add(32, turns(400, 1.0), 0.0, 0.0)
    levels.add(64, turns(400, 1.7), 0.0, 1.0)
    knee = levels.knee(64)
    assert knee is not None
    assert knee.level == pytest.approx(32 * 2 / 1.7 * 1.15)


def test_thrashing_leads_back_to_the_level_that_brought_most() -> None:
    levels = Levels()
    for live, seconds in ((16, 1.0), (32, 1.1), (64, 2.4), (128, 9.0)):
        levels.add(live, turns(200, seconds), 0.0, 0.0)
    knee = levels.knee(128)
    assert knee is not None
    assert knee.level == pytest.approx(32.0)


def test_a_slower_generator_is_named() -> None:
    levels = Levels()
    levels.add(32, turns(200, 1.0, generator_s=0.5), 0.0, 0.0)
    levels.add(64, turns(200, 2.0, generator_s=1.5), 0.0, 1.0)
    knee = levels.knee(64)
    assert knee is not None
    assert not knee.of_environment


def test_later_turns_that_take_longer_are_not_taken_for_a_slower_environment() -> None:
    levels = Levels()
    levels.add(16, turns(100, 1.0) + turns(20, 4.0, number=3), 0.0, 0.0)
    levels.add(32, turns(20, 1.0) + turns(100, 4.0, number=3), 0.0, 1.0)
    assert levels.knee(32) is None


def test_few_turns_are_no_evidence_but_a_trial_must_bring_some() -> None:
    levels = Levels()
    levels.add(32, turns(7, 0.2) + turns(7, 1.8), 0.0, 0.0)
    levels.add(64, turns(7, 1.9 * 0.2) + turns(7, 1.9 * 1.8), 0.0, 1.0)
    assert levels.knee(64) is None
    assert levels.knee(64, sure=False) is not None


def test_hasty_looks_are_compared_with_hasty_ones() -> None:
    levels = Levels()
    levels.add(32, turns(100, 0.5), 0.0, 1.0, hasty=True)
    levels.late(Turn(0, 0.9, 0.0, 1.5) for _ in range(100))
    levels.add(64, turns(200, 0.5), 1.0, 2.0, hasty=True)
    assert levels.knee(64, hasty=True) is None
    assert levels.slowness(64, hasty=True) < 1.0
    levels.add(128, turns(200, 2.0), 2.0, 3.0)
    knee = levels.knee(128)
    assert knee is not None
    assert knee.slower == pytest.approx(2.0 / 0.5)
    beside_the_whole = Levels()
    beside_the_whole.add(32, turns(100, 0.5), 0.0, 1.0, hasty=True)
    beside_the_whole.late(Turn(0, 0.9, 0.0, 1.5) for _ in range(100))
    beside_the_whole.add(64, turns(200, 1.0), 1.0, 2.0)
    assert beside_the_whole.knee(64) is None


def test_a_turn_that_began_at_no_known_number_is_left_out() -> None:
    levels = Levels()
    levels.add(32, turns(20, 1.0), 0.0, 1.0)
    levels.late([Turn(0, 5.0, 0.0, 100.0)] * 100)
    levels.add(64, turns(20, 1.0), 6.0, 7.0)
    assert levels.slowness(64) == pytest.approx(math.exp(-math.sqrt(2 * (4 / 24) / 20)))


def test_old_levels_are_forgotten() -> None:
    levels = Levels()
    levels.add(32, turns(200, 1.0), 0.0, 0.0)
    levels.add(64, turns(200, 2.0), 0.0, 1000.0)
    assert levels.knee(64) is None
