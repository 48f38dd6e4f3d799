"""When an idle pool looks for work, against what the actor pool does."""

from __future__ import annotations

import pytest

from forebay.planner.looking import Polls


def test_waits_double_from_the_last_claim_and_end_at_the_longest() -> None:
    """The pool claims at 10 s, then looks at +0.05, +0.15, +0.35, +0.75, +1.25, +1.75 s."""
    polls = Polls(0.05, 0.5)
    polls.claimed(10.0)
    polls.idle(10.0)
    looks = [10.05, 10.15, 10.35, 10.75, 11.25, 11.75]
    for before, look in zip([10.0, *looks], looks, strict=False):
        asked = before + 0.01
        assert asked + polls.wait_s(asked) == pytest.approx(look)
    assert 61.0 + polls.wait_s(61.0) == pytest.approx(61.25)


def test_a_claim_makes_the_waits_short_again() -> None:
    polls = Polls(0.05, 0.5)
    polls.idle(0.0)
    assert 30.1 + polls.wait_s(30.1) == pytest.approx(30.25)
    polls.claimed(30.25)
    polls.idle(30.25)
    assert polls.wait_s(30.26) == pytest.approx(0.04)


def test_without_a_longest_wait_nobody_waits() -> None:
    assert Polls(0.05, 0.0).wait_s(3.0) == 0.0
