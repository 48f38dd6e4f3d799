"""Siblings: the parts that the episodes of a task are dispatched in, and who must wait for another of them.

The store settles a group when its slowest member has arrived. A task whose episodes need not wait for one
another is therefore dispatched as several groups, its parts, whose names say what belongs together: its
family.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

import msgspec

from forebay.staleness.choosing import OutstandingGroup
from forebay.staleness.shares import BatchShares


def part_name(serial: int, part: int) -> str:
    """Return the name of a part.

    Args:
        serial: Place in the order of dispatch of the family's first part; it names the family.
        part: Which one, from 0.

    Example:
        >>> part_name(12, 1), family_of(part_name(12, 1)), parse_part(part_name(12, 1))
        ('g00000012-1', 'g00000012', (12, 1))
    """
    return f"g{serial:08d}-{part}"


def family_of(group_id: str) -> str:
    """Return what the names of all parts of a task begin with; a group of its own is its own family."""
    return group_id.partition("-")[0]


def parse_part(group_id: str) -> tuple[int, int]:
    """Return the serial of a family and which of its parts this is; `part_name` makes such names."""
    family, _, part = group_id.partition("-")
    return int(family[1:]), int(part)


class Comparable(NamedTuple):
    """What of the outstanding groups can be compared with siblings.

    Attributes:
        groups: Those that can be, as they are; those that finished before enough siblings, as if they still
            ran. Those that wait for siblings that may not come are left out.
        alone: Of the ones left out, those that no sibling will be there for.
    """

    groups: tuple[OutstandingGroup, ...]
    alone: tuple[str, ...]


def comparable(
    outstanding: Iterable[OutstandingGroup],
    finished: Mapping[str, Collection[str]],
    siblings_needed: int,
    groups_per_batch: int,
    shares: BatchShares | None = None,
) -> Comparable:
    """Tell which groups of one episode have finished siblings to be compared with.

    One that finished first stands for the wait for its siblings: it counts as running, so that a batch waits
    for it as it would for them. If too few of its siblings run, more come only if its family is the newest
    of its environment, whose parts may not all be dispatched yet, and then only if credit is free: it is
    alone once its environment has begun another family, or once the next batch cannot be filled without the
    credit that it holds.

    Args:
        outstanding: Groups that are not recorded.
        finished: By family, the parts known to have finished, whether they are outstanding or not.
        siblings_needed: How many finished siblings are enough.
        groups_per_batch: Groups of the next batch.
        shares: What it owes each environment; None where there is but one.
    """
    groups = tuple(outstanding)
    done: defaultdict[str, set[str]] = defaultdict(set, {name: set(ids) for name, ids in finished.items()})
    running: Counter[str] = Counter()
    newest: dict[str, OutstandingGroup] = {}
    for group in groups:
        family = family_of(group.group_id)
        if group.settled:
            done[family].add(group.group_id)
        else:
            running[family] += 1
        known = newest.get(group.environment)
        newest[group.environment] = group if known is None or group.serial > known.serial else known
    view: list[OutstandingGroup] = []
    waiting: list[OutstandingGroup] = []
    for group in groups:
        family = family_of(group.group_id)
        others = len(done[family]) - 1
        if not group.settled or others >= siblings_needed:
            view.append(group)
        elif others + running[family] >= siblings_needed:
            view.append(msgspec.structs.replace(group, settled=False))
        else:
            waiting.append(group)
    starved = _starved(view, groups_per_batch, shares)
    return Comparable(
        groups=tuple(view),
        alone=tuple(
            group.group_id
            for group in waiting
            if starved(group.environment)
            or family_of(newest[group.environment].group_id) != family_of(group.group_id)
        ),
    )


def _starved(
    groups: Collection[OutstandingGroup], groups_per_batch: int, shares: BatchShares | None
) -> Callable[[str], bool]:
    """Return whether an environment has too few groups for the next batch, whenever they settle."""
    live = Counter(group.environment for group in groups)
    if shares is None:
        return lambda _: live.total() < groups_per_batch
    return lambda name: live[name] < shares.due(name)
