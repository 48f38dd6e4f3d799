"""The store: every verb, over any engine that has ordered transactions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from forebay.clock import Clock
from forebay.errors import StoreError
from forebay.staleness import Choice, OutstandingGroup
from forebay.store import accounting, batches, journal, leases
from forebay.store import groups as group_rules
from forebay.store.kv import Engine
from forebay.store.ledger import Ledger
from forebay.store.protocol import (
    Chooser,
    GroupSpec,
    JournalEntry,
    Receipt,
    Rewound,
    Slot,
    StoreStats,
    TakenGroup,
)
from forebay.store.putting import put_trajectories, receipt_of
from forebay.store.settings import StoreSettings
from forebay.store.taking import settle_expired, take_groups
from forebay.store.transactions import Transactions
from forebay.trajectory import PolicyVersion, Trajectory


class RuleStore:
    """A `Store` over an `Engine`.

    Args:
        engine: Transactions; closed with the store.
        settings: Capacities.
        run_id: The run that owns the store; made with it if the store is new.
        clock: Time of leases and deadlines.

    Raises:
        StoreVersionError: The store belongs to another run, or has another format.
    """

    def __init__(self, engine: Engine, settings: StoreSettings, run_id: str, clock: Clock) -> None:
        self._transactions = Transactions(engine, settings, run_id, clock)
        self._closed = False
        self._read, self._write = self._transactions.read, self._transactions.write

    def claim(
        self,
        max_slots: int,
        *,
        ttl_s: float,
        actor: str,
        version: PolicyVersion,
        environment: str | None = None,
    ) -> tuple[Slot, ...]:
        """Lease members; see `TaskSource.claim`."""
        is_due, is_claimable = self._read(_what_is_due)
        if is_due:
            self.settle_expired()
        if max_slots <= 0 or not (is_claimable or is_due):
            return ()
        # Power loss ends a lease together with the process that holds it, so nobody waits for the disk.
        return self._write(
            lambda ledger: leases.claim(ledger, max_slots, ttl_s, actor, version, environment), durable=False
        )

    def heartbeat(self, slots: Sequence[Slot], *, ttl_s: float) -> tuple[Slot, ...]:
        """Renew leases; see `TaskSource.heartbeat`."""
        if not slots:
            return ()
        return self._write(lambda ledger: leases.heartbeat(ledger, slots, ttl_s), durable=False)

    def fail(self, slot: Slot, *, reason: str) -> None:
        """End an attempt; see `TaskSource.fail`."""
        self._write(lambda ledger: leases.fail(ledger, slot, reason))

    def release_slot(self, slot: Slot) -> None:
        """Give a slot back; see `TaskSource.release_slot`."""
        self._write(lambda ledger: leases.release_slot(ledger, slot), durable=False)

    def put(self, trajectory: Trajectory, slot: Slot) -> Receipt:
        """Store a result; see `TrajectorySink.put`."""
        return receipt_of(self.put_many(((trajectory, slot),))[0])

    def put_many(self, results: Sequence[tuple[Trajectory, Slot]]) -> tuple[Receipt | StoreError, ...]:
        """Store results together; see `TrajectorySink.put_many`."""
        return put_trajectories(self._transactions, results)

    def dispatch(self, groups: Sequence[GroupSpec], *, incarnation: int) -> int:
        """Make groups claimable; see `TaskSink.dispatch`."""
        return self._write(lambda ledger: group_rules.dispatch(ledger, groups, incarnation))

    def take(
        self, *, incarnation: int, choose: Chooser, timeout_s: float
    ) -> tuple[tuple[TakenGroup, ...], Choice]:
        """Take the groups that `choose` picks; see `TrajectorySource.take`."""
        return take_groups(self._transactions, incarnation, choose, timeout_s)

    def record(self, entry: JournalEntry, *, incarnation: int) -> None:
        """Write a batch to the journal; see `TrajectorySource.record`."""
        self._write(lambda ledger: journal.record(ledger, entry, incarnation))

    def reject(
        self, group_id: str, *, incarnation: int, reason: str, replacement: GroupSpec | None = None
    ) -> None:
        """Discard a taken group; see `TrajectorySource.reject`."""
        self._write(lambda ledger: batches.reject(ledger, group_id, incarnation, reason, replacement))

    def release(self, group_id: str, *, incarnation: int) -> None:
        """Put a taken group back; see `TrajectorySource.release`."""
        self._write(lambda ledger: batches.release(ledger, group_id, incarnation))

    def publish(self, version: PolicyVersion, *, incarnation: int) -> None:
        """Note a published version; see `TrajectorySource.publish`."""
        self._write(lambda ledger: journal.publish(ledger, version, incarnation))

    def commit(self, step: int, *, incarnation: int) -> None:
        """Forget consumed work; see `TrajectorySource.commit`."""
        while self._write(lambda ledger: journal.forget_first(ledger, step, incarnation)):
            pass

    def rewind(self, step: int) -> Rewound:
        """Begin a new incarnation; see `TrajectorySource.rewind`."""
        return self._write(lambda ledger: journal.rewind(ledger, step))

    def advance_fork(self, version: int, *, incarnation: int) -> None:
        """Move this incarnation's fork; see `TrajectorySource.advance_fork`."""
        self._write(lambda ledger: journal.advance_fork(ledger, version, incarnation))

    def truncate_journal(self, step: int, *, incarnation: int) -> None:
        """Drop journal entries after `step`; see `TrajectorySource.truncate_journal`."""
        self._write(lambda ledger: journal.truncate(ledger, step, incarnation))

    def journal(self) -> tuple[JournalEntry, ...]:
        """Return every batch that was consumed and is not forgotten, in order; see `Store.journal`."""
        return self._read(lambda ledger: tuple(ledger.journal()))

    def read_group(self, group_id: str) -> TakenGroup:
        """Return a stored group; see `TrajectorySource.read_group`."""
        return batches.whole_group(self._read(lambda ledger: batches.read_raw(ledger, group_id)))

    def stats(self) -> StoreStats:
        """Return a snapshot; see `Store.stats`."""
        self.settle_expired()
        return self._read(accounting.stats)

    def settle_expired(self) -> int:
        """Apply what has expired; see `Store.settle_expired`."""
        return settle_expired(self._transactions)

    def scan(self) -> Iterator[OutstandingGroup]:
        """Yield every group; see `Store.scan`."""
        return iter(self._read(batches.every_group))

    def audit(self) -> tuple[str, ...]:
        """Recount everything from the records; return each contradiction, an empty tuple if there is none."""
        return accounting.audit(self._read)

    def close(self) -> None:
        """Release the engine."""
        if not self._closed:
            self._closed = True
            self._transactions.engine.close()


def _what_is_due(ledger: Ledger) -> tuple[bool, bool]:
    """Return whether something has expired, and whether there is a member to claim, from one snapshot."""
    return leases.has_due(ledger), leases.has_claimable(ledger)
