"""The memory engine undoes what a failed operation wrote."""

from __future__ import annotations

import pytest

from forebay.errors import WireError
from forebay.store.kv import Txn
from forebay.store.memory import MemoryEngine


def test_a_failed_operation_is_undone() -> None:
    engine = MemoryEngine()

    def prepare(txn: Txn) -> None:
        txn.put(b"a/1", b"one")
        txn.put(b"a/2", b"two")

    def fail(txn: Txn) -> None:
        txn.put(b"a/1", b"changed")
        txn.put(b"a/1", b"changed again")
        txn.delete(b"a/2")
        txn.put(b"a/2", b"back")
        txn.put(b"a/3", b"new")
        txn.delete(b"a/3")
        txn.put(b"a/4", b"new")
        raise KeyError("stop")

    engine.write(prepare)
    with pytest.raises(KeyError):
        engine.write(fail)
    assert engine.read(lambda txn: list(txn.scan(b""))) == [(b"a/1", b"one"), (b"a/2", b"two")]


def test_scans_are_in_order_and_within_their_prefix() -> None:
    engine = MemoryEngine()

    def prepare(txn: Txn) -> None:
        for key in (b"b/1", b"a/2", b"a/10", b"a", b"a/1"):
            txn.put(key, key)

    engine.write(prepare)
    assert engine.read(lambda txn: [key for key, _ in txn.scan(b"a/")]) == [b"a/1", b"a/10", b"a/2"]
    assert engine.read(lambda txn: [key for key, _ in txn.scan(b"a/", b"a/10")]) == [b"a/10", b"a/2"]
    assert engine.read(lambda txn: txn.first(b"c/")) is None


def test_there_are_no_side_files() -> None:
    engine = MemoryEngine()
    assert engine.stage(b"x" * 10_000_000) == ""
    with pytest.raises(WireError, match="no side files"):
        engine.read(lambda txn: txn.read_file("name"))
