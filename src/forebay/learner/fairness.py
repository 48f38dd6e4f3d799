"""Fairness: who is waited for, whose share others fill for a while, and how much of it anybody lacked.

What a batch owes each environment follows from its number (`BatchShares`). Here is only what cannot follow
from it: for how long an environment that delivers nothing has been waited for. A restart forgets that, and
no more.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from forebay.clock import Clock
from forebay.staleness import BatchShares, OutstandingGroup, Shares, order_of_dispatch

logger = logging.getLogger(__name__)

# An environment may take this much longer than its slowest group so far.
_SLACK: Final = 1.5
# Groups lost in a row, none having settled, after which an environment is not waited for.
_LOST_IN_A_ROW: Final = 8
# What has not been dispatched for this long cannot be: others hold the credit.
_DISPATCH_S: Final = 1.0


@dataclass(slots=True)
class _Record:
    """What is known about one environment."""

    first_seen_s: dict[str, float] = field(default_factory=dict)  # of groups that run
    settled: frozenset[str] = frozenset()
    slowest_s: float = 0.0
    lost_in_a_row: int = 0
    waited_since_s: float | None = None
    lacking_since_s: float | None = None
    suspended: bool = False
    next_probe_s: float = 0.0


class FairShares:
    """Decides for whom a batch waits, and tells the dispatcher who needs groups.

    An environment is waited for while its groups settle now and then. It is suspended, its share being filled
    by the others, once a batch that has enough of somebody else has waited for it for longer than its
    patience, or once it has lost eight groups in a row. One group of it at a time is still dispatched, once
    per patience; the first one that settles ends the suspension. So an environment that is dead costs one
    patience, not one per batch, and one that is slow costs nothing but its time.

    Args:
        shares: The environments' weights.
        groups_per_batch: Groups of one batch.
        patience_s: Longest wait for an environment that delivers nothing.
        longest_patience_s: Most that a slow environment may stretch that to.
        clock: Times the waits.

    Attributes:
        short: Groups that each environment has lacked in the batches so far.
    """

    def __init__(
        self,
        shares: Shares,
        groups_per_batch: int,
        *,
        patience_s: float,
        longest_patience_s: float,
        clock: Clock,
    ) -> None:
        self.shares = shares
        self.groups_per_batch = groups_per_batch
        self.short: Counter[str] = Counter()
        self._patience_s = patience_s
        self._longest_patience_s = max(patience_s, longest_patience_s)
        self._clock = clock
        self._records = {name: _Record() for name in shares.names}
        # Since the set of environments that share changed last: what batches took beyond what they owed, and
        # the number of batches that this is known of.
        self._active: Shares | None = None
        self._drift: Counter[str] = Counter()
        self._num_counted = 0
        self._lock = threading.Lock()

    @property
    def suspended(self) -> frozenset[str]:
        """Environments whose share the others fill."""
        with self._lock:
            return frozenset(self._suspended())

    def of_batch(self, batch: int, outstanding: Sequence[OutstandingGroup]) -> BatchShares:
        """Return what a batch waits for, given all groups that are neither taken nor recorded.

        Args:
            batch: Number of the batch, from 0.
            outstanding: What there is.
        """
        now_s = self._clock.monotonic_s()
        live = Counter(group.environment for group in outstanding)
        with self._lock:
            for name in self.shares.names:
                self._look(name, [group for group in outstanding if group.environment == name], now_s)
            self._judge(self._owed(batch), now_s)
            owed = self._owed(batch)
            return owed.limited(self._limits(owed, live, now_s))

    def count(self, batch: int, environments: Iterable[str]) -> dict[str, int]:
        """Note what a batch was made of; return how many groups each environment lacked, if it did."""
        taken = Counter(environments)
        whole = BatchShares(self.shares, batch, self.groups_per_batch).whole
        with self._lock:
            owed = self._owed(batch).whole
            lacking = {name: owed.get(name, whole[name]) - taken[name] for name in whole}
            short = {name: count for name, count in lacking.items() if count > 0}
            self.short.update(short)
            self._drift.subtract(lacking)
            self._num_counted += 1
            for record in self._records.values():
                record.waited_since_s = record.lacking_since_s = None
        return short

    def turns(self, recorded: int, stop: int, live: Counter[str], allowance: int) -> list[str]:
        """Return the environments whose groups are to be dispatched, in order.

        The groups in flight fill the positions of the batches ahead; free positions go to whoever owns them,
        and so does what was lost. What batches took beyond, or short of, what they owed is not made good, or
        the next groups would repeat it.

        Args:
            recorded: Number of batches in the journal.
            stop: The batch after the last one that groups may be dispatched for.
            live: Groups that are not recorded, by environment.
            allowance: The most groups that may be dispatched.
        """
        with self._lock:
            active = self.shares.without(self._suspended())
            if active != self._active:
                self._active, self._num_counted = active, recorded
                ahead = sum(live[name] for name in active.names)
                first = recorded * self.groups_per_batch
                before, after = active.counts(first), active.counts(first + ahead)
                self._drift = Counter({n: after[n] - before[n] - live[n] for n in active.names})
            if recorded != self._num_counted:  # the feed is about to count what it has just recorded
                return []
            probes = self._probes(live)
            filled = {name: live[name] + self._drift[name] for name in active.names}
        size = self.groups_per_batch
        order = order_of_dispatch(active, recorded * size, stop * size, filled)
        return [*probes, *order][:allowance]

    def _probes(self, live: Counter[str]) -> list[str]:
        """Return the suspended environments of which a group is to be dispatched to see whether it lives."""
        now_s = self._clock.monotonic_s()
        due = [n for n in self._suspended() if not live[n] and now_s >= self._records[n].next_probe_s]
        for name in due:
            self._records[name].next_probe_s = now_s + self._patience_of(self._records[name])
        return due

    def _suspended(self) -> list[str]:
        return [name for name, record in self._records.items() if record.suspended]

    def _owed(self, batch: int) -> BatchShares:
        """Return what a batch owes those that are not suspended; the others go first with what they have."""
        return BatchShares(self.shares.without(self._suspended()), batch, self.groups_per_batch)

    def _look(self, name: str, groups: Sequence[OutstandingGroup], now_s: float) -> None:
        """Note which groups of an environment have settled since the last look, and which are lost."""
        record = self._records[name]
        settled = frozenset(group.group_id for group in groups if group.settled)
        running = {group.group_id for group in groups if not group.settled}
        delivered = settled - record.settled
        for group_id in delivered & record.first_seen_s.keys():
            record.slowest_s = max(record.slowest_s, now_s - record.first_seen_s[group_id])
        record.lost_in_a_row += len(record.first_seen_s.keys() - running - settled)
        record.first_seen_s = {group_id: record.first_seen_s.get(group_id, now_s) for group_id in running}
        record.settled = settled
        if delivered:
            record.lost_in_a_row = 0
            record.waited_since_s = None
            if record.suspended:
                record.suspended = False
                logger.warning("environment %s delivers again: batches wait for its share", name)

    def _judge(self, owed: BatchShares, now_s: float) -> None:
        """Suspend environments for which a batch has waited long enough."""
        lacking = {name for name, due in owed.whole.items() if len(self._records[name].settled) < due}
        # A wait for everybody is nobody's fault: the actors may be gone.
        fed = any(due for name, due in owed.whole.items() if name not in lacking)
        for name, record in self._records.items():
            if name not in lacking or not fed:
                record.waited_since_s = None
                continue
            if record.waited_since_s is None:
                record.waited_since_s = now_s
            patience_s = self._patience_of(record)
            waited_s = now_s - record.waited_since_s
            if waited_s >= patience_s or record.lost_in_a_row >= _LOST_IN_A_ROW:
                record.suspended = True
                record.next_probe_s = now_s
                logger.warning(
                    "environment %s delivers nothing: a batch waited %.0f s (limit %.0f s) for it, and %d of "
                    "its groups were lost in a row. Until one settles, the others fill its share.",
                    name,
                    waited_s,
                    patience_s,
                    record.lost_in_a_row,
                )

    def _limits(self, owed: BatchShares, live: Counter[str], now_s: float) -> dict[str, int]:
        """Return who has fewer groups in flight than the batch owes, and how many."""
        limits: dict[str, int] = {}
        for name, due in owed.whole.items():
            record = self._records[name]
            if live[name] >= due:
                record.lacking_since_s = None
            elif record.lacking_since_s is None:
                record.lacking_since_s = now_s
            elif now_s - record.lacking_since_s >= _DISPATCH_S:
                limits[name] = live[name]
        return limits

    def _patience_of(self, record: _Record) -> float:
        return min(max(self._patience_s, _SLACK * record.slowest_s), self._longest_patience_s)
