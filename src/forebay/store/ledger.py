"""One transaction's working view: records in, records out, totals and indexes kept true.

Every rule changes groups through a `Ledger`, which writes the difference between what followed from the
record before and what follows from it now. No rule adds to a total itself, so totals cannot drift from the
records.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from forebay.errors import FencedError, StoreError
from forebay.store.kv import Txn
from forebay.store.protocol import GroupSpec, JournalEntry
from forebay.store.records import (
    JOURNAL,
    META_KEY,
    NOTHING,
    Derived,
    Group,
    Meta,
    decode_entry,
    decode_group,
    decode_meta,
    decode_spec,
    derive,
    encode_record,
    group_key,
    journal_key,
    payload_key,
    spec_key,
)
from forebay.store.settings import StoreSettings

_MAX_COUNTERS = 256
_REASON = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")


class Ledger:
    """The records of one transaction.

    Args:
        txn: The transaction.
        settings: Capacities.
        now_s: Wall clock of the call.
    """

    def __init__(self, txn: Txn, settings: StoreSettings, now_s: float) -> None:
        raw = txn.get(META_KEY)
        if raw is None:
            raise StoreError("the store has no record of its run", remedy="Remove the store and start again.")
        self.txn, self.settings, self.now_s = txn, settings, now_s
        self.meta: Meta = decode_meta(raw)
        self._before: dict[str, Derived] = {}

    def flush(self) -> None:
        """Write the totals and cursors."""
        self.txn.put(META_KEY, encode_record(self.meta))

    def fence(self, incarnation: int) -> None:
        """Refuse a learner that is not the newest.

        Raises:
            FencedError: A newer one exists.
            StoreError: This one never began.
        """
        if incarnation < self.meta.incarnation:
            raise FencedError(
                "a newer learner has taken over",
                got=f"incarnation {incarnation}",
                limit=f"incarnation {self.meta.incarnation}",
                remedy="Stop this learner.",
            )
        if incarnation > self.meta.incarnation:
            raise StoreError(
                "this incarnation never began",
                got=incarnation,
                limit=self.meta.incarnation,
                remedy="Call rewind first.",
            )

    def count(self, name: str, amount: int = 1) -> None:
        """Add to a counter."""
        if amount:
            self.meta.counters[name] = self.meta.counters.get(name, 0) + amount

    def count_reason(self, prefix: str, reason: str, amount: int = 1) -> None:
        """Add to the counter of a reason given from outside; odd or too many reasons share `other`."""
        name = f"{prefix}.{reason}"
        known = name in self.meta.counters or len(self.meta.counters) < _MAX_COUNTERS
        self.count(name if known and _REASON.fullmatch(reason) else f"{prefix}.other", amount)

    def find(self, group_id: str) -> Group | None:
        """Return a group to be worked on, or None."""
        raw = self.txn.get(group_key(group_id))
        if raw is None:
            return None
        group: Group = decode_group(raw)
        self._before[group_id] = derive(group)
        return group

    def group(self, group_id: str) -> Group:
        """Return a group that must exist.

        Raises:
            StoreError: It does not.
        """
        group = self.find(group_id)
        if group is None:
            raise StoreError("the store holds no such group", got=group_id)
        return group

    def spec(self, group_id: str) -> GroupSpec:
        """Return what was dispatched.

        Raises:
            StoreError: The store holds no such group.
        """
        raw = self.txn.get(spec_key(group_id))
        if raw is None:
            raise StoreError("the store holds no such group", got=group_id)
        return decode_spec(raw)

    def save(self, group: Group) -> None:
        """Write a group, and what follows from it."""
        self._move(group.group_id, group.environment, derive(group))
        self.txn.put(group_key(group.group_id), encode_record(group))

    def insert(self, group: Group, spec: GroupSpec) -> None:
        """Write a new group."""
        self.txn.put(spec_key(group.group_id), encode_record(spec))
        self.save(group)

    def forget(self, group: Group) -> None:
        """Remove a group with its payloads."""
        for index, member in enumerate(group.members):
            if member.state == "arrived":
                self.remove_payload(group, index)
        self._move(group.group_id, group.environment, None)
        self.txn.delete(group_key(group.group_id))
        self.txn.delete(spec_key(group.group_id))

    def remove_payload(self, group: Group, index: int) -> None:
        """Remove the payload of a member that arrived."""
        side_file = group.members[index].side_file
        if side_file:
            self.txn.discard_file(side_file)
        else:
            self.txn.delete(payload_key(group.group_id, index))

    def read_payload(self, group: Group, index: int) -> bytes:
        """Return the frame of a member that arrived; empty if it is missing.

        Raises:
            WireError: Its side file cannot be read.
        """
        side_file = group.members[index].side_file
        if side_file:
            return self.txn.read_file(side_file)
        return self.txn.get(payload_key(group.group_id, index)) or b""

    def journal(self, after: int = -1) -> Iterator[JournalEntry]:
        """Yield the journal's entries after a step, in order; not to be mixed with writes."""
        for _, raw in self.txn.scan(JOURNAL, journal_key(after + 1)):
            yield decode_entry(raw)

    def _move(self, group_id: str, environment: str, after: Derived | None) -> None:
        before = self._before.pop(group_id, None)
        if after is not None:
            self._before[group_id] = after
        old_indexes = before.indexes if before else {}
        new_indexes = after.indexes if after else {}
        for key in old_indexes.keys() - new_indexes.keys():
            self.txn.delete(key)
        for key, value in new_indexes.items():
            if old_indexes.get(key) != value:
                self.txn.put(key, value)
        old = before.gauges if before else NOTHING
        new = after.gauges if after else NOTHING
        self.meta.gauges = self.meta.gauges.moved(old, new)
        if old.settled != new.settled:
            settled = self.meta.settled_by_environment
            settled[environment] = settled.get(environment, 0) + new.settled - old.settled
        old_start = before.summary.start if before else None
        new_start = after.summary.start if after else None
        if old[:4] != new[:4] or old_start != new_start:
            self.meta.watch += 1
