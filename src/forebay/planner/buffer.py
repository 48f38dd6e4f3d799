"""The groups of a simulated run: what is dispatched, claimed, settled, chosen and discarded.

Every decision is the product's: `dispatch_allowance` and `order_of_dispatch` say what is dispatched, the
store's group rule what settles, `choose_groups` what is trained.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from forebay.planner.events import Events
from forebay.planner.scenario import Scenario
from forebay.staleness import (
    BatchShares,
    Choice,
    OutstandingGroup,
    Shares,
    choose_groups,
    dispatch_allowance,
    order_of_dispatch,
)
from forebay.store.groups import verdict
from forebay.store.records import Group, Member
from forebay.trajectory import PolicyVersion


class Result(NamedTuple):
    """What an episode brought.

    Attributes:
        turns: (version, tokens) of every model call, in order; a call that new weights came into has several.
        scored: Whether it has a reward; without one nothing of it is trained.
        length: Tokens of the trajectory, prompts included; 0 if it is not known.
    """

    turns: tuple[tuple[int, float], ...]
    scored: bool
    length: int = 0


class LiveGroup:
    """A group that is neither trained nor given up.

    Attributes:
        record: The store's record of it, which the group rule decides upon.
        results: What its members brought, by member.
        first_claim_s: When it was begun.
        settled_s: When it could be taken.
        outstanding: How the staleness rule sees it.
    """

    __slots__ = ("first_claim_s", "outstanding", "record", "results", "settled_s")

    def __init__(self, record: Group) -> None:
        self.record = record
        self.results: dict[int, Result] = {}
        self.first_claim_s = self.settled_s = 0.0
        self.outstanding = self._view(None)

    @property
    def running(self) -> bool:
        """Whether a member has begun and the group has not settled."""
        return self.outstanding.start is not None and not self.outstanding.settled

    def began_by(self, version: int) -> bool:
        """Return whether it runs, and began with a version or an older one."""
        start = self.outstanding.start
        return start is not None and not self.outstanding.settled and start.version <= version

    def store(self, index: int, result: Result) -> None:
        """Keep the result of a member."""
        oldest = min((version for version, _ in result.turns), default=None)
        member = self.record.members[index]
        member.state, member.version = "arrived", None if oldest is None else PolicyVersion(0, oldest)
        self.results[index] = result

    def end_attempt(self, index: int) -> bool:
        """End an attempt without a result; return whether the member rests, its lease kept, to try again."""
        member = self.record.members[index]
        member.attempt += 1
        again = member.attempt < self.record.max_attempts
        member.state, member.version = "leased" if again else "failed", None
        return again

    def settle(self, now_s: float) -> None:
        """Close it with the members that arrived."""
        for member in self.record.members:
            if member.state in ("free", "leased"):
                member.state, member.version = "missing", None
        self.record.state, self.settled_s = "settled", now_s

    def end(self) -> None:
        """Let nobody wait for it any more."""
        for member in self.record.members:
            member.state = "missing"
        self.record.state = "taken"

    def look_again(self) -> None:
        """Note how the staleness rule sees it after a change of its record."""
        versions = [member.version for member in self.record.members if member.version is not None]
        start = min(versions, default=None)
        if start != self.outstanding.start or (self.record.state != "open") != self.outstanding.settled:
            self.outstanding = self._view(start)

    def _view(self, start: PolicyVersion | None) -> OutstandingGroup:
        record = self.record
        return OutstandingGroup(
            group_id=record.group_id,
            serial=record.serial,
            environment=record.environment,
            settled=record.state != "open",
            start=start,
        )


class Slot:
    """One member to be worked on."""

    __slots__ = ("attempt", "group", "member", "min_version")

    def __init__(self, group: LiveGroup, member: int, attempt: int, min_version: int) -> None:
        self.group, self.member, self.attempt, self.min_version = group, member, attempt, min_version

    @property
    def held(self) -> bool:
        """Whether the store still waits for this attempt."""
        member = self.group.record.members[self.member]
        return member.state == "leased" and member.attempt == self.attempt


class FreeMembers:
    """Members that nobody works on, those of the oldest group first."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, LiveGroup]] = []

    def __bool__(self) -> bool:
        """Whether there may be one."""
        return bool(self._heap)

    def add(self, group: LiveGroup, index: int) -> None:
        """Note that a member is free."""
        heapq.heappush(self._heap, (group.record.serial, index, group))

    def pop(self, environment: str | None) -> tuple[LiveGroup, int] | None:
        """Remove and return the first member that is still free; None if there is none of the environment."""
        others, found = [], None
        while self._heap and found is None:
            entry = heapq.heappop(self._heap)
            _, index, group = entry
            if environment not in (None, group.record.environment):
                others.append(entry)
            elif group.record.state == "open" and group.record.members[index].state == "free":
                found = group, index
        for entry in others:
            heapq.heappush(self._heap, entry)
        return found


