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


def test_each_of_several_processes_tries_a_refusal_so_many_times_less_often_and_not_with_the_others() -> None:
    waits = []
    for now_s in (100.0, 100.5, 101.0, 101.5):
        bound = Bound(100.0, processes=4)
        bound.set(40.0, now_s, TURN_S, refuses=True)
        waits.append(bound.probe_s - now_s)
    assert all(0.5 * 4 * 8.0 <= wait < 1.5 * 4 * 8.0 for wait in waits)
    assert min(abs(a - b) for i, a in enumerate(waits) for b in waits[:i]) > 1.0
    slower = Bound(100.0, processes=4)
    slower.set(40.0, 100.0, TURN_S)
    assert slower.probe_s == pytest.approx(100.0 + 4 * 8.0)


@pytest.mark.parametrize("processes", [1, 4])
def test_one_episode_more_is_a_new_bound_for_one_process_alone(processes: int) -> None:
    bound = Bound(100.0, processes=processes)
    waits = []
    for level in (1.0, 2.0, 20.0):
        bound.set(level, 0.0, TURN_S, refuses=True)
        waits.append(bound.probe_s)
    new, after, much_higher = waits
    assert after == pytest.approx(new if processes == 1 else 2.0 * new)
    assert much_higher == pytest.approx(new)
