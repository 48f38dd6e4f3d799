"""The choice: which settled groups make the next batch, which are too old, and when to wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from forebay.staleness.settings import StalenessSettings
from forebay.staleness.shares import BatchShares
from forebay.staleness.versions import Fork, effective_version
from forebay.trajectory import PolicyVersion


class OutstandingGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group that was dispatched and whose step is not yet published, as the store sees it.

    Args:
        group_id: Its name.
        serial: Its place in the order of dispatch.
        environment: The environment of its task.
        settled: Whether it can be taken.
        start: The oldest version that sampled, or may yet sample, one of its tokens; None if no member has
            begun.
        num_bytes: Bytes stored or reserved for it.
    """

    group_id: str
    serial: int
    environment: str
    settled: bool
    start: PolicyVersion | None
    num_bytes: int = 0


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """What the learner should do with the outstanding groups.

    Args:
        take: Groups for the next batch, in order; empty if the learner must wait.
        stale: Settled groups that can no longer be trained and must be rejected.
        urgent: The unsettled group waited for, if waiting is what the rule demands.
        missing: Settled groups still lacking for a full batch.
        short: Environments whose share of the batch is among the missing.
    """

    take: tuple[str, ...] = ()
    stale: tuple[str, ...] = ()
    urgent: str | None = None
    missing: int = 0
    short: tuple[str, ...] = ()


def choose_groups(
    outstanding: Iterable[OutstandingGroup],
    now: PolicyVersion,
    settings: StalenessSettings,
    groups_per_batch: int,
    forks: Iterable[Fork] = (),
    *,
    updates_per_batch: int = 1,
    shares: BatchShares | None = None,
) -> Choice:
    """Decide which settled groups make the next batch, which are too old, and whether to wait.

    Oldest first. Under `wait` and `drop` a group is too old if the last update of the batch would
    differentiate it beyond max_staleness: start + max_staleness < now + U - 1, with U updates per batch.

    `wait` is stale-synchronous parallel: a batch is taken only while every group that it leaves behind can
    still be consumed in time. After the take, for the k-th remaining group (k from 0, by age, B groups a
    batch), its start + max_staleness must be at least now + U * (1 + floor(k / B)) + U - 1; else the learner
    waits for the oldest running group that the take would overtake. A group that is too old wherever it waits
    is not waited for. Groups that have not begun will begin no earlier than `now`.

    With `shares`, a batch waits for what it owes each environment, and takes the oldest of each. The k-th
    remaining group of an environment then has its turn in the batch that owes it to that environment, and
    under `wait` a settled group that could not wait so long is taken at once, whosever turn it is: that
    nothing becomes too old comes first. What an environment without a share has settled goes first, and its
    running groups are not waited for.

    Args:
        outstanding: Groups not yet recorded.
        now: The version that the batch will be differentiated at first.
        settings: The staleness rule.
        groups_per_batch: B.
        forks: The start of each incarnation after the first.
        updates_per_batch: U, optimizer updates made on one batch.
        shares: What the batch owes each environment; None where there is but one.

    Returns:
        The choice; `take` has exactly `groups_per_batch` groups or none.

    References:
        Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server", 2013.
    """
    forks = tuple(forks)
    # How much older than the version of the first update a group may be.
    bound = settings.max_staleness - (updates_per_batch - 1)

    # Groups are many, the versions that began them few.
    slacks: dict[PolicyVersion | None, int] = {None: bound}

    def slack_of(group: OutstandingGroup) -> int:
        """Return how many versions later than now the group can still be taken."""
        slack = slacks.get(group.start)
        if slack is None:
            assert group.start is not None
            slack = min(0, effective_version(group.start, forks, now.incarnation) - now.version) + bound
            slacks[group.start] = slack
        return slack

    stale: tuple[str, ...] = ()
    if settings.on_stale == "mask":
        groups = sorted(outstanding, key=lambda group: group.serial)
    else:
        by_age = sorted(outstanding, key=lambda group: (slack_of(group), group.serial))
        groups = [g for g in by_age if slack_of(g) >= 0]
        stale = tuple(g.group_id for g in by_age if g.settled and slack_of(g) < 0)
    take, short = _select(groups, groups_per_batch, shares)
    if len(take) < groups_per_batch:
        return Choice(stale=stale, missing=groups_per_batch - len(take), short=short)
    if settings.on_stale == "wait":

        def can_wait(left: _Left) -> bool:
            return slack_of(left.group) >= updates_per_batch * (1 + left.batches)

        if shares is not None:
            take = _with_overdue(groups, take, shares, can_wait)
        left = _left_behind(groups, take, groups_per_batch, shares)
        # Nobody waits for an environment that has no share, since it delivers nothing.
        urgent = _urgent((one for one in left if shares is None or one.lane in shares.whole), can_wait)
        if urgent is not None:
            return Choice(stale=stale, urgent=urgent)
    return Choice(take=take, stale=stale)


