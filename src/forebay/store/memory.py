"""The memory engine: one process, nothing on disk; for tests and simulation."""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from forebay.errors import WireError
from forebay.store.kv import Txn

T = TypeVar("T")


class MemoryEngine:
    """An ordered dictionary with rollback."""

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}
        self._keys: list[bytes] = []
        self._lock = threading.Lock()

    def read(self, operation: Callable[[Txn], T]) -> T:
        """Run `operation` while nobody writes."""
        with self._lock:
            return operation(_MemoryTxn(self._values, self._keys))

    def write(self, operation: Callable[[Txn], T], *, durable: bool = True) -> T:
        """Run `operation`; undo what it wrote if it raises."""
        with self._lock:
            txn = _MemoryTxn(self._values, self._keys)
            done = False
            try:
                result = operation(txn)
                txn.finish()
                done = True
            finally:
                if not done:
                    txn.undo()
            return result

    def stage(self, frame: bytes) -> str:
        """Every payload is kept inside."""
        return ""

    def unstage(self, name: str) -> None:
        """Nothing was staged."""

    def close(self) -> None:
        """Nothing to release."""


class _MemoryTxn:
    def __init__(self, values: dict[bytes, bytes], keys: list[bytes]) -> None:
        self.shared: Any = None
        self._last_calls: list[Callable[[], None]] = []
        self._values, self._keys = values, keys
        self._undo: list[tuple[bytes, bytes | None]] = []

    def get(self, key: bytes) -> bytes | None:
        return self._values.get(key)

    def put(self, key: bytes, value: bytes) -> None:
        self._undo.append((key, self._values.get(key)))
        self._set(key, value)

    def delete(self, key: bytes) -> None:
        if key in self._values:
            self._undo.append((key, self._values[key]))
            self._remove(key)

    def delete_all(self, prefix: bytes) -> None:
        for key in [key for key, _ in self.scan(prefix)]:
            self.delete(key)

    def first(self, prefix: bytes) -> tuple[bytes, bytes] | None:
        return next(self.scan(prefix), None)

    def scan(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        at = bisect_left(self._keys, max(prefix, start))
        while at < len(self._keys) and self._keys[at].startswith(prefix):
            yield self._keys[at], self._values[self._keys[at]]
            at += 1

    def read_file(self, name: str) -> bytes:
        raise WireError("missing_file", "this engine has no side files", got=name)

    def discard_file(self, name: str) -> None:
        """No file was ever staged."""

    def before_commit(self, call: Callable[[], None]) -> None:
        self._last_calls.append(call)

    def finish(self) -> None:
        for call in self._last_calls:
            call()
        self._last_calls, self.shared = [], None

    def undo(self) -> None:
        for key, value in reversed(self._undo):
            if value is None:
                self._remove(key)
            else:
                self._set(key, value)

    def _set(self, key: bytes, value: bytes) -> None:
        if key not in self._values:
            insort(self._keys, key)
        self._values[key] = value

    def _remove(self, key: bytes) -> None:
        del self._values[key]
        del self._keys[bisect_left(self._keys, key)]
