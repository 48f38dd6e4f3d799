from __future__ import annotations

import logging
from collections import Counter

import pytest

from forebay.clock import ManualClock
from forebay.learner.fairness import FairShares
from forebay.staleness import OutstandingGroup, Shares
from forebay.trajectory import PolicyVersion

PATIENCE_S = 60.0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(100.0)


@pytest.fixture
def fair(clock: ManualClock) -> FairShares:
    return FairShares(
        Shares(("fast", "slow"), (1.0, 1.0)), 4, patience_s=PATIENCE_S, longest_patience_s=200.0, clock=clock
    )


def groups(fast: int, slow: int, running: int = 2, first: int = 0) -> list[OutstandingGroup]:
    """So many settled groups of each, and running ones of the slow environment."""
    names = [(f"f{i}", "fast", True) for i in range(fast)] + [(f"s{i}", "slow", True) for i in range(slow)]
    names += [(f"r{i}", "slow", False) for i in range(first, first + running)]
    return [
        OutstandingGroup(
            group_id=name, serial=i, environment=environment, settled=settled, start=PolicyVersion(0, 0)
        )
        for i, (name, environment, settled) in enumerate(names)
    ]


def test_it_is_waited_for_as_long_as_it_delivers(fair: FairShares, clock: ManualClock) -> None:
    for delivered in range(5):
        settled = OutstandingGroup(
            group_id=f"s{delivered}", serial=9, environment="slow", settled=True, start=PolicyVersion(0, 0)
        )
        assert fair.of_batch(0, [settled, *groups(4, 0)]).due("slow") == 2
        clock.advance(0.9 * PATIENCE_S)
        fair.of_batch(0, [settled, *groups(4, 0)])
    assert not fair.suspended


def test_after_the_patience_the_others_fill_its_share_until_it_delivers(
    fair: FairShares, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    fair.of_batch(0, groups(4, 0))
    clock.advance(PATIENCE_S)
    with caplog.at_level(logging.WARNING):
        owed = fair.of_batch(0, groups(4, 0))
    assert fair.suspended == {"slow"} and "environment slow delivers nothing" in caplog.text
    assert owed.whole == {"fast": 4} and owed.due("fast") == 4
    assert fair.count(0, ["fast"] * 4) == {"slow": 2} and fair.short == {"slow": 2}
    owed = fair.of_batch(1, groups(4, 1))
    assert not fair.suspended and owed.due("slow") == 2
    assert fair.count(1, ["fast", "fast", "slow", "slow"]) == {}


def test_a_wait_for_everybody_is_nobodys_fault(fair: FairShares, clock: ManualClock) -> None:
    fair.of_batch(0, groups(1, 0))
    clock.advance(10 * PATIENCE_S)
    fair.of_batch(0, groups(1, 0))
    assert not fair.suspended


def test_one_that_loses_eight_groups_in_a_row_is_not_waited_for(fair: FairShares) -> None:
    for lost in range(0, 8, 2):
        fair.of_batch(0, groups(4, 0, first=lost))
        assert not fair.suspended
    fair.of_batch(0, groups(4, 0, first=8))
    assert fair.suspended == {"slow"}


def test_patience_grows_with_how_long_its_groups_took(fair: FairShares, clock: ManualClock) -> None:
    fair.of_batch(0, groups(0, 0, running=1))
    clock.advance(100.0)
    late = OutstandingGroup(
        group_id="r0", serial=0, environment="slow", settled=True, start=PolicyVersion(0, 0)
    )
    fair.of_batch(0, [late, *groups(4, 0, first=1)])
    clock.advance(149.0)
    fair.of_batch(0, [late, *groups(4, 0, first=1)])
    assert not fair.suspended
    clock.advance(2.0)
    fair.of_batch(0, [late, *groups(4, 0, first=1)])
    assert fair.suspended == {"slow"}


def test_what_cannot_be_dispatched_is_not_waited_for(fair: FairShares, clock: ManualClock) -> None:
    assert fair.of_batch(0, groups(6, 0, running=1)).due("slow") == 2
    clock.advance(1.0)
    owed = fair.of_batch(0, groups(6, 0, running=1))
    assert (owed.due("slow"), owed.num_open) == (1, 1)


def test_what_is_lost_is_replaced_and_what_was_overtaken_is_not_made_good(fair: FairShares) -> None:
    first = fair.turns(0, 2, Counter(), 8)
    assert Counter(first) == {"fast": 4, "slow": 4}
    assert fair.turns(0, 2, Counter(fast=4, slow=3), 1) == ["slow"], "one was lost"
    fair.count(0, ["fast", "fast", "fast", "slow"])
    after = Counter(fast=1, slow=3)
    assert Counter(fair.turns(1, 3, after, 4)) == {"fast": 2, "slow": 2}
    assert fair.turns(2, 3, after, 4) == [], "a batch that was recorded is about to be counted"


def test_a_suspended_environment_is_tried_once_per_patience(fair: FairShares, clock: ManualClock) -> None:
    fair.of_batch(0, groups(4, 0))
    clock.advance(PATIENCE_S)
    fair.of_batch(0, groups(4, 0))
    assert fair.turns(0, 2, Counter(fast=4), 4) == ["slow", "fast", "fast", "fast"]
    assert fair.turns(0, 2, Counter(fast=4), 4) == ["fast"] * 4
    clock.advance(PATIENCE_S)
    assert fair.turns(0, 2, Counter(fast=4, slow=1), 3) == ["fast"] * 3, "it still runs"
    assert fair.turns(0, 2, Counter(fast=4), 4)[0] == "slow"