class _Left(NamedTuple):
    """A group that a take leaves behind.

    Attributes:
        group: The group.
        lane: The environment among whose groups it has its turn; "" if all share one.
        batches: Batches after the next one until it has its turn.
        overtaken: Whether a younger group of its lane is taken, or none at all.
    """

    group: OutstandingGroup
    lane: str
    batches: int
    overtaken: bool


def _select(
    groups: Sequence[OutstandingGroup], size: int, shares: BatchShares | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the settled groups for a batch, oldest first, and the environments that have too few of them."""
    settled = [group for group in groups if group.settled]
    if shares is None:
        return tuple(group.group_id for group in settled)[:size], ()
    counts: Counter[str] = Counter()
    num_open = shares.num_open
    take: list[str] = []
    for group in settled:
        if counts[group.environment] < shares.due(group.environment):
            counts[group.environment] += 1
        elif num_open > 0:
            num_open -= 1
        else:
            continue
        take.append(group.group_id)
    short = tuple(name for name in shares.whole if counts[name] < shares.due(name))
    return tuple(take[:size]), short


def _left_behind(
    groups: Sequence[OutstandingGroup], take: Collection[str], size: int, shares: BatchShares | None
) -> Iterator[_Left]:
    """Yield what a take leaves behind, by age, and when each has its turn."""
    taken = frozenset(take)
    lanes = [group.environment if shares is not None else "" for group in groups]
    last = {lane: i for i, (lane, g) in enumerate(zip(lanes, groups, strict=True)) if g.group_id in taken}
    ranks: Counter[str] = Counter()
    for index, (lane, group) in enumerate(zip(lanes, groups, strict=True)):
        if group.group_id in taken:
            continue
        rank = ranks[lane]
        ranks[lane] += 1
        batches = rank // size if shares is None else shares.batches_until(lane, rank)
        yield _Left(group, lane, batches, index < last.get(lane, len(groups)))


def _with_overdue(
    groups: Sequence[OutstandingGroup],
    take: tuple[str, ...],
    shares: BatchShares,
    can_wait: Callable[[_Left], bool],
) -> tuple[str, ...]:
    """Return a take of which no environment leaves a settled group behind that cannot wait until its turn.

    Such an environment gets one group more, its oldest, in place of the youngest of the others, until all can
    wait or the take is its own.
    """
    taken = [group for group in groups if group.group_id in take]
    late_lanes: set[str] = set()
    while True:
        chosen = frozenset(group.group_id for group in taken)
        left = list(_left_behind(groups, chosen, shares.size, shares))
        late = next((one.lane for one in left if one.group.settled and not can_wait(one)), None)
        late_lanes |= {late} if late is not None else set()
        others = [group for group in taken if group.environment not in late_lanes]
        if late is None or not others:
            return tuple(group.group_id for group in groups if group.group_id in chosen)
        taken.remove(others[-1])
        taken.append(next(one.group for one in left if one.group.settled and one.lane == late))


def _urgent(left: Iterable[_Left], can_wait: Callable[[_Left], bool]) -> str | None:
    """Return the oldest running group that the take overtakes, if one of those would become too old.

    What is settled belongs to the take. What is younger than the take comes no sooner by waiting. Waiting
    only helps for a group that is running: one that has not begun begins at a newer version.
    """
    running: dict[str, str] = {}
    for one in left:
        if one.group.settled or not one.overtaken:
            continue
        if one.group.start is not None:
            running.setdefault(one.lane, one.group.group_id)
        if not can_wait(one) and one.lane in running:
            return running[one.lane]
    return None
