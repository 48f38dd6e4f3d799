"""Families: which task each group is dispatched for, if a task is dispatched as several groups, its parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from forebay.errors import StoreError
from forebay.staleness import parse_part, part_name
from forebay.store.protocol import GroupSpec, Store
from forebay.trajectory import Task

# A task to repeat, or the environment that poses one, or None for whose turn it is.
Posed = Task | str | None


class Family(NamedTuple):
    """A task that is being dispatched.

    Attributes:
        serial: Place of its first part in the order of dispatch.
        task: The problem.
        parts: Parts dispatched.
    """

    serial: int
    task: Task
    parts: int


class Planned(NamedTuple):
    """A group that may be dispatched.

    Attributes:
        group: The group.
        lane: The environment among whose groups it has its turn; "" if all share one.
        family: Its task, this part counted.
        began_with: What its family was begun with; None if it is a later part, or the stream posed it.
    """

    group: GroupSpec
    lane: str
    family: Family
    began_with: Posed


class Families:
    """The families whose parts are not all dispatched yet, at most one for each environment.

    The parts of a task are dispatched one after another, between them at most groups of other environments.
    A learner that resumes finds the open families in the store.

    Args:
        parts: Groups that a task is dispatched as.
    """

    def __init__(self, parts: int) -> None:
        self.parts = parts
        self._open: dict[str, Family] = {}

    def restore(self, store: Store, by_environment: bool) -> None:
        """Continue the families whose newest part is in the store.

        Args:
            store: Where groups go.
            by_environment: Whether environments have turns of their own.
        """
        if self.parts == 1:
            return
        newest = {group.environment if by_environment else "": group.group_id for group in store.scan()}
        for lane, group_id in newest.items():
            serial, part = parse_part(group_id)
            try:
                task = store.read_group(group_id).spec.task
            except StoreError:  # It is gone, or damaged: the rest of its family is not missed.
                continue
            self._open[lane] = Family(serial, task, part + 1)

    def plan(
        self,
        turns: list[str | None],
        first_serial: int,
        next_task: Callable[[str | None], Posed],
        make_group: Callable[[int, Posed], GroupSpec],
    ) -> list[Planned]:
        """Return the groups for some turns; none of them counts as dispatched yet.

        Args:
            turns: The environment of each, or None if that goes without saying.
            first_serial: Serial of the first one.
            next_task: What a new family is begun with.
            make_group: Makes a group of a serial and what is posed.
        """
        known = dict(self._open)
        planned = []
        for serial, whose in enumerate(turns, first_serial):
            lane = whose or ""
            family = known.get(lane)
            if family is None or family.parts == self.parts:
                began_with = next_task(whose)
                group = make_group(serial, began_with)
                family = Family(serial, group.task, 1)
            else:
                began_with = None
                group = make_group(serial, family.task)
                family = family._replace(parts=family.parts + 1)
            if self.parts > 1:
                group = msgspec.structs.replace(group, group_id=part_name(family.serial, family.parts - 1))
            known[lane] = family
            planned.append(Planned(group, lane, family, began_with))
        return planned

    def note(self, dispatched: list[Planned]) -> None:
        """Note which of the planned groups were dispatched."""
        for one in dispatched:
            self._open[one.lane] = one.family
