"""Takes settled groups, packs them and journals them, ahead of the step that trains them."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, get_args

from forebay.batching.batch import Batch
from forebay.batching.updates import updates_digest
from forebay.clock import Clock, SystemClock
from forebay.learner.fairness import FairShares
from forebay.learner.siblings import FinishedSiblings
from forebay.staleness import Choice, Fork, OutstandingGroup, StalenessSettings, choose_groups
from forebay.staleness.waiting import cause_of_wait
from forebay.store.protocol import JournalEntry, Store, TakenGroup
from forebay.telemetry.causes import CauseClock
from forebay.telemetry.faults import fault_point
from forebay.telemetry.residence import BatchStamps
from forebay.telemetry.trace import OFF, Tracer
from forebay.trajectory import PolicyVersion

_CLOCK = SystemClock()
_TAKE_TIMEOUT_S = 0.25
# What a learner without a batch waits for: the episodes of enough groups; an actor with room for groups that
# nobody has claimed; credit or capacity for more groups; one running group that would become too old; the
# feed itself, which packs and records; or nothing, as the batch is ready.
Cause = Literal["episodes", "actors", "credit", "urgent", "packing", "handover"]
CAUSES: tuple[Cause, ...] = get_args(Cause)
# (groups, version before the first update, forks, the journal entry's `packing`) -> one batch per optimizer
# update.
Packer = Callable[[tuple[TakenGroup, ...], PolicyVersion, tuple[Fork, ...], bytes], tuple[Batch, ...]]


class DynamicSampling(NamedTuple):
    """Which groups teach nothing, and how many of them a batch may do without.

    Attributes:
        has_signal: Whether a group's members differ in what they are rewarded for.
        max_dropped: Groups without signal that may be dropped for one batch; those beyond are trained.
    """

    has_signal: Callable[[TakenGroup], bool]
    max_dropped: int


class JournaledBatch(NamedTuple):
    """Groups that were taken, packed and written to the journal.

    Attributes:
        entry: The journal's record of them.
        updates: One batch per optimizer update, in order.
        groups: What was taken.
        short: How many groups each environment lacked of its share, if it did.
        stamps: When it was taken and recorded; None for one from the journal.
    """

    entry: JournalEntry
    updates: tuple[Batch, ...]
    groups: tuple[TakenGroup, ...]
    short: Mapping[str, int] = {}
    stamps: BatchStamps | None = None


class Feed:
    """The learner's source of batches.

    Consumes: settled groups. Waits for: enough of them, of each environment its share, fresh enough, or an
    urgent one. Unblocked by: actors, or the patience with an environment that delivers nothing.
    Produces: journaled batches; the journal is durable before a batch is handed out, so that no crash trains
    it twice.

    Args:
        store: Where groups come from.
        incarnation: The learner's.
        forks: Where incarnations began.
        pack: Makes the batches of the groups.
        settings: The staleness rule.
        groups_per_batch: Groups of one batch.
        updates_per_batch: Optimizer updates, and so versions, of one batch.
        repeat: Called with the name of a group that came too late, so that its task is posed again.
        fairness: How environments share a batch; None where there is but one.
        clock: Times the causes of waits.
        tracer: Records what it does.
        sampling: Drops groups that teach nothing and takes others; None trains what comes.
        siblings: Compares groups of one episode with those of the same task that finished; None where the
            members of a group are compared among themselves.

    Attributes:
        waits_for: What it waits for, as the end of a sentence.
        causes: Its time, by `Cause`.
    """

    def __init__(
        self,
        store: Store,
        incarnation: int,
        forks: tuple[Fork, ...],
        pack: Packer,
        settings: StalenessSettings,
        groups_per_batch: int,
        updates_per_batch: int,
        repeat: Callable[[str], None],
        fairness: FairShares | None = None,
        clock: Clock = _CLOCK,
        tracer: Tracer = OFF,
        sampling: DynamicSampling | None = None,
        siblings: FinishedSiblings | None = None,
    ) -> None:
        self._store = store
        self._incarnation = incarnation
        self._forks = forks
        self._pack = pack
        self._settings = settings
        self._groups_per_batch = groups_per_batch
        self._updates_per_batch = updates_per_batch
        self._repeat = repeat
        self._fairness = fairness
        self._num_barren = 0
        self._sampling = sampling
        self._num_dropped = 0
        self._siblings = siblings
        self._alone: frozenset[str] = frozenset()
        self._chosen_s = 0.0
        self.waits_for = "the first groups"
        self.causes = CauseClock(clock, "episodes", self._trace_wait)
        self._clock = clock
        self._tracer = tracer

    def next(self, version: int, stopping: threading.Event) -> JournaledBatch | None:
        """Return the batch that will be differentiated at `version`; None once `stopping` is set.

        Raises:
            FencedError: A newer learner has taken over.
            StoreError: The journal cannot be written.
        """
        now = PolicyVersion(self._incarnation, version)
        choose = functools.partial(self._choose, now=now)
        while not stopping.is_set():
            groups, choice = self._store.take(
                incarnation=self._incarnation, choose=choose, timeout_s=_TAKE_TIMEOUT_S
            )
            self.waits_for = describe(choice, self._num_barren, self._num_dropped)
            for group_id in choice.stale:
                self._repeat(group_id)
            if groups and not self._drop_alone(groups) and not self._drop_without_signal(groups):
                members = self._tracer.followed(_trajectory_ids(groups))
                now_s = self._clock.monotonic_s()
                self._tracer.slice("store.take", self._chosen_s, now_s, members=members)
                taken_wall_s = self._clock.wall_s()
                batch = self._journal(groups, now, members)
                if batch is not None:
                    self.causes.switch("handover")
                    stamps = BatchStamps(taken_wall_s, now_s, self._clock.monotonic_s())
                    return batch._replace(stamps=stamps)
        return None

    def _choose(self, outstanding: Sequence[OutstandingGroup], now: PolicyVersion) -> Choice:
        self._chosen_s = self._clock.monotonic_s()  # the wait before it is not the store's
        shares = self._fairness.of_batch(self._number_of(now), outstanding) if self._fairness else None
        if self._siblings is not None:
            outstanding, alone = self._siblings.look(outstanding, self._groups_per_batch, shares)
            self._alone = frozenset(alone)
            if alone:
                return Choice(take=alone)
        choice = choose_groups(
            outstanding,
            now=now,
            settings=self._settings,
            groups_per_batch=self._groups_per_batch,
            forks=self._forks,
            updates_per_batch=self._updates_per_batch,
            shares=shares,
        )
        self.causes.switch(cause_of(choice, outstanding))
        return choice

    def _drop_alone(self, groups: tuple[TakenGroup, ...]) -> bool:
        """Reject groups that no sibling is left to be compared with; what they came to stays known."""
        if self._siblings is None or not self._alone:
            return False
        self._siblings.add(groups)
        for group in groups:
            self._store.reject(group.spec.group_id, incarnation=self._incarnation, reason="no_sibling")
        return True

    def _drop_without_signal(self, groups: tuple[TakenGroup, ...]) -> bool:
        """Reject what teaches nothing and put the rest back, to be taken again with others."""
        if self._sampling is None:
            return False
        allowed = self._sampling.max_dropped - self._num_dropped
        idle = [group.spec.group_id for group in groups if not self._sampling.has_signal(group)][:allowed]
        if not idle:
            return False
        for group in groups:
            group_id = group.spec.group_id
            if group_id in idle:
                self._store.reject(group_id, incarnation=self._incarnation, reason="no_signal")
            else:
                self._store.release(group_id, incarnation=self._incarnation)
        self._num_dropped += len(idle)
        return True

    def _number_of(self, now: PolicyVersion) -> int:
        """Return the number of the batch that is differentiated at a version, from 0."""
        return now.version // self._updates_per_batch

    def _trace_wait(self, cause: str, began_s: float, ended_s: float) -> None:
        self._tracer.slice(cause, began_s, ended_s, track="next batch waits for")

    def _journal(
        self, groups: tuple[TakenGroup, ...], now: PolicyVersion, members: tuple[str, ...]
    ) -> JournaledBatch | None:
        fault_point("taken", now.version)
        with self._tracer.span("pack", members=members):
            packing = b"" if self._siblings is None else self._siblings.packing(groups)
            updates = self._pack(groups, now, self._forks, packing)
        fault_point("packed", now.version)
        if all(update.empty for update in updates):
            self._num_barren += len(groups)
            for group in groups:
                self._store.reject(
                    group.spec.group_id, incarnation=self._incarnation, reason="no_fresh_token"
                )
                self._repeat(group.spec.group_id)
            return None
        entry = JournalEntry(
            step=now.version + len(updates),
            now=now,
            forks=self._forks,
            group_ids=tuple(group.spec.group_id for group in groups),
            digest=updates_digest(updates),
            packing=packing,
        )
        with self._tracer.span("store.record", members=members, arguments={"version": entry.step}):
            self._store.record(entry, incarnation=self._incarnation)
        self._num_barren = self._num_dropped = 0
        fault_point("recorded", entry.step)
        short: Mapping[str, int] = {}
        if self._fairness is not None:
            environments = [group.spec.task.environment for group in groups]
            short = self._fairness.count(self._number_of(now), environments)
        return JournaledBatch(entry, updates, groups, short)


def _trajectory_ids(groups: Sequence[TakenGroup]) -> Iterator[str]:
    return (trajectory.trajectory_id for group in groups for trajectory in group.trajectories)


def cause_of(choice: Choice, outstanding: Sequence[OutstandingGroup]) -> Cause:
    """Return what keeps a learner from its next batch.

    Args:
        choice: What it chose.
        outstanding: What it chose from.

    Example:
        >>> cause_of(Choice(missing=1), [])
        'credit'
    """
    waited = [group for group in outstanding if not choice.short or group.environment in choice.short]
    unsettled = [group for group in waited if not group.settled]
    return cause_of_wait(
        is_urgent=choice.urgent is not None,
        num_missing=choice.missing,
        num_running=sum(group.start is not None for group in unsettled),
        num_unsettled=len(unsettled),
    )


def describe(choice: Choice, num_barren: int = 0, num_dropped: int = 0) -> str:
    """Name what the learner waits for.

    Args:
        choice: What it saw last.
        num_barren: Groups since the last batch that had nothing to train: masked, or never scored.
        num_dropped: Groups since the last batch that were dropped because their rewards were equal.

    Example:
        >>> describe(Choice(missing=3))
        '3 more settled groups'
    """
    barren = f", the last {num_barren} having had no fresh token" if num_barren else ""
    barren += f", {num_dropped} having been dropped as their rewards were equal" if num_dropped else ""
    if choice.urgent is not None:
        return f"urgent group {choice.urgent}{barren}"
    if choice.missing:
        whose = f" of environment {', '.join(choice.short)}" if choice.short else ""
        return f"{choice.missing} more settled groups{whose}{barren}"
    return "nothing"
