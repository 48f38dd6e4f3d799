"""Group commit: one thread turns the operations of many into few durable transactions.

A disk takes as long to make one operation durable as to make fifty; so while one commit is under way, the
next operations gather.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any

from forebay.errors import StoreError
from forebay.store.kv import Txn

_MAX_OPERATIONS = 128


class Operation:
    """An operation on its way through a commit; its error belongs to the caller that waits for it.

    Used as a context manager it catches what the operation raises, so that a neighbor in the same commit is
    unharmed and the writer thread lives on; `Committer.submit` raises it again in the caller's thread.

    Args:
        call: Reads and writes a transaction.
        grows: Whether a full store refuses it.
    """

    def __init__(self, call: Callable[[Txn], Any], grows: bool) -> None:
        self.grows = grows
        self.value: Any = None
        self.error: BaseException | None = None
        self._call = call
        self._pending = threading.Lock()
        self._pending.acquire()

    def attempt(self, txn: Txn) -> bool:
        """Run in a transaction and keep the outcome; return whether it succeeded."""
        with self:
            self.run(txn)
        return self.error is None

    def run(self, txn: Txn) -> None:
        """Run in a transaction."""
        self.value = self._call(txn)

    def __enter__(self) -> None:
        self.value = self.error = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        self.error = error
        return isinstance(error, Exception)

    def finish(self) -> None:
        """Let the caller go on."""
        self._pending.release()

    def refuse(self) -> None:
        """Let the caller go on with an error: nobody knows what became of the operation."""
        self.error = StoreError("the store's writer thread failed", remedy="Open the store again.")
        self.finish()

    def wait(self) -> Any:
        """Block until finished; return the value or raise the error."""
        self._pending.acquire()
        if self.error is not None:
            raise self.error
        return self.value


class Committer:
    """A thread that commits operations in the order of their arrival.

    Consumes: operations. Waits for: the first one; then takes what else has arrived. Unblocked by:
    `submit`, `stop`.

    Args:
        commit: Runs operations, at least one, makes them durable, and leaves an outcome in each; it
            finishes none.
        name: Name of the thread.
    """

    def __init__(self, commit: Callable[[list[Operation]], None], name: str) -> None:
        self._commit = commit
        self._queue: SimpleQueue[Operation | None] = SimpleQueue()
        self._gate = threading.Lock()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, operation: Operation) -> Any:
        """Return an operation's value once it is durable, or raise its error.

        Raises:
            StoreError: The store is closed.
        """
        with self._gate:
            if self._stopped:
                raise StoreError("the store is closed")
            self._queue.put(operation)
        return operation.wait()

    def stop(self) -> None:
        """Finish what was submitted, then end the thread."""
        with self._gate:
            if not self._stopped:
                self._stopped = True
                self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            self._serve()
        finally:
            # Whatever ended the thread, nobody may wait for it.
            with self._gate:
                self._stopped = True
            while not self._queue.empty():
                operation = self._queue.get_nowait()
                if operation is not None:
                    operation.refuse()

    def _serve(self) -> None:
        while (first := self._queue.get()) is not None:
            batch = [first]
            stop = False
            while len(batch) < _MAX_OPERATIONS and not stop:
                try:
                    following = self._queue.get_nowait()
                except Empty:
                    break
                stop = following is None
                if following is not None:
                    batch.append(following)
            committed = False
            try:
                self._commit(batch)
                committed = True
            finally:
                for operation in batch:
                    if committed:
                        operation.finish()
                    else:
                        operation.refuse()
            if stop:
                return
