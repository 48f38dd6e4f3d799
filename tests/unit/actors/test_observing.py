"""Bounds: when they are tried again."""

from __future__ import annotations

import pytest

from forebay.actors.observing import Bound

TURN_S = 0.8


def test_a_refusal_is_tried_again_after_ten_turns_and_twice_as_long_each_time_it_holds() -> None:
    bound, waits = Bound(100.0), []
    for _ in range(3):
        bound.set(40.0, 1000.0, TURN_S, refuses=True)
        waits.append(bound.probe_s - 1000.0)
    assert waits == pytest.approx([8.0, 16.0, 32.0])


def test_what_only_becomes_slower_is_tried_again_later() -> None:
    bound = Bound(100.0)
    bound.set(40.0, 100.0, TURN_S)
    assert bound.probe_s == pytest.approx(100.0 + 4 * 8.0)


def test_a_bound_that_is_much_higher_than_before_is_a_new_one() -> None:
    bound = Bound(100.0)
    waits = []
    for level in (10.0, 12.0, 20.0):
        bound.set(level, 0.0, TURN_S, refuses=True)
        waits.append(bound.probe_s)
    assert waits == pytest.approx([8.0, 16.0, 8.0])
