"""Refusals: how a number of episodes is acquitted."""

from __future__ import annotations

from forebay.actors.observing import Epoch
from forebay.actors.refusals import Refusals


def failing(failures: int, calls: int) -> Epoch:
    epoch = Epoch(0.0, 0.0)
    epoch.failures, epoch.num_turns = failures, calls - failures
    return epoch


def test_one_episode_that_still_fails_acquits_the_number() -> None:
    refusals = Refusals()
    first = refusals.judge(failing(25, 100), allowed=2.0)
    assert first is not None and first.guilty
    assert first.limit == 1.0
    assert refusals.judge(failing(5, 20), allowed=1.0) is None
    verdict = refusals.judge(failing(6, 24), allowed=1.0)
    assert verdict is not None and not verdict.guilty
    assert verdict.limit == 2.0
    assert refusals.failing_anyway == 0.25
