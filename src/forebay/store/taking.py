"""Taking: the one wait of the store, with its deadline, and the batch at its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from forebay.staleness import Choice
from forebay.store.batches import Look, decode_group_frames, look, quarantine, seize
from forebay.store.leases import has_due, settle_due
from forebay.store.ledger import Ledger
from forebay.store.protocol import Chooser, TakenGroup
from forebay.store.transactions import Transactions

_FIRST_PAUSE_S = 0.002
_LAST_PAUSE_S = 0.025
_PAUSE_TO_LOOK = 4.0


def settle_expired(transactions: Transactions) -> int:
    """Apply what has expired; writes only if something has. Undone by power loss, it expires again."""
    return transactions.write(settle_due, durable=False) if transactions.read(has_due) else 0


def take_groups(
    transactions: Transactions, incarnation: int, choose: Chooser, timeout_s: float
) -> tuple[tuple[TakenGroup, ...], Choice]:
    """Take the groups that `choose` picks; see `TrajectorySource.take`.

    Waits for: a settled group, a published version, a deadline that passes. Unblocked by: actors' puts, the
    learner's own publish, the clock. Its own deadline: `timeout_s`. Between two looks at the groups it
    reads one small record, every 2 to 25 ms; a look at many groups is followed by a pause in proportion, so
    that waiting for a batch does not take the processor from those who make it.
    """
    clock = transactions.clock
    deadline_s = clock.monotonic_s() + timeout_s
    seen: Look | None = None
    num_live: int | None = None
    pause_s = _FIRST_PAUSE_S
    while True:
        settle_expired(transactions)
        if seen is None or seen.watch != transactions.read(_watch):
            began_s = clock.monotonic_s()
            seen = transactions.read(lambda ledger: look(ledger, incarnation, choose))
            num_live = seen.num_live if num_live is None else num_live
            taken = _seize(transactions, incarnation, seen)
            if taken is None:
                seen = None
                continue
            # A group that left untrained must be replaced by the caller: waiting on would starve it.
            if taken or seen.choice.stale or seen.num_live < num_live:
                return taken, seen.choice
            pause_s = first_pause_s(clock.monotonic_s() - began_s)
        left_s = deadline_s - clock.monotonic_s()
        if left_s <= 0.0:
            return (), seen.choice
        clock.sleep(min(pause_s, left_s))
        pause_s = min(2.0 * pause_s, _LAST_PAUSE_S)


def first_pause_s(look_s: float) -> float:
    """Return how long to wait after a look that took so long."""
    return min(max(_FIRST_PAUSE_S, _PAUSE_TO_LOOK * look_s), _LAST_PAUSE_S)


def _watch(ledger: Ledger) -> int:
    return ledger.meta.watch


def _seize(transactions: Transactions, incarnation: int, seen: Look) -> tuple[TakenGroup, ...] | None:
    """Take what was chosen; None if a new look is due: the store has changed, or a frame is broken."""
    choice = seen.choice
    if not choice.take and not choice.stale:
        return ()
    decoded = [decode_group_frames(raw) for raw in seen.groups]
    broken = {
        group.spec.group_id: {member: error.reason for member, error in errors.items()}
        for group, errors in decoded
        if errors
    }
    for group_id, reasons in broken.items():
        transactions.write(_quarantining(group_id, reasons))
    if broken:
        return None
    # Power loss ends this learner too; the next one frees what it held, and finds stale what is stale.
    done = transactions.write(
        lambda ledger: seize(ledger, incarnation, choice.take, choice.stale), durable=False
    )
    return tuple(group for group, _ in decoded) if done else None


def _quarantining(group_id: str, reasons: Mapping[int, str]) -> Callable[[Ledger], None]:
    return lambda ledger: quarantine(ledger, group_id, reasons)