class Buffer:
    """Groups between dispatch and training.

    Args:
        scenario: Settings.
        shares: Environments and their weights.
        events: Virtual time.
        on_change: Called when the learner could choose otherwise; with the group that settled, or None.
        on_work: Called when there is something to claim.
        on_begin: Called when the first member of a group is claimed.

    Attributes:
        published: The version that the store knows.
        counters: Totals by name: groups, trajectories and attempts, by what became of them.
        num_running: Groups that have begun and not settled; num_settled: those that can be taken.
        num_stored: Trajectories stored and not taken; num_lost: groups that were given up.
        num_in_hands: Groups that the learner has taken and whose step is not published.
    """

    def __init__(
        self,
        scenario: Scenario,
        shares: Shares,
        events: Events,
        on_change: Callable[[LiveGroup | None], None],
        on_work: Callable[[], None],
        on_begin: Callable[[], None],
    ) -> None:
        self._scenario, self._shares, self._events = scenario, shares, events
        self._on_change, self._on_work, self._on_begin = on_change, on_work, on_begin
        self._rule, self._updates = scenario.rule, scenario.updates_per_batch
        self._several = len(shares.names) > 1
        self._live: dict[str, LiveGroup] = {}
        self._free = FreeMembers()
        self._next_serial = self.num_in_hands = self.published = 0
        self.num_running = self.num_settled = self.num_stored = self.num_lost = 0
        self.counters: Counter[str] = Counter()

    def dispatch(self) -> None:
        """Dispatch what the credit and the capacity allow."""
        scenario = self._scenario
        num_live = len(self._live)
        allowance = dispatch_allowance(
            self._rule,
            scenario.groups,
            num_live + self.num_in_hands,
            updates_per_batch=self._updates,
        )
        if scenario.capacity_groups is not None:
            allowance = min(allowance, scenario.capacity_groups - num_live)
        if allowance <= 0:
            return
        recorded = self.published // self._updates + self.num_in_hands // scenario.groups
        live = [group.record.environment for group in self._live.values()] if self._several else []
        for environment in _whose_turn(self._shares, recorded * scenario.groups, live, allowance):
            self._add(environment)
        self._on_work()

    def num_ready(self, environment: str) -> int:
        """Return how many groups of an environment have settled and are not taken."""
        return sum(
            group.record.environment == environment and group.record.state == "settled"
            for group in self._live.values()
        )

    def claim(self, generator_version: int, environment: str | None = None) -> Slot | None:
        """Lease a member, of the oldest group first; None if none is free, or none of the environment."""
        if (found := self._free.pop(environment)) is None:
            return None
        group, index = found
        record = group.record
        member = record.members[index]
        start = max(generator_version, record.min_version.version)
        if record.deadline_wall_s is None:
            group.first_claim_s = self._events.now_s
            record.deadline_wall_s = self._events.now_s + record.deadline_s
            self._events.after(record.deadline_s, self._close_if_done, group)
        member.state, member.version = "leased", PolicyVersion(0, start)
        began = not group.running
        self._look_again(group)
        if began:
            self._on_begin()
        return Slot(group, index, member.attempt, start)

    def put(self, slot: Slot, result: Result) -> None:
        """Store the result of a slot; without effect if nobody waits for it any more."""
        if not slot.held:
            self.counters["late"] += 1
            return
        slot.group.store(slot.member, result)
        self.counters["accepted"] += 1
        self.num_stored += 1
        self._close_if_done(slot.group)

    def fail(self, slot: Slot) -> bool:
        """End an attempt without a result; return whether the member is to be tried again."""
        if not slot.held:
            return False
        again = slot.group.end_attempt(slot.member)
        slot.attempt += 1
        self.counters["retried"] += again
        self._close_if_done(slot.group)
        return again

    def has_work(self) -> bool:
        """Return whether a member may be free to be claimed."""
        return bool(self._free)

    def retry(self, slot: Slot) -> None:
        """Make a member that has rested claimable."""
        if slot.held:
            slot.group.record.members[slot.member].state = "free"
            self._free.add(slot.group, slot.member)
            self._on_work()

    def choose(self, version: int) -> Choice:
        """Return what the learner makes of the groups, for a batch differentiated at a version."""
        number, size = version // self._updates, self._scenario.groups
        shares = BatchShares(self._shares, number, size) if self._several else None
        return choose_groups(
            [group.outstanding for group in self._live.values()],
            now=PolicyVersion(0, version),
            settings=self._rule,
            groups_per_batch=size,
            updates_per_batch=self._updates,
            shares=shares,
        )

    def take(self, group_ids: Sequence[str]) -> list[LiveGroup]:
        """Remove groups for training; they count as outstanding until their step is published."""
        taken = [self._live.pop(group_id) for group_id in group_ids]
        self.num_settled -= len(taken)
        self.num_stored -= sum(len(group.results) for group in taken)
        self.num_in_hands += len(taken)
        return taken

    def reject(self, group_ids: Sequence[str], reason: str) -> None:
        """Give up groups."""
        for group_id in group_ids:
            self._forget(self._live[group_id], reason)

    def give_up(self, groups: Sequence[LiveGroup]) -> None:
        """Count taken groups of which nothing can be trained."""
        self.num_in_hands -= len(groups)
        self.counters["no_fresh_token"] += sum(len(group.results) for group in groups)
        self.num_lost += len(groups)

    def publish(self, version: int, num_groups: int) -> None:
        """Note a published version, which frees the credit of the groups trained for it."""
        self.published = version
        self.num_in_hands -= num_groups

    def running(self, group_id: str, newest: int) -> bool:
        """Return whether a group still runs that began with this version or an older one."""
        return group_id in self._live and self._live[group_id].began_by(newest)

    @property
    def num_unsettled(self) -> int:
        """Groups that cannot be taken yet, begun or not."""
        return len(self._live) - self.num_settled

    def _add(self, environment: str) -> None:
        group = _new_group(self._scenario, self._next_serial, environment, self.published, self._events.now_s)
        self._live[group.record.group_id] = group
        for index in range(self._scenario.group_size):
            self._free.add(group, index)
        self._next_serial += 1
        self.counters["dispatched"] += 1

    def _look_again(self, group: LiveGroup) -> None:
        was_running = group.running
        group.look_again()
        self.num_running += group.running - was_running

    def _close_if_done(self, group: LiveGroup) -> None:
        if group.record.state != "open":
            return  # it had settled before its deadline
        found = verdict(group.record, self._events.now_s)
        if found == "settled":
            group.settle(self._events.now_s)
            self.num_settled += 1
            self.counters["settled"] += 1
        elif found != "open":
            self._forget(group, found)
            self.dispatch()
            self._on_change(None)
            return
        self._look_again(group)
        if found == "settled":
            self._on_change(group)

    def _forget(self, group: LiveGroup, reason: str) -> None:
        self.num_running -= group.running
        self.counters[reason] += len(group.results)
        self.num_lost += 1
        self.num_stored -= len(group.results)
        self.num_settled -= group.record.state == "settled"
        group.end()
        del self._live[group.record.group_id]


def _new_group(scenario: Scenario, serial: int, environment: str, published: int, now_s: float) -> LiveGroup:
    """Return a group as the dispatcher makes it."""
    return LiveGroup(
        Group(
            group_id=f"g{serial:08d}",
            serial=serial,
            environment=environment,
            min_group_size=scenario.least_members,
            min_version=PolicyVersion(0, published),
            deadline_s=scenario.deadline_s,
            member_bytes=1,
            max_attempts=scenario.max_attempts,
            incarnation=0,
            dispatched_s=now_s,
            members=[Member() for _ in range(scenario.group_size)],
        )
    )


def _whose_turn(shares: Shares, start: int, live: Sequence[str], allowance: int) -> list[str]:
    """Return the environments of the next groups, those that lost some first."""
    if len(shares.names) == 1:
        return [shares.names[0]] * allowance
    order = order_of_dispatch(shares, start, start + len(live) + allowance, Counter(live))
    return list(itertools.islice(order, allowance))
