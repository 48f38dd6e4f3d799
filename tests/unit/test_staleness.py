from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from forebay.errors import ConfigError, StalenessError
from forebay.staleness import (
    Choice,
    Fork,
    OutstandingGroup,
    StalenessSettings,
    check_updates_per_batch,
    choose_groups,
    credit_batches,
    dispatch_allowance,
    effective_version,
    is_fresh,
    staleness_of,
)
from forebay.trajectory import PolicyVersion

EXPECTED = json.loads((Path(__file__).parents[1] / "golden" / "expected.json").read_text())


def v(version: int, incarnation: int = 0) -> PolicyVersion:
    return PolicyVersion(incarnation, version)


def group(serial: int, start: int | PolicyVersion | None, settled: bool = True) -> OutstandingGroup:
    version = v(start) if isinstance(start, int) else start
    return OutstandingGroup(
        group_id=f"g{serial}", serial=serial, environment="e", settled=settled, start=version
    )


def running(serial: int, start: int | PolicyVersion | None) -> OutstandingGroup:
    return group(serial, start, settled=False)


def rule(on_stale: str, max_staleness: int, credit: int | None = None) -> StalenessSettings:
    return StalenessSettings.model_validate(
        {"on_stale": on_stale, "max_staleness": max_staleness, "credit": credit}
    )


@pytest.mark.parametrize("row", EXPECTED["C33"]["expect"])
def test_c33_staleness_boundaries(row: dict[str, object]) -> None:
    sample, learner, limit = row["args"]  # type: ignore[misc]
    if isinstance(row["accept"], bool):
        assert is_fresh(v(sample), v(learner), limit) is row["accept"]
    else:
        with pytest.raises(StalenessError, match="from the future"):
            is_fresh(v(sample), v(learner), limit)


def test_c31_staleness_is_per_token() -> None:
    case = EXPECTED["C31"]
    lags = [staleness_of(v(version), v(6)) for version in case["input"]["token_versions"]]
    assert lags == case["expect"]["token_lag"]
    assert max(lags) == case["expect"]["sample_lag_oldest"]


@pytest.mark.parametrize(
    ("version", "now", "forks", "staleness"),
    [
        # C35: 40 was published, a crash, the checkpoint of 38 is restored.
        (v(40, 0), v(38, 1), [Fork(1, 38)], 0),
        (v(39, 0), v(38, 1), [Fork(1, 38)], 0),
        (v(40, 0), v(41, 1), [Fork(1, 38)], 3),
        (v(37, 0), v(38, 1), [Fork(1, 38)], 1),
        (v(39, 1), v(40, 1), [Fork(1, 38)], 1),
        # Twice: the older history forked off at 38, then at 30, and its tokens count from the earliest.
        (v(40, 0), v(31, 2), [Fork(1, 38), Fork(2, 30)], 1),
        (v(35, 1), v(31, 2), [Fork(1, 38), Fork(2, 30)], 1),
        # A fork after the learner's own incarnation is not its history.
        (v(40, 0), v(41, 1), [Fork(1, 38), Fork(2, 30)], 3),
        # The learner replays towards the fork: what was sampled there is not from the future.
        (v(38, 0), v(36, 1), [Fork(1, 38)], 0),
    ],
)
def test_c35_versions_are_ordered_across_incarnations(
    version: PolicyVersion, now: PolicyVersion, forks: list[Fork], staleness: int
) -> None:
    assert staleness_of(version, now, forks) == staleness


@pytest.mark.parametrize(("version", "now"), [(v(3, 2), v(9, 1)), (v(10, 1), v(9, 1)), (v(1, 0), v(0, 0))])
def test_c35_a_version_that_was_never_made_is_an_error(version: PolicyVersion, now: PolicyVersion) -> None:
    with pytest.raises(StalenessError):
        staleness_of(version, now, [Fork(1, 5)])


def test_effective_version_never_exceeds_a_later_fork() -> None:
    assert effective_version(v(37, 0), [Fork(1, 38)], incarnation=1) == 37
    assert effective_version(v(38, 0), [Fork(1, 38)], incarnation=1) == 38
    assert effective_version(v(39, 0), [Fork(1, 38)], incarnation=0) == 39


