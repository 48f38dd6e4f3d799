from __future__ import annotations

import pytest

from forebay.staleness import (
    BatchShares,
    OutstandingGroup,
    Shares,
    StalenessSettings,
    choose_groups,
    comparable,
    family_of,
    parse_part,
    part_name,
)
from forebay.trajectory import PolicyVersion, check_name


def part(serial: int, number: int, settled: bool = False, *, environment: str = "e", start: int | None = 0):
    return OutstandingGroup(
        group_id=part_name(serial, number),
        serial=serial + number,
        environment=environment,
        settled=settled,
        start=None if start is None else PolicyVersion(0, start),
    )


def settled_ids(groups) -> list[str]:
    return [group.group_id for group in groups if group.settled]


@pytest.mark.parametrize(("serial", "number"), [(0, 0), (12, 3), (123_456_789, 15)])
def test_a_name_says_family_and_part_and_is_safe(serial: int, number: int) -> None:
    name = check_name(part_name(serial, number), "group_id")
    assert parse_part(name) == (serial, number)
    assert family_of(name) == family_of(part_name(serial, number + 1)) != family_of(part_name(serial + 1, 0))
    assert "." not in name, "members and attempts are told apart by dots"


def test_who_finished_first_counts_as_running_until_another_has() -> None:
    groups = [part(0, 0, True), part(0, 1), part(0, 2), part(0, 3)]
    view, alone = comparable(groups, {}, 1, 4)
    assert [group.group_id for group in view] == [group.group_id for group in groups]
    assert settled_ids(view) == [] and alone == ()
    groups[2] = part(0, 2, True)
    assert settled_ids(comparable(groups, {}, 1, 4).groups) == [part_name(0, 0), part_name(0, 2)]


def test_a_sibling_that_was_trained_before_is_enough() -> None:
    view, _ = comparable([part(0, 3, True)], {"g00000000": {part_name(0, 0)}}, 1, 1)
    assert settled_ids(view) == [part_name(0, 3)]


def test_a_part_is_not_its_own_sibling_although_its_outcome_is_known() -> None:
    groups = [part(0, 0, True), part(0, 1)]
    assert settled_ids(comparable(groups, {"g00000000": {part_name(0, 0)}}, 1, 2).groups) == []


@pytest.mark.parametrize(("needed", "expected"), [(1, 3), (2, 3), (3, 0)])
def test_more_siblings_can_be_waited_for(needed: int, expected: int) -> None:
    groups = [part(0, 0, True), part(0, 1, True), part(0, 2, True), part(0, 3)]
    assert len(settled_ids(comparable(groups, {}, needed, 4).groups)) == expected


def test_who_has_no_sibling_left_is_alone_once_its_environment_has_begun_another_family() -> None:
    last = part(0, 3, True)
    view, alone = comparable([last, part(4, 0), part(4, 1)], {}, 1, 1)
    assert alone == (part_name(0, 3),)
    assert part_name(0, 3) not in [group.group_id for group in view]


def test_the_newest_family_may_get_more_parts_unless_the_batch_needs_the_credit() -> None:
    groups = [part(0, 0), part(0, 1), part(4, 0, True)]
    assert comparable(groups, {}, 1, 2).alone == ()
    assert comparable(groups, {}, 1, 3).alone == (part_name(4, 0),)


def test_newest_and_credit_are_those_of_its_environment() -> None:
    shares = BatchShares(Shares(("a", "b"), (1.0, 1.0)), batch=0, size=4)
    groups = [part(0, 0, True, environment="a"), *(part(4, n, environment="b") for n in range(4))]
    assert comparable(groups, {}, 1, 4).alone == ()
    assert comparable(groups, {}, 1, 4, shares).alone == (part_name(0, 0),), "a owes two, and has none"


def test_wait_waits_for_the_siblings_of_who_finished_first() -> None:
    """It would become too old behind the younger ones that are settled, though it is settled itself."""
    settings = StalenessSettings(max_staleness=1, on_stale="wait")
    groups = [part(0, 0, True), part(0, 1), part(4, 0, True, start=1), part(4, 1, True, start=1)]
    view, _ = comparable(groups, {}, 1, 2)
    assert choose_groups(view, PolicyVersion(0, 1), settings, 2).urgent == part_name(0, 0)
    groups[1] = part(0, 1, True)
    view, _ = comparable(groups, {}, 1, 2)
    assert choose_groups(view, PolicyVersion(0, 1), settings, 2).take == (part_name(0, 0), part_name(0, 1))
