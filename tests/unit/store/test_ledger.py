"""One ledger for a commit: operations that share it leave the same records as operations that do not."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from forebay.clock import ManualClock
from forebay.store import StoreSettings
from forebay.store.kv import Txn
from forebay.store.memory import MemoryEngine, _MemoryTxn
from forebay.store.records import GROUPS, META_KEY, decode_meta, group_key
from forebay.store.rules import RuleStore
from tests.unit.store.builders import FIRST, RUN, make_spec, make_trajectory


class Gathering(MemoryEngine):
    """Runs the writes of a block in one transaction, as a group commit does."""

    def __init__(self) -> None:
        super().__init__()
        self._open: _MemoryTxn | None = None
        self.record_writes = 0

    def write(self, operation: Any, *, durable: bool = True) -> Any:
        return super().write(operation) if self._open is None else operation(self._open)

    @contextmanager
    def together(self) -> Iterator[None]:
        self._open = _MemoryTxn(self._values, self._keys)
        put = self._open.put

        def counted(key: bytes, value: bytes) -> None:
            self.record_writes += key.startswith(GROUPS)
            put(key, value)

        self._open.put = counted  # type: ignore[method-assign]
        yield
        self._open.finish()
        self._open = None

    def content(self) -> dict[bytes, bytes]:
        """Everything, but for the number that only tells that something has changed."""
        meta = decode_meta(META_KEY, self._values[META_KEY])
        return self._values | {META_KEY: msgspec.json.encode(msgspec.structs.replace(meta, watch=0))}


def open_on(engine: MemoryEngine) -> RuleStore:
    store = RuleStore(engine, StoreSettings(engine="memory"), RUN, ManualClock(1000.0))
    store.rewind(0)
    return store


@pytest.mark.parametrize("seed", range(8))
def test_what_shares_a_commit_leaves_the_same_as_what_does_not(seed: int) -> None:
    chance = random.Random(seed)
    engines = Gathering(), Gathering()
    shared, alone = (open_on(engine) for engine in engines)
    serial = 0
    for _ in range(12):
        specs = [make_spec(serial + i, group_size=3, min_group_size=2, max_attempts=2) for i in range(3)]
        serial += 3
        for store in (shared, alone):
            store.dispatch(specs, incarnation=0)
        slots = shared.claim(7, ttl_s=60.0, actor="actor", version=FIRST)
        assert alone.claim(7, ttl_s=60.0, actor="actor", version=FIRST) == slots
        actions = [
            (chance.choice(("put", "put", "put", "fail", "release", "again", "renew", "dispatch")), s)
            for s in slots
        ]
        with engines[0].together():
            mine = [act(shared, action, slot, serial) for action, slot in actions]
        assert [act(alone, action, slot, serial) for action, slot in actions] == mine
        assert engines[0].content() == engines[1].content()
    assert shared.audit() == alone.audit() == ()


def act(store: RuleStore, action: str, slot: Any, serial: int) -> Any:
    if action == "put":
        return store.put(make_trajectory(slot), slot)
    if action == "again":
        return store.put(make_trajectory(slot), slot), store.put(make_trajectory(slot), slot)
    if action == "fail":
        return store.fail(slot, reason="environment")
    if action == "release":
        return store.release_slot(slot)
    if action == "renew":
        return store.heartbeat([slot], ttl_s=90.0)
    return store.dispatch([make_spec(serial - 1)], incarnation=0)


def test_the_puts_of_a_group_in_one_commit_write_its_record_once() -> None:
    engine = Gathering()
    store = open_on(engine)
    store.dispatch([make_spec(0, group_size=8)], incarnation=0)
    slots = store.claim(8, ttl_s=60.0, actor="actor", version=FIRST)
    with engine.together():
        receipts = [store.put(make_trajectory(slot), slot) for slot in slots]
    assert receipts == ["accepted"] * 8
    assert engine.record_writes == 1
    assert store.stats().settled_groups == 1
    assert engine.read(lambda txn: txn.get(group_key("g0"))) is not None


def test_a_failed_operation_takes_what_it_shared_with_it() -> None:
    engine = MemoryEngine()
    store = open_on(engine)
    before = store.stats()

    def fail(txn: Txn) -> None:
        txn.before_commit(lambda: txn.put(b"x/late", b""))
        txn.put(b"x/early", b"")
        raise KeyError("stop")

    with pytest.raises(KeyError):
        engine.write(fail)
    assert engine.read(lambda txn: list(txn.scan(b"x/"))) == []
    assert store.stats() == before
