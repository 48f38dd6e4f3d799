"""The choice among several environments; that within one is in `tests/unit/test_staleness.py`."""

from __future__ import annotations

import pytest

from forebay.staleness import (
    BatchShares,
    Choice,
    OnStale,
    OutstandingGroup,
    Shares,
    StalenessSettings,
    choose_groups,
)
from forebay.trajectory import PolicyVersion

HALVES = Shares(("fast", "slow"), (1.0, 1.0))
NOW = PolicyVersion(0, 10)


def group(serial: int, environment: str, start: int | None = 10, *, settled: bool = True) -> OutstandingGroup:
    return OutstandingGroup(
        group_id=f"{environment}{serial}",
        serial=serial,
        environment=environment,
        settled=settled,
        start=None if start is None else PolicyVersion(0, start),
    )


def choose(
    groups: list[OutstandingGroup],
    on_stale: OnStale = "wait",
    *,
    size: int = 2,
    limits=None,
    staleness: int = 3,
) -> Choice:
    shares = BatchShares(HALVES, 10, size).limited(limits or {})
    rule = StalenessSettings(max_staleness=staleness, on_stale=on_stale)
    return choose_groups(groups, NOW, rule, size, shares=shares)


@pytest.mark.parametrize("on_stale", ["wait", "drop", "mask"])
def test_c56_a_batch_waits_for_the_share_of_the_slow_one(on_stale: OnStale) -> None:
    fast = [group(serial, "fast") for serial in range(4)]
    assert choose(fast, on_stale) == Choice(missing=1, short=("slow",))
    assert choose([*fast, group(9, "slow")], on_stale).take == ("fast0", "slow9")
    assert choose([group(9, "slow", settled=False), *fast], on_stale).missing == 1


def test_what_an_environment_cannot_fill_others_do() -> None:
    fast = [group(serial, "fast") for serial in range(5)]
    assert choose(fast, limits={"slow": 0}).take == ("fast0", "fast1")


def test_what_would_be_too_old_until_its_turn_goes_first() -> None:
    # The fifth would have its turn in four batches, and can wait for three.
    five = [*(group(serial, "fast") for serial in range(5)), group(9, "slow")]
    assert choose(five).take == ("fast0", "fast1")
    assert choose(five, "drop").take == ("fast0", "slow9")
    # Two of the fast ones are of the version that has its last turn now: one would be lost.
    groups = [group(0, "fast", 7), group(1, "fast", 7), group(2, "slow", 9)]
    assert choose(groups).take == ("fast0", "fast1")
    assert choose(groups, "drop").take == ("fast0", "slow2")
    assert choose([group(0, "fast", 7), group(1, "fast", 8), group(2, "slow", 9)]).take == ("fast0", "slow2")


def test_wait_looks_at_the_turns_of_each_environment() -> None:
    # The running one is taken over by a younger one of its own kind, and could not wait for the next batch.
    running = group(0, "slow", 7, settled=False)
    younger = [group(1, "slow", 10), group(2, "fast", 10)]
    assert choose([running, *younger]).urgent == "slow0"
    assert choose([group(0, "slow", 8, settled=False), *younger]).take == ("slow1", "fast2")


def test_an_environment_without_a_share_goes_first_and_is_not_waited_for() -> None:
    groups = [group(0, "dead", 7, settled=False), group(1, "dead", 9), group(2, "fast"), group(3, "slow")]
    assert choose(groups).take == ("dead1", "fast2")
    assert choose([groups[0], group(2, "fast"), group(3, "slow")]).take == ("fast2", "slow3")
