"""Putting: the way of a trajectory from an actor's hands to durable storage."""

from __future__ import annotations

from forebay.errors import RefusedError, StoreError, WireError
from forebay.store.groups import Arrival, mismatch, put
from forebay.store.protocol import Receipt, Slot
from forebay.store.transactions import Transactions
from forebay.trajectory import Trajectory
from forebay.wire import encode


def put_trajectory(transactions: Transactions, trajectory: Trajectory, slot: Slot) -> Receipt:
    """Check, encode and store the result of a slot; see `TrajectorySink.put`.

    Raises:
        RefusedError: It does not belong to the slot, or is too large; counted as `rejected.REASON`.
    """
    foreign = mismatch(trajectory, slot, transactions.run_id)
    if foreign is not None:
        raise _refused(transactions, "foreign", foreign)
    frame = _encode(transactions, trajectory)
    engine = transactions.engine
    side_file = engine.stage(frame)
    arrival = Arrival(
        trajectory_id=trajectory.trajectory_id,
        oldest_version=trajectory.oldest_version,
        timed_out=trajectory.finish == "timeout",
        num_bytes=len(frame),
        frame=b"" if side_file else frame,
        side_file=side_file,
    )
    try:
        outcome = transactions.write(lambda ledger: put(ledger, slot, arrival))
    except StoreError:
        # Only here is it known that nothing refers to the file; an interrupted wait leaves it to the sweep.
        engine.unstage(side_file)
        raise
    if side_file and outcome != "accepted":
        engine.unstage(side_file)
    if isinstance(outcome, StoreError):
        raise outcome
    return outcome


def _encode(transactions: Transactions, trajectory: Trajectory) -> bytes:
    try:
        frame = encode(trajectory)
    except WireError as error:
        raise _refused(transactions, error.reason, RefusedError(str(error))) from error
    limit = transactions.settings.max_trajectory_bytes
    if len(frame) > limit:
        too_large = RefusedError(
            f"trajectory {trajectory.trajectory_id} is too large",
            got=f"{len(frame)} bytes",
            limit=f"store.max_trajectory_bytes={limit}",
            remedy="Shorten the episodes or raise the limit.",
        )
        raise _refused(transactions, "too_large", too_large)
    return frame


def _refused(transactions: Transactions, reason: str, error: StoreError) -> StoreError:
    transactions.write(lambda ledger: ledger.count_reason("rejected", reason))
    return error
