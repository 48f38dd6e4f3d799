"""Takes settled groups, packs them and journals them, ahead of the step that trains them."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple, get_args

from forebay.batching.batch import Batch
from forebay.batching.updates import updates_digest
from forebay.clock import Clock, SystemClock
from forebay.staleness import Choice, Fork, OutstandingGroup, StalenessSettings, choose_groups
from forebay.store.protocol import JournalEntry, Store, TakenGroup
from forebay.telemetry.causes import CauseClock
from forebay.telemetry.faults import fault_point
from forebay.telemetry.trace import OFF, Tracer
from forebay.trajectory import PolicyVersion

_CLOCK = SystemClock()
_TAKE_TIMEOUT_S = 0.25
# What a learner without a batch waits for: the episodes of enough groups; an actor with room for groups that
# nobody has claimed; credit or capacity for more groups; one running group that would become too old; the
# feed itself, which packs and records; or nothing, as the batch is ready.
Cause = Literal["episodes", "actors", "credit", "urgent", "packing", "handover"]
CAUSES: tuple[Cause, ...] = get_args(Cause)
# (groups, version before the first update, forks) -> one batch per optimizer update.
Packer = Callable[[tuple[TakenGroup, ...], PolicyVersion, tuple[Fork, ...]], tuple[Batch, ...]]


class JournaledBatch(NamedTuple):
    """Groups that were taken, packed and written to the journal.

    Attributes:
        entry: The journal's record of them.
        updates: One batch per optimizer update, in order.
        groups: What was taken.
    """

    entry: JournalEntry
    updates: tuple[Batch, ...]
    groups: tuple[TakenGroup, ...]


class Feed:
    """The learner's source of batches.

    Consumes: settled groups. Waits for: enough of them, fresh enough, or an urgent one. Unblocked by: actors.
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
        clock: Times the causes of waits.
        tracer: Records what it does.

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
        clock: Clock = _CLOCK,
        tracer: Tracer = OFF,
    ) -> None:
        self._store = store
        self._incarnation = incarnation
        self._forks = forks
        self._pack = pack
        self._settings = settings
        self._groups_per_batch = groups_per_batch
        self._updates_per_batch = updates_per_batch
        self._repeat = repeat
        self._num_barren = 0
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
            self.waits_for = describe(choice, self._num_barren)
            for group_id in choice.stale:
                self._repeat(group_id)
            if groups:
                members = self._tracer.followed(_trajectory_ids(groups))
                now_s = self._clock.monotonic_s()
                self._tracer.slice("store.take", self._chosen_s, now_s, members=members)
                batch = self._journal(groups, now, members)
                if batch is not None:
                    self.causes.switch("handover")
                    return batch
        return None

    def _choose(self, outstanding: Sequence[OutstandingGroup], now: PolicyVersion) -> Choice:
        self._chosen_s = self._clock.monotonic_s()  # the wait before it is not the store's
        choice = choose_groups(
            outstanding,
            now=now,
            settings=self._settings,
            groups_per_batch=self._groups_per_batch,
            forks=self._forks,
            updates_per_batch=self._updates_per_batch,
        )
        self.causes.switch(cause_of(choice, outstanding))
        return choice

    def _trace_wait(self, cause: str, began_s: float, ended_s: float) -> None:
        self._tracer.slice(cause, began_s, ended_s, track="next batch waits for")

    def _journal(
        self, groups: tuple[TakenGroup, ...], now: PolicyVersion, members: tuple[str, ...]
    ) -> JournaledBatch | None:
        fault_point("taken", now.version)
        with self._tracer.span("pack", members=members):
            updates = self._pack(groups, now, self._forks)
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
        )
        with self._tracer.span("store.record", members=members, arguments={"version": entry.step}):
            self._store.record(entry, incarnation=self._incarnation)
        self._num_barren = 0
        fault_point("recorded", entry.step)
        return JournaledBatch(entry, updates, groups)


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
    if choice.urgent is not None:
        return "urgent"
    if not choice.missing:
        return "packing"
    unsettled = [group for group in outstanding if not group.settled]
    if sum(group.start is not None for group in unsettled) >= choice.missing:
        return "episodes"
    return "actors" if len(unsettled) >= choice.missing else "credit"


def describe(choice: Choice, num_barren: int = 0) -> str:
    """Name what the learner waits for.

    Args:
        choice: What it saw last.
        num_barren: Groups since the last batch that had nothing to train: masked, or never scored.

    Example:
        >>> describe(Choice(missing=3))
        '3 more settled groups'
    """
    barren = f", the last {num_barren} having had no fresh token" if num_barren else ""
    if choice.urgent is not None:
        return f"urgent group {choice.urgent}{barren}"
    if choice.missing:
        return f"{choice.missing} more settled groups{barren}"
    return "nothing"
