"""Refusals where other processes may be what is too much."""

from __future__ import annotations

import pytest

from forebay.actors.observing import Epoch
from forebay.actors.refusals import Refusals


def failing(failures: int, calls: int) -> Epoch:
    epoch = Epoch(0.0, 0.0)
    epoch.failures, epoch.num_turns = failures, calls - failures
    return epoch


@pytest.mark.parametrize(("processes", "calls"), [(1, 24), (4, 96)])
def test_one_episode_acquits_only_when_the_other_processes_had_time_to_become_fewer(
    processes: int, calls: int
) -> None:
    refusals = Refusals(processes)
    first = refusals.judge(failing(25, 100), allowed=2.0)
    assert first is not None and first.guilty
    assert first.limit == 1.0
    assert refusals.judge(failing((calls - 4) // 4, calls - 4), allowed=1.0) is None
    verdict = refusals.judge(failing(calls // 4, calls), allowed=1.0)
    assert verdict is not None and not verdict.guilty
    assert verdict.limit == 2.0
    assert refusals.failing_anyway == 0.25
