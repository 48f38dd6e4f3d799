"""One transaction's working view: records in, records out, totals and indexes kept true.

Every rule changes groups through a `Ledger`, which writes the difference between what followed from the
record before and what follows from it now. No rule adds to a total itself, so totals cannot drift from the
records.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from forebay.errors import StoreError
from forebay.store import refusals
from forebay.store.kv import Txn
from forebay.store.protocol import GroupSpec, JournalEntry
from forebay.store.records import (
    JOURNAL,
    LIVE,
    META_KEY,
    NOTHING,
    Derived,
    Group,
    Meta,
    damaged,
    decode_entry,
    decode_group,
    decode_meta,
    decode_spec,
    decode_summary,
    derive,
    encode_record,
    group_key,
    journal_key,
    parse_place,
    payload_key,
    payloads_key,
    spec_key,
)
from forebay.store.settings import StoreSettings

_MAX_COUNTERS = 256
_REASON = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")


class Ledger:
    """The records of one commit: what its operations changed is written once, at its end.

    A group that is saved is written when the transaction or the totals are next looked at, or at the end; so
    the puts of a whole group, arriving together, write its record once.

    Args:
        txn: The transaction.
        settings: Capacities.
        now_s: Wall clock of the call.
    """

    def __init__(self, txn: Txn, settings: StoreSettings, now_s: float) -> None:
        raw = txn.get(META_KEY)
        if raw is None:
            raise StoreError("the store has no record of its run", remedy="Remove the store and start again.")
        self.settings, self.now_s = settings, now_s
        self._txn = txn
        self._meta: Meta = decode_meta(META_KEY, raw)
        if self._meta.live_by_environment is None:
            self._meta.live_by_environment = count_live(txn)
        self._groups: dict[str, Group] = {}
        self._unsaved: dict[str, Group] = {}
        self._written: dict[str, Derived] = {}

    @property
    def txn(self) -> Txn:
        """The transaction, with all that was saved."""
        self._write_groups()
        return self._txn

    @property
    def meta(self) -> Meta:
        """Totals and cursors, with all that was saved."""
        self._write_groups()
        return self._meta

    def flush(self) -> None:
        """Write what is not written yet."""
        self._write_groups()
        self._txn.put(META_KEY, encode_record(META_KEY, self._meta))

    def fence(self, incarnation: int) -> None:
        """Refuse a learner that is not the newest.

        Raises:
            FencedError: A newer one exists.
            StoreError: This one never began.
        """
        if incarnation < self.meta.incarnation:
            raise refusals.fenced(incarnation, self.meta.incarnation)
        if incarnation > self.meta.incarnation:
            raise refusals.never_began(incarnation, self.meta.incarnation)

    def count(self, name: str, amount: int = 1) -> None:
        """Add to a counter."""
        if amount:
            counters = self._meta.counters
            counters[name] = counters.get(name, 0) + amount

    def count_reason(self, prefix: str, reason: str, amount: int = 1) -> None:
        """Add to the counter of a reason given from outside; odd or too many reasons share `other`."""
        name = f"{prefix}.{reason}"
        counters = self._meta.counters
        if name not in counters and not (len(counters) < _MAX_COUNTERS and _REASON.fullmatch(reason)):
            name = f"{prefix}.other"
        self.count(name, amount)

    def find(self, group_id: str) -> Group | None:
        """Return a group to be worked on, or None."""
        group = self._groups.get(group_id)
        if group is None:
            key = group_key(group_id)
            raw = self._txn.get(key)
            if raw is None:
                return None
            group = self._groups[group_id] = decode_group(key, raw)
            self._written[group_id] = derive(group)
        return group

    def group(self, group_id: str) -> Group:
        """Return a group that must exist.

        Raises:
            StoreError: It does not.
        """
        group = self.find(group_id)
        if group is None:
            raise refusals.no_group(group_id)
        return group

    def listed(self, key: bytes) -> Group:
        """Return the group that a key of an ordered index names.

        Raises:
            DamagedError: There is none.
        """
        group = self.find(parse_place(key)[1])
        if group is None:
            raise damaged("index of groups", key, "it names a group that is not there")
        return group

    def spec(self, group_id: str) -> GroupSpec:
        """Return what was dispatched.

        Raises:
            StoreError: The store holds no such group.
        """
        key = spec_key(group_id)
        raw = self._txn.get(key)
        if raw is None:
            raise refusals.no_group(group_id)
        return decode_spec(key, raw)

    def save(self, group: Group) -> None:
        """Keep the changes of a group."""
        self._unsaved[group.group_id] = group

    def insert(self, group: Group, spec: GroupSpec) -> None:
        """Write a new group."""
        key = spec_key(group.group_id)
        self._txn.put(key, encode_record(key, spec))
        self._groups[group.group_id] = group
        self.save(group)

    def forget(self, group: Group) -> None:
        """Remove a group with its payloads."""
        for member in group.members:
            if member.side_file:
                self._txn.discard_file(member.side_file)
        self._txn.delete_all(payloads_key(group.group_id))
        self._unsaved.pop(group.group_id, None)
        del self._groups[group.group_id]
        self._move(group, None)
        self._txn.delete(group_key(group.group_id))
        self._txn.delete(spec_key(group.group_id))

    def put_payload(self, group: Group, index: int, frame: bytes) -> None:
        """Write the frame of a member that arrives."""
        self._txn.put(payload_key(group.group_id, index), frame)

    def remove_payload(self, group: Group, index: int) -> None:
        """Remove the payload of a member that arrived."""
        side_file = group.members[index].side_file
        if side_file:
            self._txn.discard_file(side_file)
        else:
            self._txn.delete(payload_key(group.group_id, index))

    def read_payload(self, group: Group, index: int) -> bytes:
        """Return the frame of a member that arrived; empty if it is missing.

        Raises:
            WireError: Its side file cannot be read.
        """
        side_file = group.members[index].side_file
        if side_file:
            return self._txn.read_file(side_file)
        return self._txn.get(payload_key(group.group_id, index)) or b""

    def journal(self, after: int = -1) -> Iterator[JournalEntry]:
        """Yield the journal's entries after a step, in order; not to be mixed with writes."""
        for key, raw in self.txn.scan(JOURNAL, journal_key(after + 1)):
            yield decode_entry(key, raw)

    def _write_groups(self) -> None:
        while self._unsaved:
            group = self._unsaved.popitem()[1]
            self._move(group, derive(group))
            key = group_key(group.group_id)
            self._txn.put(key, encode_record(key, group))

    def _move(self, group: Group, after: Derived | None) -> None:
        """Write the difference between what followed from a group and what follows from it now."""
        before = self._written.pop(group.group_id, None)
        if after is not None:
            self._written[group.group_id] = after
        old, new = before.gauges if before else NOTHING, after.gauges if after else NOTHING
        self._move_indexes(before.indexes if before else {}, after.indexes if after else {})
        meta = self._meta
        meta.gauges = meta.gauges.moved(old, new)
        moved = old[:4] != new[:4]
        if moved:
            _add(meta.settled_by_environment, group.environment, new.settled - old.settled)
            _add(meta.live_by_environment, group.environment, new.live - old.live)
        old_start = before.summary.start if before else None
        new_start = after.summary.start if after else None
        if moved or old_start != new_start:
            meta.watch += 1

    def _move_indexes(self, old: dict[bytes, bytes], new: dict[bytes, bytes]) -> None:
        for key in old:
            if key not in new:
                self._txn.delete(key)
        for key, value in new.items():
            if old.get(key) != value:
                self._txn.put(key, value)


def count_live(txn: Txn) -> dict[str, int]:
    """Return the groups that are not recorded, by environment, counted one by one."""
    return dict(Counter(decode_summary(key, raw).environment for key, raw in txn.scan(LIVE)))


def _add(totals: dict[str, int] | None, environment: str, amount: int) -> None:
    if totals is not None and amount:
        totals[environment] = totals.get(environment, 0) + amount
