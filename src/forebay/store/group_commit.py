"""Group commit: the operations of many callers become few durable transactions.

A disk takes as long to make one operation durable as to make fifty; so while one commit is under way, the
next operations gather. There is no thread for it: a caller that finds nobody committing commits, its own
operation and all that wait.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any

from forebay.errors import StoreError
from forebay.store.kv import Txn

_MAX_OPERATIONS = 128


class Operation:
    """An operation on its way through a commit; its error belongs to the caller that waits for it.

    Used as a context manager it catches what the operation raises, so that a neighbor in the same commit is
    unharmed; `Committer.submit` raises it again in the caller's thread.

    Args:
        call: Reads and writes a transaction.
        durable: Whether its caller waits until power loss cannot undo it.
    """

    def __init__(self, call: Callable[[Txn], Any], *, durable: bool = True) -> None:
        self.durable = durable
        self.value: Any = None
        self.error: BaseException | None = None
        self._call = call
        self._commits_next = False
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
        self.error = StoreError("the commit of a neighbor was interrupted", remedy="Make the call again.")
        self.finish()

    def promote(self) -> None:
        """Let the caller go on, to make the next commit."""
        self._commits_next = True
        self.finish()

    def wait(self) -> bool:
        """Block until finished, or until it is the caller's turn to commit; return whether it is that."""
        self._pending.acquire()
        return self._commits_next


class Committer:
    """Commits operations in the order of their arrival, as many at once as wait.

    `submit` waits for: the commit under way, and then for the one that holds the operation. Unblocked by:
    the callers that make them, each of which hands on to the first that waits.

    Args:
        commit: Takes operations, until there is no more (None), runs them, makes them durable, and leaves an
            outcome in each.
    """

    def __init__(self, commit: Callable[[Callable[[], Operation | None]], None]) -> None:
        self._commit = commit
        self._gate = threading.Lock()
        self._waiting: deque[Operation] = deque()
        self._committing = self._stopped = False

    def submit(self, operation: Operation) -> Any:
        """Return an operation's value once it is durable, or raise its error.

        Raises:
            StoreError: The store is closed.
        """
        with self._gate:
            if self._stopped:
                raise StoreError("the store is closed")
            is_first = self._enter(operation)
        self._see_through(operation, is_first)
        if operation.error is not None:
            raise operation.error
        return operation.value

    def stop(self) -> None:
        """Finish what was submitted; nothing more is taken."""
        last = Operation(lambda txn: None)
        with self._gate:
            if self._stopped:
                return
            self._stopped = True
            is_first = self._enter(last)
        self._see_through(last, is_first)

    def _enter(self, operation: Operation) -> bool:
        """Join those that wait; return whether nobody commits."""
        self._waiting.append(operation)
        was_committing, self._committing = self._committing, True
        return not was_committing

    def _see_through(self, operation: Operation, commits: bool) -> None:
        if not commits:
            waited = False
            try:
                commits = operation.wait()
                waited = True
            finally:
                if not waited:  # interrupted: nobody must count on this caller
                    self._leave(operation)
        if commits:
            self._commit_what_waits(operation)

    def _commit_what_waits(self, mine: Operation) -> None:
        batch: list[Operation] = []

        def take() -> Operation | None:
            if len(batch) == _MAX_OPERATIONS:
                return None
            try:
                batch.append(self._waiting.popleft())
            except IndexError:
                return None
            return batch[-1]

        committed = False
        try:
            self._commit(take)
            committed = True
        finally:
            for operation in batch:
                if operation is not mine:
                    operation.finish() if committed else operation.refuse()
            self._hand_on(mine)

    def _hand_on(self, mine: Operation) -> None:
        with self._gate:
            if mine in self._waiting:  # its commit broke down before it was taken
                self._waiting.remove(mine)
            if self._waiting:
                self._waiting[0].promote()
            else:
                self._committing = False

    def _leave(self, operation: Operation) -> None:
        with self._gate:
            if operation in self._waiting and not operation._commits_next:
                self._waiting.remove(operation)
        if operation._commits_next:
            self._hand_on(operation)
