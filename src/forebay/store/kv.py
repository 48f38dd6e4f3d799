"""The seam between the rules and the engines: an ordered key-value transaction.

The rules of the store are written once, as functions of a `Txn`; an engine brings transactions, durability
and a place for payloads. Keys are compared as bytes, so that a scan in key order is a scan in the order of
dispatch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Txn(Protocol):
    """A consistent view of the store; inside `Engine.write` also the right to change it.

    Example:
        >>> from forebay.store.memory import MemoryEngine
        >>> engine = MemoryEngine()
        >>> engine.write(lambda txn: txn.put(b"a/1", b"one"))
        >>> engine.read(lambda txn: txn.first(b"a/"))
        (b'a/1', b'one')

    Attributes:
        shared: What the operations of one commit leave for one another; None at first. If one of them fails,
            it is gone with all they wrote, and each runs again alone.
    """

    shared: Any

    def get(self, key: bytes) -> bytes | None:
        """Return a copy of the value of `key`, or None."""
        ...

    def put(self, key: bytes, value: bytes) -> None:
        """Set the value of `key`."""
        ...

    def delete(self, key: bytes) -> None:
        """Forget `key`; a missing key is fine."""
        ...

    def delete_all(self, prefix: bytes) -> None:
        """Forget every key that starts with `prefix`."""
        ...

    def first(self, prefix: bytes) -> tuple[bytes, bytes] | None:
        """Return the smallest key that starts with `prefix`, and its value."""
        ...

    def scan(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Yield keys that start with `prefix`, from `start` on, in order; not to be mixed with writes."""
        ...

    def read_file(self, name: str) -> bytes:
        """Return the content of a side file.

        Raises:
            WireError: The file is missing or cannot be read.
        """
        ...

    def discard_file(self, name: str) -> None:
        """Remove a side file once this transaction is durable."""
        ...

    def before_commit(self, call: Callable[[], None]) -> None:
        """Call `call` once the last operation of this commit has run; it may write."""
        ...


class Engine(Protocol):
    """Transactions over one store.

    An operation may run more than once (its transaction is retried when a neighbor in the same commit
    fails), so it must be a function of the transaction alone.
    """

    def read(self, operation: Callable[[Txn], T]) -> T:
        """Run `operation` on a consistent snapshot."""
        ...

    def write(self, operation: Callable[[Txn], T], *, durable: bool = True) -> T:
        """Run `operation` atomically and return once it is durable; if it raises, nothing was changed.

        Args:
            operation: Reads and writes.
            durable: False for what power loss may undo: then it is durable with the next that is.

        Raises:
            StoreError: The disk is full; nothing was changed. Or it failed: then nobody can tell, and every
                later write of this process is refused.
        """
        ...

    def stage(self, frame: bytes) -> str:
        """Write a large payload to a side file, durably; return its name, or "" if it is small.

        Raises:
            StoreError: The disk is full.
        """
        ...

    def unstage(self, name: str) -> None:
        """Remove a staged file that no transaction refers to."""
        ...

    def close(self) -> None:
        """Release the engine's resources; operations under way are finished first."""
        ...