def test_c32_credit_comes_from_what_is_outstanding() -> None:
    case = EXPECTED["C32"]
    settings = rule("wait", case["input"]["max_staleness"])
    assert dispatch_allowance(settings, case["input"]["batch"], 0) == case["expect"]["capacity"]
    assert dispatch_allowance(settings, 32, 159) == 1
    assert dispatch_allowance(settings, 32, 160) == 0
    assert dispatch_allowance(settings, 32, 3360) == 0


@pytest.mark.parametrize(
    ("max_staleness", "credit", "updates", "expected"),
    [(0, None, 1, 1), (8, None, 1, 9), (8, 3, 1, 3), (8, None, 2, 4), (8, None, 9, 1), (3, None, 4, 1)],
)
def test_credit_in_batches(max_staleness: int, credit: int | None, updates: int, expected: int) -> None:
    assert credit_batches(rule("wait", max_staleness, credit), updates) == expected


@pytest.mark.parametrize(
    ("num_steps", "outstanding", "allowance"), [(1, 0, 8), (2, 0, 16), (2, 16, 0), (2, 9, 7), (50, 0, 40)]
)
def test_c84_a_short_run_dispatches_no_more_than_it_trains(
    num_steps: int, outstanding: int, allowance: int
) -> None:
    assert dispatch_allowance(rule("wait", 4), 8, outstanding, groups_left=8 * num_steps) == allowance


def test_c36_several_updates_per_batch_are_refused_or_counted() -> None:
    case = EXPECTED["C36"]["input"]
    lags = [staleness_of(v(10), v(case["learner_version_at_pull"] + i)) for i in range(case["minibatches"])]
    assert lags == EXPECTED["C36"]["expect"]["lag_per_minibatch"]
    with pytest.raises(ConfigError, match=r"max_staleness=2, limit max_staleness >= 3") as caught:
        check_updates_per_batch(rule("wait", case["max_staleness"]), case["minibatches"])
    assert caught.value.exit_code == 2
    check_updates_per_batch(rule("wait", 3), 4)


def test_credit_beyond_what_can_be_trained_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"credit=6 exceeds max_staleness \+ 1 = 5"):
        rule("drop", 4, credit=6)
    assert rule("mask", 4, credit=6).credit == 6
    check_updates_per_batch(rule("wait", 5, credit=3), 2)
    with pytest.raises(ConfigError, match="3 batches in flight of 2 updates each reach staleness 5"):
        check_updates_per_batch(rule("wait", 4, credit=3), 2)


def test_a_rhythm_of_publishing_that_would_starve_is_refused() -> None:
    check_updates_per_batch(rule("wait", 3), 1, publish_every=4)
    with pytest.raises(ConfigError, match=r"publish_every=5, limit 4 batches in flight"):
        check_updates_per_batch(rule("wait", 3), 1, publish_every=5)


# B = 2 and max_staleness 2 below: at now = 10, starts 8, 9 and 10 can still be trained.


@pytest.mark.parametrize("on_stale", ["wait", "drop", "mask"])
def test_too_few_settled_groups_are_waited_for(on_stale: str) -> None:
    choice = choose_groups([group(0, 10), running(1, 10)], v(10), rule(on_stale, 2), 2)
    assert choice == Choice(missing=1)
    assert choose_groups([], v(10), rule(on_stale, 2), 2) == Choice(missing=2)


def test_the_oldest_are_taken_first_by_start_then_by_dispatch() -> None:
    groups = [group(0, 10), group(3, 9), group(2, 9), group(1, 8)]
    assert choose_groups(groups, v(10), rule("drop", 2), 2).take == ("g1", "g2")
    assert choose_groups(groups, v(10), rule("drop", 2), 3).take == ("g1", "g2", "g3")


def test_mask_takes_in_order_of_dispatch_and_rejects_nothing() -> None:
    groups = [group(2, 1), group(1, 10), running(0, 1)]
    assert choose_groups(groups, v(10), rule("mask", 2), 2) == Choice(take=("g1", "g2"))


