"""Compares what killed processes knew with what a store holds, trajectory by trajectory.

The surviving history: for steps that the store has forgotten, what the learner noted last, by incarnation;
for later steps the store's journal. A group that is gone was trained, rejected by the learner, or dropped by
a rule of the store; the store counts each kind, and the names must agree with the counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forebay.store import count_lost
from tests.system.store_workers import (
    Line,
    digest_of,
    is_stale,
    read_checkpoints,
    read_log,
    weights_after,
)


@dataclass
class Books:
    """What the logs of a run say.

    Args:
        offered: Digest of every trajectory that somebody wanted to put.
        acknowledged: Names of which somebody heard that they are stored.
        accepted: How often each was accepted: once, if not `duplicate` or `late`.
        receipts: Puts by receipt.
        trained: The surviving line of each step: names, digests, groups, weights.
        rejecting: Trajectories of each group that the learner meant to reject.
        published: Versions in the order of their publication.
        notes: Contradictions and failures that processes noted themselves.
        drained: The line of the learner that ended last.
    """

    offered: dict[str, str] = field(default_factory=dict)
    acknowledged: set[str] = field(default_factory=set)
    receipts: Counter[str] = field(default_factory=Counter)
    trained: dict[int, Line] = field(default_factory=dict)
    rejecting: dict[str, list[str]] = field(default_factory=dict)
    published: list[tuple[int, int]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    drained: Line | None = None
    accepted: Counter[str] = field(default_factory=Counter)


def read_books(directory: Path) -> Books:
    """Read the logs of a run."""
    books = Books()
    for line in read_log(directory / "putter.log"):
        if line["kind"] == "will":
            books.offered[line["name"]] = line["digest"]
        elif line["kind"] == "put":
            books.receipts[line["receipt"]] += 1
            books.accepted.update([line["name"]] if line["receipt"] == "accepted" else [])
            if line["receipt"] in ("accepted", "duplicate"):
                books.acknowledged.add(line["name"])
    for line in read_log(directory / "learner.log"):
        if line["kind"] == "trained":
            known = books.trained.get(line["step"])
            if known is None or line["incarnation"] >= known["incarnation"]:
                books.trained[line["step"]] = line
        elif line["kind"] == "rejecting":
            books.rejecting[line["group"]] = line["names"]
        elif line["kind"] == "published":
            books.published.append(tuple(line["version"]))
        elif line["kind"] == "done":
            books.drained = line
    for log in directory.glob("*.log"):
        books.notes += [
            f"{log.stem}: {line.get('problem') or line.get('error')}"
            for line in read_log(log)
            if line["kind"] == "untrue"
        ]
    return books


def account_for(store: Any, directory: Path) -> tuple[dict[str, Any], list[str]]:
    """Account for everything that a drained run did.

    Args:
        store: The store, opened again after the run.
        directory: Where the logs and the checkpoints are.

    Returns:
        Totals for the record, and what is wrong: nothing, if nothing was lost or repeated.
    """
    books = read_books(directory)
    stats = store.stats()
    stored = {
        trajectory.trajectory_id: digest_of(trajectory)
        for group in store.scan()
        for trajectory in store.read_group(group.group_id).trajectories
    }
    forgotten = stats.journal_steps[0] - 1 if stats.journal_steps else max(books.trained, default=0)
    history = {step: line for step, line in books.trained.items() if step <= forgotten}
    committed = [name for line in history.values() for name in line["trajectories"]]
    journal = store.journal()
    recorded = [
        trajectory.trajectory_id
        for entry in journal
        for group_id in entry.group_ids
        for trajectory in store.read_group(group_id).trajectories
    ]
    trained = Counter(committed) + Counter(recorded)
    rejected = {
        name: count for name, count in stats.counters.items() if name.startswith("trajectories.rejected.")
    }
    gone = set(books.acknowledged) - trained.keys() - stored.keys()
    totals = {
        "acknowledged": len(books.acknowledged),
        "accepted": stats.counters.get("trajectories.accepted", 0),
        "trained": len(trained),
        "stored": len(stored),
        "rejected": {name.rpartition(".")[2]: count for name, count in rejected.items()},
        "lost": max(count_lost(stats), len(gone) - sum(rejected.values()), 0),
        "repeated": sum(count - 1 for count in trained.values()),
        "late": books.receipts["late"],
        "duplicate": books.receipts["duplicate"],
        "groups": stats.next_serial,
        "steps": max(books.trained, default=0),
        "incarnations": stats.incarnation + 1,
    } | {name: stats.counters.get(name, 0) for name in ("expired", "retried", "claimed", "replayed")}
    wrong = [f"audit: {problem}" for problem in store.audit()] + books.notes
    wrong += _check_trajectories(books, trained, stored, committed, history, totals)
    num_files = sum(1 for _ in directory.glob("store/payloads/*"))
    wrong += [f"{num_files} side files for {len(stored)} trajectories"] if num_files > len(stored) else []
    wrong += _check_groups(books, store, stats, history, gone)
    wrong += _check_history(books, store, journal, history, directory)
    return totals, wrong


def _check_trajectories(
    books: Books,
    trained: Counter[str],
    stored: dict[str, str],
    committed: list[str],
    history: dict[int, Line],
    totals: dict[str, Any],
) -> Iterator[str]:
    yield from (f"{name} was accepted {count} times" for name, count in books.accepted.items() if count > 1)
    yield from (f"{name} was trained {count} times" for name, count in trained.items() if count > 1)
    yield from (f"{name} is stored and was committed" for name in committed if name in stored)
    known = stored | {
        name: digest for line in history.values() for name, digest in line["trajectories"].items()
    }
    for name, digest in known.items():
        if name not in books.offered:
            yield f"{name} was never put"
        elif books.offered[name] != digest:
            yield f"{name} is not what was put"
    everywhere = len(known) + sum(totals["rejected"].values())
    if totals["accepted"] != everywhere:
        yield f"{totals['accepted']} trajectories were accepted, {everywhere} can be found"
    if totals["lost"]:
        yield f"{totals['lost']} trajectories are lost"


def _check_groups(
    books: Books, store: Any, stats: Any, history: dict[int, Line], gone: set[str]
) -> Iterator[str]:
    """Every dispatched group is stored, was trained, or left for a reason; so did every trajectory of it."""
    dispatched = {f"g{serial}" for serial in range(stats.next_serial)}
    here = {group.group_id for group in store.scan()}
    trained = {name for line in history.values() for name in line["groups"]}
    left = dispatched - here - trained
    counters = stats.counters
    reasons = {name: n for name, n in counters.items() if name.startswith(("dropped.", "rejected."))}
    counted = Counter(reasons)
    if here - dispatched:
        yield f"groups that nobody dispatched: {sorted(here - dispatched)}"
    if counters.get("dispatched", 0) != len(dispatched):
        yield f"{counters.get('dispatched', 0)} groups were dispatched, {len(dispatched)} have a serial"
    if counted.total() != len(left):
        yield f"{len(left)} groups left untrained, {dict(counted)} are counted"
    if any(is_stale(name) for name in trained):
        yield "a stale group was trained"
    by_learner = {name for name in left if is_stale(name) or name in books.rejecting}
    dropped = sum(n for name, n in reasons.items() if name.startswith("dropped."))
    if dropped < len(left - by_learner):
        yield f"{len(left - by_learner)} groups left by no reason of the learner's, {dropped} were dropped"
    unexplained = {name for name in gone if name.partition(".")[0] not in left}
    if unexplained:
        yield f"acknowledged, of a group that is here or trained, and nowhere: {sorted(unexplained)}"
    states = Counter(group.settled for group in store.scan())
    if stats.open_groups or states[False]:
        yield f"{stats.open_groups} groups are open after the end"


def _check_history(
    books: Books, store: Any, journal: Any, history: dict[int, Line], directory: Path
) -> Iterator[str]:
    """Versions only move forward; training everything again makes the same weights."""
    if books.published != sorted(set(books.published)):
        yield "published versions went back"
    if tuple(store.stats().published) < max(books.published, default=(0, 0)):
        yield "the store forgot a published version"
    steps = [*sorted(history), *(entry.step for entry in journal)]
    if steps != list(range(1, len(steps) + 1)):
        yield f"the surviving history has holes: {steps}"
    if books.drained is None:
        yield "the learner never came to an end"
        return
    for checkpoint in read_checkpoints(directory):
        if checkpoint.step not in history and checkpoint.step:
            continue
        weights = checkpoint.weights
        for entry in journal:
            if entry.step > checkpoint.step:
                weights = weights_after(weights, [store.read_group(name) for name in entry.group_ids])
        if weights != books.drained["weights"]:
            yield f"training again from step {checkpoint.step} makes other weights"
    if steps and steps[-1] != books.drained["step"]:
        yield f"the history ends at {steps[-1]}, the learner at {books.drained['step']}"
