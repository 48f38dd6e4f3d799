from __future__ import annotations

import pytest

from forebay.actors.backoff import Backoff
from forebay.clock import ManualClock
from forebay.errors import ForebayError, PeerFailedError

ERROR = ForebayError("refused")


def make(clock: ManualClock) -> Backoff:
    return Backoff("store", first_s=1.0, max_s=4.0, patience_s=20.0, now_s=clock.monotonic_s)


def test_waits_double_up_to_the_limit_and_start_over_after_a_success() -> None:
    clock = ManualClock(100.0)
    backoff = make(clock)
    waits = []
    for _ in range(4):
        backoff.failed(ERROR)
        waits.append(backoff.left_s)
        clock.advance(backoff.left_s)
    assert waits == [1.0, 2.0, 4.0, 4.0]
    backoff.succeeded()
    assert backoff.left_s == 0.0
    backoff.failed(ERROR)
    assert backoff.left_s == 1.0


def test_failures_within_one_wait_count_once() -> None:
    clock = ManualClock()
    backoff = make(clock)
    for _ in range(100):
        backoff.failed(ERROR)
    assert backoff.left_s == 1.0


def test_patience_ends() -> None:
    clock = ManualClock()
    backoff = make(clock)
    backoff.failed(ERROR)
    clock.advance(19.0)
    backoff.failed(ERROR)
    clock.advance(2.0)
    with pytest.raises(PeerFailedError, match=r"store keeps failing: refused \(got 21 s"):
        backoff.failed(ERROR)


def test_failures_far_apart_are_not_one_outage() -> None:
    clock = ManualClock()
    backoff = make(clock)
    for _ in range(5):
        backoff.failed(ERROR)
        clock.advance(21.0)
    assert backoff.left_s == 0.0
