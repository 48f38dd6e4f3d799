"""Staleness: how old a token may be, what may be dispatched, and which groups may be taken.

Pure functions of values. Staleness is counted in policy versions: the version being differentiated minus the version
that sampled the token. Versions are ordered by (incarnation, version); a version that an older incarnation made beyond
the point where its successor forked off counts as the fork's version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, Self

import msgspec
from pydantic import BaseModel, ConfigDict, Field, model_validator

from forebay.errors import ConfigError, StalenessError
from forebay.trajectory import PolicyVersion

OnStale = Literal["wait", "drop", "mask"]


class StalenessSettings(BaseModel):
    """How far behind the learner an actor's tokens may be, and what happens to those that are."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_staleness: int = Field(
        8, ge=0, le=10_000, description="Oldest trained token, in versions; 0 is synchronous."
    )
    on_stale: OnStale = Field(
        "wait", description="wait for urgent groups, drop late ones, or mask their old tokens."
    )
    credit: int | None = Field(None, ge=1, description="Batches in flight; default max_staleness + 1.")

    @model_validator(mode="after")
    def _credit_can_be_trained(self) -> Self:
        if self.credit is not None and self.on_stale != "mask" and self.credit > self.max_staleness + 1:
            raise ValueError(
                f"staleness.credit={self.credit} exceeds max_staleness + 1 = {self.max_staleness + 1}: the last batch "
                f"in flight would always be too old. Lower credit or raise max_staleness."
            )
        return self

    @property
    def batches_in_flight(self) -> int:
        """Batches that may be outstanding at once."""
        return self.credit if self.credit is not None else self.max_staleness + 1


class Fork(msgspec.Struct, frozen=True, array_like=True):
    """Where an incarnation began: it continues the history from `version`."""

    incarnation: int
    version: int


class OutstandingGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group that was dispatched and whose step is not yet published, as the store sees it.

    Args:
        group_id: Its name.
        serial: Its place in the order of dispatch.
        environment: The environment of its task.
        settled: Whether it can be taken.
        start: The oldest version that sampled, or may yet sample, one of its tokens; None if no member has begun.
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
    """

    take: tuple[str, ...] = ()
    stale: tuple[str, ...] = ()
    urgent: str | None = None
    missing: int = 0


def effective_version(version: PolicyVersion, forks: Iterable[Fork], incarnation: int) -> int:
    """Return the version number in the surviving history that `version` stands for.

    Args:
        version: Where a token was sampled.
        forks: The start of each incarnation after the first.
        incarnation: The incarnation of the learner that asks.

    Example:
        >>> effective_version(PolicyVersion(0, 40), [Fork(1, 38)], incarnation=1)
        38
    """
    later = [f.version for f in forks if version.incarnation < f.incarnation <= incarnation]
    return min([version.version, *later])


def staleness_of(version: PolicyVersion, now: PolicyVersion, forks: Iterable[Fork] = ()) -> int:
    """Return how many versions before `now` a token was sampled.

    Args:
        version: The version that sampled it.
        now: The version being differentiated.
        forks: The start of each incarnation after the first.

    Returns:
        Staleness in versions, at least 0.

    Raises:
        StalenessError: The token claims an incarnation or a version that the learner has not made.

    Example:
        >>> staleness_of(PolicyVersion(0, 7), PolicyVersion(0, 10))
        3
    """
    lag = now.version - effective_version(version, forks, now.incarnation)
    if version.incarnation > now.incarnation or (version.incarnation == now.incarnation and lag < 0):
        raise StalenessError("sample from the future", got=tuple(version), limit=tuple(now))
    # A token of an older incarnation can lie ahead of a learner that still replays up to the fork.
    return max(lag, 0)


def is_fresh(
    version: PolicyVersion, now: PolicyVersion, max_staleness: int, forks: Iterable[Fork] = ()
) -> bool:
    """Return whether a token may be trained: its staleness is at most `max_staleness` (inclusive)."""
    return staleness_of(version, now, forks) <= max_staleness


def dispatch_allowance(
    settings: StalenessSettings, groups_per_batch: int, num_outstanding: int, groups_left: int | None = None
) -> int:
    """Return how many groups may be dispatched now.

    Computed from what is outstanding, so that a restart cannot grant credit twice.

    Args:
        settings: The staleness rule.
        groups_per_batch: Groups that one optimizer batch takes.
        num_outstanding: Groups dispatched whose step is not yet published.
        groups_left: Groups the run still has to consume, outstanding ones included; None for an endless run.

    Example:
        >>> dispatch_allowance(StalenessSettings(max_staleness=4), 32, 0)
        160
    """
    limit = settings.batches_in_flight * groups_per_batch
    if groups_left is not None:
        limit = min(limit, groups_left)
    return max(0, limit - num_outstanding)


def check_updates_per_batch(settings: StalenessSettings, updates_per_batch: int) -> None:
    """Refuse minibatches and epochs whose later updates would always be too stale.

    The u-th update of a batch differentiates a version u steps newer than the first; a batch taken perfectly fresh
    therefore reaches staleness `updates_per_batch - 1`.

    Raises:
        ConfigError: The last update could never train a token.
    """
    if updates_per_batch - 1 > settings.max_staleness:
        raise ConfigError(
            f"{updates_per_batch} optimizer updates per batch reach staleness {updates_per_batch - 1}",
            got=f"max_staleness={settings.max_staleness}",
            limit=f"max_staleness >= {updates_per_batch - 1}",
            remedy="Lower learner.minibatches or learner.epochs, or raise staleness.max_staleness.",
        )


def choose_groups(
    outstanding: Iterable[OutstandingGroup],
    now: PolicyVersion,
    settings: StalenessSettings,
    groups_per_batch: int,
    forks: Iterable[Fork] = (),
) -> Choice:
    """Decide which settled groups make the next batch, which are too old, and whether to wait.

    `wait` is stale-synchronous parallel: a batch is taken only while every outstanding group can still be consumed in
    time. After the take, for the k-th remaining group (k from 0, in order of age, B groups a batch), its start version
    plus max_staleness must be at least now + 1 + floor(k / B); else the learner waits for an unsettled one among those
    that are in the way. Groups that have not begun will begin no earlier than `now`.

    Args:
        outstanding: Groups not yet recorded.
        now: The version that the batch will be differentiated at.
        settings: The staleness rule.
        groups_per_batch: B.
        forks: The start of each incarnation after the first.

    Returns:
        The choice; `take` has exactly `groups_per_batch` groups or none.

    References:
        Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server", 2013.
    """
    forks = tuple(forks)
    bound = settings.max_staleness

    def start_of(group: OutstandingGroup) -> int:
        if group.start is None:
            return now.version
        return min(now.version, effective_version(group.start, forks, now.incarnation))

    groups = sorted(outstanding, key=lambda group: (start_of(group), group.serial))
    stale: tuple[str, ...] = ()
    if settings.on_stale != "mask":
        too_old = {g.group_id for g in groups if start_of(g) + bound < now.version}
        stale = tuple(g.group_id for g in groups if g.settled and g.group_id in too_old)
        groups = [g for g in groups if g.group_id not in too_old]
    else:
        groups.sort(key=lambda group: group.serial)
    take = [g for g in groups if g.settled][:groups_per_batch]
    missing = groups_per_batch - len(take)
    if missing:
        return Choice(stale=stale, missing=missing)
    if settings.on_stale == "wait":
        urgent = _urgent(
            groups, {g.group_id for g in take}, start_of, now.version + 1 - bound, groups_per_batch
        )
        if urgent is not None:
            return Choice(stale=stale, urgent=urgent)
    return Choice(take=tuple(g.group_id for g in take), stale=stale)


def _urgent(
    groups: list[OutstandingGroup],
    taken: set[str],
    start_of: Callable[[OutstandingGroup], int],
    first_allowed: int,
    groups_per_batch: int,
) -> str | None:
    """Return the first unsettled group whose delay would make itself or a later one too old, if any."""
    unsettled: str | None = None
    for k, group in enumerate(g for g in groups if g.group_id not in taken):
        # Waiting only helps for a group that is running: one that has not begun begins at a newer version.
        if unsettled is None and not group.settled and group.start is not None:
            unsettled = group.group_id
        if start_of(group) < first_allowed + k // groups_per_batch and unsettled is not None:
            return unsettled
    return None
