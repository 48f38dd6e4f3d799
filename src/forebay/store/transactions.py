"""From a rule to a transaction: the ledger is opened, the rule changes it, the totals are written."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from forebay.clock import Clock
from forebay.errors import StoreVersionError
from forebay.store.kv import Engine, Txn
from forebay.store.ledger import Ledger
from forebay.store.records import FORMAT_VERSION, META_KEY, NOTHING, Meta, decode_meta, encode_record
from forebay.store.settings import StoreSettings

T = TypeVar("T")


class Transactions:
    """Runs rules on an engine.

    Args:
        engine: Transactions.
        settings: Capacities.
        run_id: The run that owns the store; made with it if the store is new.
        clock: Time of leases and deadlines.

    Raises:
        StoreVersionError: The store belongs to another run, or has another format.
    """

    def __init__(self, engine: Engine, settings: StoreSettings, run_id: str, clock: Clock) -> None:
        self.engine, self.settings, self.run_id, self.clock = engine, settings, run_id, clock
        if not engine.read(lambda txn: _is_ours(txn, run_id)):
            engine.write(lambda txn: _begin(txn, run_id))

    def read(self, rule: Callable[[Ledger], T]) -> T:
        """Run a rule that changes nothing."""
        now_s = self.clock.wall_s()
        return self.engine.read(lambda txn: rule(Ledger(txn, self.settings, now_s)))

    def write(self, rule: Callable[[Ledger], T], *, durable: bool = True) -> T:
        """Run a rule atomically; if it raises, nothing was changed. See `Engine.write`."""
        now_s = self.clock.wall_s()

        def operation(txn: Txn) -> T:
            ledger: Ledger | None = txn.shared
            if ledger is None:
                ledger = txn.shared = Ledger(txn, self.settings, now_s)
                txn.before_commit(ledger.flush)
            ledger.now_s, ledger.settings = now_s, self.settings
            return rule(ledger)

        return self.engine.write(operation, durable=durable)


def _is_ours(txn: Txn, run_id: str) -> bool:
    """Return whether the store is made; refuse one that is not this run's."""
    raw = txn.get(META_KEY)
    if raw is None:
        return False
    meta = decode_meta(META_KEY, raw)
    if meta.format != FORMAT_VERSION:
        raise StoreVersionError("the store has another format", got=meta.format, limit=FORMAT_VERSION)
    if meta.run_id != run_id:
        raise StoreVersionError(
            "the store belongs to another run",
            got=run_id,
            limit=meta.run_id,
            remedy="Use another run directory, or resume the run that owns this one.",
        )
    return True


def _begin(txn: Txn, run_id: str) -> None:
    if not _is_ours(txn, run_id):
        txn.put(META_KEY, encode_record(META_KEY, Meta(run_id=run_id, gauges=NOTHING)))
