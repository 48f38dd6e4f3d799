"""Auditing: what the scripts kept, recounted from the records by Python's own rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from forebay.store.accounting import count_lost
from forebay.store.protocol import StoreStats
from forebay.store.records import (
    CLAIMABLE,
    DUE,
    LIVE,
    NOTHING,
    Gauges,
    Group,
    GroupState,
    Summary,
    decode_entry,
    derive,
    journal_key,
    parse_place,
)
from forebay.store.redis.packing import PackedSummary, Totals, pairs, unpack_summary
from forebay.trajectory import PolicyVersion

_FIXED_KEYS: Final = frozenset(
    "meta groups order claimable due summaries counters environments live steps batches entries "  # noqa: SIM905
    "quarantine beat".split()
)


class Snapshot(NamedTuple):
    """The answer of `audit.lua`, read.

    Attributes:
        totals: The totals.
        stats: The same, as callers see them.
        groups: Every group's record.
        wrong: Groups, or members, whose record or payload is not there as it should be.
        order: Serials by group.
        claimable: Serials by group.
        due: Times by group, in microseconds.
        summaries: Summaries by group.
        steps: Steps of the journal.
        entries: Entries by step.
        batches: Steps that have a batch.
    """

    totals: Totals
    stats: StoreStats
    groups: tuple[Group, ...]
    wrong: tuple[str, ...]
    order: dict[str, int]
    claimable: dict[str, int]
    due: dict[str, int]
    summaries: dict[str, PackedSummary]
    steps: set[str]
    entries: dict[str, bytes]
    batches: set[str]


def read_snapshot(
    answer: Sequence[Any], totals: Totals, stats: StoreStats, groups: Iterable[Group]
) -> Snapshot:
    """Return what `audit.lua` answered after the totals and the groups."""
    wrong, order, claimable, due, summaries, steps, entries, batches = answer
    return Snapshot(
        totals=totals,
        stats=stats,
        groups=tuple(groups),
        wrong=tuple(name.decode() for name in wrong),
        order=_scores(order),
        claimable=_scores(claimable),
        due=_scores(due),
        summaries={name: unpack_summary(name, raw) for name, raw in pairs(summaries).items()},
        steps={step.decode() for step in steps},
        entries=pairs(entries),
        batches={step.decode() for step in batches},
    )


def _scores(flat: Sequence[bytes]) -> dict[str, int]:
    return {name: int(float(score)) for name, score in pairs(flat).items()}


def contradictions(snapshot: Snapshot) -> tuple[str, ...]:
    """Return each contradiction between the records and what was kept beside them."""
    gauges = NOTHING
    indexes: dict[bytes, dict[str, int]] = {LIVE: {}, CLAIMABLE: {}, DUE: {}}
    summaries: dict[str, PackedSummary] = {}
    for group in snapshot.groups:
        derived = derive(group)
        gauges = gauges.moved(NOTHING, derived.gauges)
        for key in derived.indexes:
            score, group_id = parse_place(key)
            indexes[key[:2]][group_id] = score
        if group.state != "recorded":
            summary = derived.summary
            summaries[group.group_id] = PackedSummary(
                group.serial, *_without_environment(summary), group.environment
            )
    number = snapshot.totals.number
    entries = [decode_entry(journal_key(int(step)), raw) for step, raw in snapshot.entries.items()]
    journaled = Counter(group_id for entry in entries for group_id in entry.group_ids)
    unpublished = sum(len(e.group_ids) for e in entries if e.step > number("published_version"))
    settled = Counter(group.environment for group in snapshot.groups if group.state == "settled")
    live = Counter(group.environment for group in snapshot.groups if group.state != "recorded")
    problems = [f"missing or torn: {name}" for name in snapshot.wrong]
    for what, got, expected in (
        ("totals", Gauges(*(number(name) for name in Gauges._fields)), gauges),
        ("order", snapshot.order, indexes[LIVE]),
        ("claimable", snapshot.claimable, indexes[CLAIMABLE]),
        ("due", snapshot.due, indexes[DUE]),
        ("summaries", snapshot.summaries, summaries),
        ("journal", journaled, Counter(g.group_id for g in snapshot.groups if g.state == "recorded")),
        ("steps", (snapshot.steps, snapshot.batches), (set(snapshot.entries), set(snapshot.entries))),
        ("unpublished groups", number("unpublished_groups"), unpublished),
        ("settled by environment", +Counter(snapshot.totals.environments), +settled),
        ("live by environment", +Counter(snapshot.totals.live), live),
        ("lost", count_lost(snapshot.stats), 0),
    ):
        if got != expected:
            problems.append(f"{what}: {got} where the records say {expected}")
    return tuple(problems)


def _without_environment(summary: Summary) -> tuple[GroupState, PolicyVersion | None, int, float]:
    return summary.state, summary.start, summary.num_bytes, summary.dispatched_s


def strangers(names: Iterable[str], groups: Iterable[Group]) -> set[str]:
    """Return the keys that nothing in a snapshot accounts for.

    Args:
        names: Keys of the store, without its prefix.
        groups: Every group of the snapshot.
    """
    known = set(_FIXED_KEYS)
    for group in groups:
        known |= {f"g:{group.group_id}", f"t:{group.group_id}"}
        known |= {
            f"p:{group.group_id}:{index}"
            for index, member in enumerate(group.members)
            if member.state == "arrived"
        }
    return {name for name in names if name not in known and not name.startswith(("call:", "s:"))}
