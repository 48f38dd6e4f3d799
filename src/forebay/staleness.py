"""Staleness: how old a token may be, what may be dispatched, and which groups may be taken.

Pure functions of values. Staleness is counted in policy versions: the version being differentiated minus the
version that sampled the token. Versions are ordered by (incarnation, version); a version that an older
incarnation made beyond the point where its successor forked off counts as the fork's version.
"""

from __future__ import annotations

from collections.abc import Iterable
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
    credit: int | None = Field(
        None,
        ge=1,
        description="Batches in flight; default (max_staleness + 1) // optimizer updates per batch.",
    )

    @model_validator(mode="after")
    def _credit_can_be_trained(self) -> Self:
        if self.credit is not None and self.on_stale != "mask" and self.credit > self.max_staleness + 1:
            raise ValueError(
                f"staleness.credit={self.credit} exceeds max_staleness + 1 = {self.max_staleness + 1}: the "
                f"last batch in flight would always be too old. Lower credit or raise max_staleness."
            )
        return self

    @property
    def batches_in_flight(self) -> int:
        """The credit with one optimizer update per batch, and the most there can be with several."""
        return credit_batches(self)


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


def credit_batches(settings: StalenessSettings, updates_per_batch: int = 1) -> int:
    """Return how many batches may be outstanding at once: the credit.

    With U optimizer updates per batch and C batches in flight, the last update of the youngest batch
    differentiates a version C * U - 1 newer than the one its groups began with. Unless set, C is therefore
    floor((max_staleness + 1) / U).

    Example:
        >>> credit_batches(StalenessSettings(max_staleness=8)), credit_batches(StalenessSettings(), 4)
        (9, 2)
    """
    if settings.credit is not None:
        return settings.credit
    return max(1, (settings.max_staleness + 1) // updates_per_batch)


def dispatch_allowance(
    settings: StalenessSettings,
    groups_per_batch: int,
    num_outstanding: int,
    groups_left: int | None = None,
    *,
    updates_per_batch: int = 1,
) -> int:
    """Return how many groups may be dispatched now.

    Computed from what is outstanding, so that a restart cannot grant credit twice.

    Args:
        settings: The staleness rule.
        groups_per_batch: Groups that one optimizer batch takes.
        num_outstanding: Groups dispatched whose step is not yet published.
        groups_left: Groups the run still has to consume, outstanding ones included; None for an endless run.
        updates_per_batch: Optimizer updates made on one batch.

    Example:
        >>> dispatch_allowance(StalenessSettings(max_staleness=4), 32, 0)
        160
    """
    limit = credit_batches(settings, updates_per_batch) * groups_per_batch
    if groups_left is not None:
        limit = min(limit, groups_left)
    return max(0, limit - num_outstanding)


def check_updates_per_batch(
    settings: StalenessSettings, updates_per_batch: int, *, publish_every: int = 1
) -> None:
    """Refuse rhythms of updating and publishing whose tokens would always be too stale, or never come.

    The u-th update of a batch differentiates a version u steps newer than the first; a batch taken perfectly
    fresh therefore reaches staleness `updates_per_batch - 1`. Credit is freed at publication, so that the
    batches between two publications must all be in flight at once.

    Args:
        settings: The staleness rule.
        updates_per_batch: Optimizer updates made on one batch: minibatches times epochs.
        publish_every: Batches between published versions.

    Raises:
        ConfigError: The last update could never train a token, the credit's youngest batch would always be
            too old, or the learner would wait for groups that it has no credit to dispatch.
    """
    oldest = updates_per_batch - 1
    if oldest > settings.max_staleness:
        raise ConfigError(
            f"{updates_per_batch} optimizer updates per batch reach staleness {oldest}",
            got=f"max_staleness={settings.max_staleness}",
            limit=f"max_staleness >= {oldest}",
            remedy="Lower batching.minibatches or batching.epochs, or raise staleness.max_staleness.",
        )
    in_flight = credit_batches(settings, updates_per_batch)
    oldest = in_flight * updates_per_batch - 1
    if settings.on_stale != "mask" and oldest > settings.max_staleness:
        raise ConfigError(
            f"{in_flight} batches in flight of {updates_per_batch} updates each reach staleness {oldest}",
            got=f"max_staleness={settings.max_staleness}",
            limit=f"max_staleness >= {oldest}",
            remedy="Lower staleness.credit or raise staleness.max_staleness.",
        )
    if publish_every > in_flight:
        raise ConfigError(
            "credit is freed at publication, so the learner could never fill the batches between two",
            got=f"publish_every={publish_every}",
            limit=f"{in_flight} batches in flight",
            remedy="Lower learner.publish_every or raise staleness.max_staleness.",
        )


def choose_groups(
    outstanding: Iterable[OutstandingGroup],
    now: PolicyVersion,
    settings: StalenessSettings,
    groups_per_batch: int,
    forks: Iterable[Fork] = (),
    *,
    updates_per_batch: int = 1,
) -> Choice:
    """Decide which settled groups make the next batch, which are too old, and whether to wait.

    Oldest first. Under `wait` and `drop` a group is too old if the last update of the batch would
    differentiate it beyond max_staleness: start + max_staleness < now + U - 1, with U updates per batch.

    `wait` is stale-synchronous parallel: a batch is taken only while every group that it leaves behind can
    still be consumed in time. After the take, for the k-th remaining group (k from 0, by age, B groups a
    batch), its start + max_staleness must be at least now + U * (1 + floor(k / B)) + U - 1; else the learner
    waits for the oldest running group that the take would overtake. A group that is too old wherever it waits
    is not waited for. Groups that have not begun will begin no earlier than `now`.

    Args:
        outstanding: Groups not yet recorded.
        now: The version that the batch will be differentiated at first.
        settings: The staleness rule.
        groups_per_batch: B.
        forks: The start of each incarnation after the first.
        updates_per_batch: U, optimizer updates made on one batch.

    Returns:
        The choice; `take` has exactly `groups_per_batch` groups or none.

    References:
        Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server", 2013.
    """
    forks = tuple(forks)
    # How much older than the version of the first update a group may be.
    bound = settings.max_staleness - (updates_per_batch - 1)

    def slack_of(group: OutstandingGroup) -> int:
        """Return how many versions later than now the group can still be taken."""
        if group.start is None:
            return bound
        return min(0, effective_version(group.start, forks, now.incarnation) - now.version) + bound

    stale: tuple[str, ...] = ()
    if settings.on_stale == "mask":
        groups = sorted(outstanding, key=lambda group: group.serial)
    else:
        by_age = sorted(outstanding, key=lambda group: (slack_of(group), group.serial))
        groups = [g for g in by_age if slack_of(g) >= 0]
        stale = tuple(g.group_id for g in by_age if g.settled and slack_of(g) < 0)
    take = tuple(g.group_id for g in groups if g.settled)[:groups_per_batch]
    if len(take) < groups_per_batch:
        return Choice(stale=stale, missing=groups_per_batch - len(take))
    if settings.on_stale == "wait":
        slacks = [(g, slack_of(g)) for g in groups[: _last_index(groups, take)]]
        urgent = _urgent(slacks, groups_per_batch, updates_per_batch)
        if urgent is not None:
            return Choice(stale=stale, urgent=urgent)
    return Choice(take=take, stale=stale)


def _last_index(groups: list[OutstandingGroup], take: tuple[str, ...]) -> int:
    return next(i for i, group in enumerate(groups) if group.group_id == take[-1])


def _urgent(
    older: list[tuple[OutstandingGroup, int]], groups_per_batch: int, updates_per_batch: int
) -> str | None:
    """Return the oldest running group of those that the take overtakes, if one of them would become too old.

    Args:
        older: Groups that are older than the youngest of the take, by age, and the versions that each can
            wait.
        groups_per_batch: Groups per batch.
        updates_per_batch: Versions per batch.
    """
    running: str | None = None
    # Those that are settled belong to the take. What is younger than the take comes no sooner by waiting.
    for k, (group, slack) in enumerate((g, slack) for g, slack in older if not g.settled):
        # Waiting only helps for a group that is running: one that has not begun begins at a newer version.
        if running is None and group.start is not None:
            running = group.group_id
        if slack < updates_per_batch * (1 + k // groups_per_batch) and running is not None:
            return running
    return None
