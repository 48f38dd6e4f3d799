"""A snapshot of a store as text for people: what lies in it, how full it is, and what has been counted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from forebay.staleness import OutstandingGroup
from forebay.store import StoreStats, count_lost

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")
_WIDTH = 14

# Counters by what they are about, in the order of a group's life. A name that ends in a point is a family.
COUNTERS: Mapping[str, Mapping[str, str]] = {
    "groups": {
        "dispatched": "made claimable",
        "settled": "complete, or closed by the group rule",
        "recorded": "in the journal",
        "committed": "trained and forgotten",
        "rejected.stale": "too old to be trained",
        "rejected.no_fresh_token": "without a token that may be trained",
        "rejected.no_signal": "whose rewards were equal",
        "rejected.no_sibling": "of one episode that no other was left to be compared with",
        "rejected.": "rejected by the learner",
        "dropped.deadline": "too few members at the deadline",
        "dropped.failed": "too few members that did not fail",
        "dropped.corrupt": "too few members that can be read",
    },
    "members": {
        "claimed": "leased to an actor",
        "released": "given back untried",
        "expired": "leases that ended without a result",
        "retried": "free for another attempt",
        "members.failed": "given up after their attempts",
        "members.missing": "left out at a deadline",
        "errors.": "attempts that failed",
    },
    "results": {
        "accepted": "acknowledged",
        "duplicate": "put again, and known",
        "late": "after another result or the deadline",
        "timeouts": "ended by a deadline",
        "oversize": "larger than their reservation",
        "rejected.foreign": "not of their slot",
        "rejected.too_large": "larger than store.max_trajectory_bytes",
        "rejected.header_too_large": "with a header beyond 64 KiB",
    },
    "trajectories": {
        "trajectories.accepted": "acknowledged",
        "trajectories.recorded": "in the journal",
        "trajectories.unrecorded": "given back: they could not be replayed exactly",
        "trajectories.committed": "trained and forgotten",
        "trajectories.rejected.": "acknowledged, then discarded",
    },
    "learner": {
        "published": "versions",
        "rewound": "resumes",
        "replayed": "journal entries trained again",
    },
}


class _Share(NamedTuple):
    num_open: int
    num_settled: int
    num_bytes: int


def summarize_store(stats: StoreStats, groups: Iterable[OutstandingGroup], path: object) -> str:
    """Return a snapshot as text.

    Args:
        stats: The snapshot.
        groups: Every group in it.
        path: Where the store lies.
    """
    version = f"version {stats.published.version} of incarnation {stats.published.incarnation}"
    lines = [f"run {stats.run_id}: the store in {path}, {version} published", ""]
    lines += [f"{name:<{_WIDTH}} {text}" for name, text in _depth(stats)]
    shares = _by_environment(groups)
    lines += [f"  {name:<{_WIDTH - 2}} {_describe(share)}" for name, share in shares.items()]
    lines += ["", "counted since the store was made:"]
    for title, counters in _grouped(stats.counters).items():
        lines += [title]
        lines += [f"  {name:<32} {count:>10}  {meaning}" for name, count, meaning in counters]
    return "\n".join(line.rstrip() for line in lines)


def format_bytes(num_bytes: int) -> str:
    """Return a number of bytes with a unit that people read.

    Example:
        >>> format_bytes(1536), format_bytes(12)
        ('1.5 KiB', '12 bytes')
    """
    amount, unit = float(num_bytes), 0
    while amount >= 1024.0 and unit + 1 < len(_UNITS):
        amount, unit = amount / 1024.0, unit + 1
    return f"{amount:.1f} {_UNITS[unit]}" if unit else f"{num_bytes} bytes"


def format_age(age_s: float) -> str:
    """Return a duration with a unit that people read.

    Example:
        >>> format_age(7.25), format_age(200.0), format_age(90_000.0)
        ('7.2 s', '3.3 min', '25.0 h')
    """
    if age_s < 120.0:
        return f"{age_s:.1f} s"
    return f"{age_s / 60.0:.1f} min" if age_s < 7200.0 else f"{age_s / 3600.0:.1f} h"


def meaning_of(counter: str) -> tuple[str, str]:
    """Return what a counter is about and what it counts; ("others", "") for one that is not known.

    Example:
        >>> meaning_of("trajectories.rejected.stale")
        ('trajectories', 'acknowledged, then discarded')
    """
    known = [(name, title) for title, names in COUNTERS.items() for name in names]
    fitting = [item for item in known if item[0] == counter or _is_family(item[0], counter)]
    if not fitting:
        return "others", ""
    name, title = max(fitting, key=lambda item: len(item[0]))
    return title, COUNTERS[title][name]


def _depth(stats: StoreStats) -> Iterator[tuple[str, str]]:
    used = f"{format_bytes(stats.live_bytes)} of {format_bytes(stats.capacity_bytes)}"
    kept = f"{format_bytes(stats.retained_bytes)} of {format_bytes(stats.retained_capacity_bytes)}"
    journal = "empty" if stats.journal_steps is None else "steps {} to {}".format(*stats.journal_steps)
    yield "outstanding", f"{stats.outstanding} groups of {stats.capacity_groups}: their step is not published"
    yield "groups", f"{stats.open_groups} wait for members, {stats.settled_groups} can be taken"
    yield "leased", f"{stats.leased_slots} members, an actor works on each"
    yield "trajectories", f"{stats.stored_trajectories} stored, {count_lost(stats)} lost"
    yield "live", f"{used}: stored or reserved, not yet recorded"
    yield "retained", f"{kept}: recorded, not yet covered by a checkpoint"
    yield "oldest", f"{format_age(stats.oldest_s)} since the oldest group was dispatched"
    yield "journal", journal
    yield "learner", f"incarnation {stats.incarnation}, {len(stats.forks)} resumes"
    yield "environments", "all groups that are not forgotten"


def _by_environment(groups: Iterable[OutstandingGroup]) -> dict[str, _Share]:
    shares: dict[str, _Share] = {}
    for group in groups:
        seen = shares.get(group.environment, _Share(0, 0, 0))
        shares[group.environment] = _Share(
            seen.num_open + (not group.settled),
            seen.num_settled + group.settled,
            seen.num_bytes + group.num_bytes,
        )
    return dict(sorted(shares.items()))


def _describe(share: _Share) -> str:
    return f"{share.num_open} open, {share.num_settled} settled, {format_bytes(share.num_bytes)}"


def _grouped(counters: Mapping[str, int]) -> dict[str, list[tuple[str, int, str]]]:
    grouped: dict[str, list[tuple[str, int, str]]] = {title: [] for title in [*COUNTERS, "others"]}
    for name, count in sorted(counters.items(), key=lambda item: _place(item[0])):
        title, meaning = meaning_of(name)
        grouped[title].append((name, count, meaning))
    return {title: rows for title, rows in grouped.items() if rows}


def _place(counter: str) -> tuple[int, str]:
    order = [name for names in COUNTERS.values() for name in names]
    return min((i for i, n in enumerate(order) if n == counter), default=len(order)), counter


def _is_family(name: str, counter: str) -> bool:
    return name.endswith(".") and counter.startswith(name)
