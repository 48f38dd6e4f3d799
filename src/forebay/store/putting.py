"""Putting: the way of trajectories from an actor's hands to durable storage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from forebay.errors import DamagedError, RefusedError, StoreError, WireError
from forebay.store.groups import Arrival, mismatch, put
from forebay.store.ledger import Ledger
from forebay.store.protocol import Receipt, Slot
from forebay.store.transactions import Transactions
from forebay.trajectory import Trajectory
from forebay.wire import encode

Outcome = Receipt | StoreError


class Refusal(NamedTuple):
    """Why a result never gets as far as the store.

    Args:
        error: What its caller is told.
        reason: Counted as `rejected.REASON`; "" if it is not counted, since it may be tried again.
    """

    error: StoreError
    reason: str = ""


def receipt_of(outcome: Outcome) -> Receipt:
    """Return a receipt, or raise the error that stands in its place."""
    if isinstance(outcome, StoreError):
        raise outcome
    return outcome


def encode_result(
    trajectory: Trajectory, slot: Slot, *, run_id: str, max_bytes: int
) -> tuple[bytes, Refusal | None]:
    """Return the frame of a slot's result, and why it is refused, if it is.

    Args:
        trajectory: The result.
        slot: The slot that it is said to belong to.
        run_id: The run that owns the store.
        max_bytes: Largest frame that is stored.
    """
    foreign = mismatch(trajectory, slot, run_id)
    if foreign is not None:
        return b"", Refusal(foreign, "foreign")
    try:
        frame = encode(trajectory)
    except WireError as error:
        refused = RefusedError(str(error))
        refused.__cause__ = error
        return b"", Refusal(refused, error.reason)
    if len(frame) <= max_bytes:
        return frame, None
    too_large = RefusedError(
        f"trajectory {trajectory.trajectory_id} is too large",
        got=f"{len(frame)} bytes",
        limit=f"store.max_trajectory_bytes={max_bytes}",
        remedy="Shorten the episodes or raise the limit.",
    )
    return b"", Refusal(too_large, "too_large")


def put_trajectories(
    transactions: Transactions, results: Sequence[tuple[Trajectory, Slot]]
) -> tuple[Outcome, ...]:
    """Check, encode and store results of slots in one transaction; see `TrajectorySink.put_many`."""
    if not results:
        return ()
    arrivals = [(slot, _prepare(transactions, trajectory, slot)) for trajectory, slot in results]
    try:
        outcomes = transactions.write(lambda ledger: _put_all(ledger, arrivals))
    except StoreError as error:
        # Only here it is known that nothing refers to the files; an interrupted wait leaves it to the sweep.
        outcomes = [error] * len(arrivals)
    for (_, arrival), outcome in zip(arrivals, outcomes, strict=True):
        if isinstance(arrival, Arrival) and arrival.side_file and outcome != "accepted":
            transactions.engine.unstage(arrival.side_file)
    return tuple(outcomes)


def _prepare(transactions: Transactions, trajectory: Trajectory, slot: Slot) -> Arrival | Refusal:
    """Return a result as the transaction takes it in: encoded, and in its side file if it is large."""
    frame, refusal = encode_result(
        trajectory, slot, run_id=transactions.run_id, max_bytes=transactions.settings.max_trajectory_bytes
    )
    if refusal is not None:
        return refusal
    try:
        side_file = transactions.engine.stage(frame)
    except StoreError as error:
        return Refusal(error)
    return Arrival(
        trajectory_id=trajectory.trajectory_id,
        oldest_version=trajectory.oldest_version,
        timed_out=trajectory.finish == "timeout",
        num_bytes=len(frame),
        frame=b"" if side_file else frame,
        side_file=side_file,
    )


def _put_all(ledger: Ledger, arrivals: Sequence[tuple[Slot, Arrival | Refusal]]) -> list[Outcome]:
    """Store results in order; the errors among the outcomes are raised once their counters are durable."""
    outcomes: list[Outcome] = []
    for slot, arrival in arrivals:
        if isinstance(arrival, Refusal):
            if arrival.reason:
                ledger.count_reason("rejected", arrival.reason)
            outcomes.append(arrival.error)
            continue
        try:
            outcomes.append(put(ledger, slot, arrival))
        except DamagedError as error:  # the record of its group, before anything was changed
            outcomes.append(error)
    _count_receipts(ledger, outcomes)
    return outcomes


def _count_receipts(ledger: Ledger, outcomes: Sequence[Outcome]) -> None:
    num_accepted = outcomes.count("accepted")
    ledger.count("accepted", num_accepted)
    ledger.count("trajectories.accepted", num_accepted)
    ledger.count("duplicate", outcomes.count("duplicate"))
    ledger.count("late", outcomes.count("late"))
