"""Accounting: the snapshot that everybody sees, what was lost, and whether the totals are true."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from forebay.errors import WireError
from forebay.store.ledger import Ledger, count_live
from forebay.store.protocol import StoreStats
from forebay.store.records import (
    CLAIMABLE,
    DUE,
    GROUPS,
    JOURNAL,
    LIVE,
    NOTHING,
    PAYLOADS,
    Group,
    decode_entry,
    decode_group,
    decode_summary,
    derive,
    payload_key,
)


def stats(ledger: Ledger) -> StoreStats:
    """Return a snapshot; constant time, but for the ends of the journal."""
    meta, settings, gauges = ledger.meta, ledger.settings, ledger.meta.gauges
    oldest = ledger.txn.first(LIVE)
    first = ledger.txn.first(JOURNAL)
    return StoreStats(
        run_id=meta.run_id,
        incarnation=meta.incarnation,
        forks=meta.forks,
        published=meta.published,
        next_serial=meta.next_serial,
        outstanding=gauges.live + meta.unpublished_groups,
        open_groups=gauges.open,
        settled_groups=gauges.settled,
        leased_slots=gauges.leased,
        stored_trajectories=gauges.live_trajectories + gauges.retained_trajectories,
        live_bytes=gauges.live_bytes,
        retained_bytes=gauges.retained_bytes,
        capacity_groups=settings.capacity_groups,
        capacity_bytes=settings.capacity_bytes,
        retained_capacity_bytes=settings.retained_capacity_bytes,
        oldest_s=ledger.now_s - decode_summary(*oldest).dispatched_s if oldest is not None else 0.0,
        journal_steps=(decode_entry(*first).step, meta.recorded_step) if first is not None else None,
        counters=dict(meta.counters),
        settled_by_environment={name: count for name, count in meta.settled_by_environment.items() if count},
        live_by_environment={n: count for n, count in (meta.live_by_environment or {}).items() if count},
    )


def count_lost(snapshot: StoreStats) -> int:
    """Return acknowledged trajectories that were neither consumed, nor are stored, nor rejected for a reason.

    ``lost = accepted - committed - stored - sum over reasons of rejected``; anything but 0 is a defect.
    """
    counters = snapshot.counters
    rejected = sum(count for name, count in counters.items() if name.startswith("trajectories.rejected."))
    gone = counters.get("trajectories.committed", 0) + rejected
    return counters.get("trajectories.accepted", 0) - gone - snapshot.stored_trajectories


Look = Callable[[Ledger], tuple[str, ...]]
_SIDE_FILE: Final = "side file"


def audit(read: Callable[[Look], tuple[str, ...]]) -> tuple[str, ...]:
    """Recount everything from the records; return each contradiction, an empty tuple if there is none.

    Args:
        read: Runs a look on a snapshot. Beside the snapshot, others go on: a side file that is gone counts
            only if a later snapshot misses it too, since it may have been forgotten meanwhile.
    """
    problems = read(_recount)
    if any(problem.startswith(_SIDE_FILE) for problem in problems):
        again = read(_recount)
        problems = tuple(p for p in problems if not p.startswith(_SIDE_FILE) or p in again)
    return problems


def _recount(ledger: Ledger) -> tuple[str, ...]:
    problems: list[str] = []
    gauges = NOTHING
    indexes: dict[bytes, bytes] = {}
    payloads: set[bytes] = set()
    recorded: Counter[str] = Counter()
    settled: Counter[str] = Counter()
    for key, raw in ledger.txn.scan(GROUPS):
        group = decode_group(key, raw)
        derived = derive(group)
        gauges = gauges.moved(NOTHING, derived.gauges)
        indexes.update(derived.indexes)
        recorded.update([group.group_id] if group.state == "recorded" else [])
        settled.update([group.environment] if group.state == "settled" else [])
        problems += _missing_side_files(ledger, group)
        payloads.update(
            payload_key(group.group_id, index)
            for index, member in enumerate(group.members)
            if member.state == "arrived" and not member.side_file
        )
    entries = list(ledger.journal())
    journaled = Counter(group_id for entry in entries for group_id in entry.group_ids)
    unpublished = sum(len(e.group_ids) for e in entries if e.step > ledger.meta.published.version)
    stored_indexes = {key: value for kind in (LIVE, CLAIMABLE, DUE) for key, value in ledger.txn.scan(kind)}
    stored_payloads = {key for key, _ in ledger.txn.scan(PAYLOADS)}
    for what, got, expected in (
        ("totals", ledger.meta.gauges, gauges),
        ("indexes", stored_indexes, indexes),
        ("payloads", stored_payloads, payloads),
        ("journal", journaled, recorded),
        ("unpublished groups", ledger.meta.unpublished_groups, unpublished),
        ("settled by environment", +Counter(ledger.meta.settled_by_environment), +settled),
        ("live by environment", +Counter(ledger.meta.live_by_environment), Counter(count_live(ledger.txn))),
        ("lost", count_lost(stats(ledger)), 0),
    ):
        if got != expected:
            problems.append(f"{what}: {got} where the records say {expected}")
    return tuple(problems)


def _missing_side_files(ledger: Ledger, group: Group) -> Iterator[str]:
    for index, member in enumerate(group.members):
        if member.state == "arrived" and member.side_file:
            try:
                ledger.txn.read_file(member.side_file)
            except WireError as error:
                yield f"{_SIDE_FILE} of member {index} of group {group.group_id}: {error}"