@pytest.mark.parametrize("on_stale", ["wait", "drop"])
def test_c33_a_group_is_stale_one_version_beyond_the_limit(on_stale: str) -> None:
    groups = [group(0, 7), group(1, 8), group(2, 10)]
    assert choose_groups(groups, v(10), rule(on_stale, 2), 2) == Choice(take=("g1", "g2"), stale=("g0",))
    # Alone too old, it is rejected although the batch is not full.
    assert choose_groups([group(0, 7)], v(10), rule(on_stale, 2), 2) == Choice(stale=("g0",), missing=2)


def test_a_running_group_that_is_too_old_is_not_waited_for() -> None:
    groups = [running(0, 7), group(1, 10), group(2, 10)]
    assert choose_groups(groups, v(10), rule("wait", 2), 2) == Choice(take=("g1", "g2"))


def test_wait_holds_for_the_group_that_could_not_be_taken_later() -> None:
    # Start 8 can be trained at 10 but not at 11.
    groups = [running(0, 8), group(1, 9), group(2, 10)]
    assert choose_groups(groups, v(10), rule("wait", 2), 2) == Choice(urgent="g0")
    assert choose_groups(groups, v(10), rule("drop", 2), 2) == Choice(take=("g1", "g2"))
    # Settled, it leads the batch; start 9 can wait for version 11.
    assert choose_groups([group(0, 8), *groups[1:]], v(10), rule("wait", 2), 2).take == ("g0", "g1")
    assert choose_groups([running(0, 9), *groups[1:]], v(10), rule("wait", 2), 2).take == ("g1", "g2")


def test_wait_counts_the_queue_before_a_group() -> None:
    # Three groups of start 9 left behind: two fit the batch of version 11, the third would come at 12.
    behind = [running(0, 9), running(1, 9), running(2, 9)]
    taken = [group(3, 10), group(4, 10)]
    assert choose_groups([*behind[:2], *taken], v(10), rule("wait", 2), 2).take == ("g3", "g4")
    assert choose_groups([*behind, *taken], v(10), rule("wait", 2), 2).urgent == "g0"


def test_wait_does_not_hold_for_what_waiting_cannot_mend() -> None:
    # The take already is the oldest pair; start 8 behind it misses version 11 whatever happens.
    groups = [group(0, 8), group(1, 8), group(2, 8), running(3, 8)]
    assert choose_groups(groups, v(10), rule("wait", 2), 2).take == ("g0", "g1")


def test_a_group_that_has_not_begun_is_not_urgent() -> None:
    groups = [running(0, None), group(1, 10), group(2, 10)]
    assert choose_groups(groups, v(10), rule("wait", 2), 2).take == ("g1", "g2")
    # Even when it should be: it begins at a newer version, and nobody is at work on it.
    assert choose_groups(groups, v(10), rule("wait", 0), 2).take == ("g1", "g2")


def test_c35_groups_of_an_older_incarnation_count_from_the_fork() -> None:
    forks = [Fork(1, 38)]
    groups = [group(0, v(40, 0)), group(1, v(39, 1)), group(2, v(37, 0))]
    assert choose_groups(groups, v(40, 1), rule("drop", 2), 2, forks) == Choice(
        take=("g0", "g1"), stale=("g2",)
    )


def test_c36_later_updates_of_the_batch_count() -> None:
    # Two updates per batch: the second differentiates 11, so that start 8 is one too old.
    groups = [group(0, 8), group(1, 9), group(2, 10), group(3, 10)]
    choice = choose_groups(groups, v(10), rule("wait", 2), 2, updates_per_batch=2)
    assert choice == Choice(take=("g1", "g2"), stale=("g0",))
    # max_staleness 3: the next batch reaches version 13, start 9 must not be left behind.
    groups = [running(0, 9), group(1, 10), group(2, 10)]
    assert choose_groups(groups, v(10), rule("wait", 3), 2, updates_per_batch=2).urgent == "g0"
    groups[0] = running(0, 10)
    assert choose_groups(groups, v(10), rule("wait", 3), 2, updates_per_batch=2).take == ("g1", "g2")
