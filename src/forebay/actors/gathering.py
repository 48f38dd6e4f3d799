"""Results that go to the store together: while one call is under way, the next ones gather."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

from forebay.errors import StoreError
from forebay.store.protocol import Receipt, Slot
from forebay.store.putting import Outcome
from forebay.trajectory import Trajectory

_MAX_RESULTS: Final = 64
_MAX_TOKENS: Final = 4 << 20

PutMany = Callable[[Sequence[tuple[Trajectory, Slot]]], Sequence[Outcome]]


class _Waiting(NamedTuple):
    trajectory: Trajectory
    slot: Slot
    outcome: asyncio.Future[Receipt]


class Gatherer:
    """Puts of one event loop, many in one call of the store.

    A call costs about as much for eight small results as for one. So nothing waits for company: a result that
    finds no call under way is sent at the next turn of the event loop, and all that end meanwhile are sent
    together when it returns. Each has an outcome of its own.

    Consumes: results. Waits for: the call under way. Unblocked by: its return, which the store's own
    deadlines bound. Produces: receipts.

    Args:
        put_many: Stores results; called in a thread, one call at a time.
    """

    def __init__(self, put_many: PutMany) -> None:
        self._put_many = put_many
        self._thread = ThreadPoolExecutor(1, "puts")
        self._waiting: deque[_Waiting] = deque()
        self._busy = False

    async def put(self, trajectory: Trajectory, slot: Slot) -> Receipt:
        """Store a result with those that wait; if the caller is canceled before that, it is not sent.

        Raises:
            StoreError: What the store says of this result.
        """
        loop = asyncio.get_running_loop()
        waiting = _Waiting(trajectory, slot, loop.create_future())
        self._waiting.append(waiting)
        if not self._busy:
            self._busy = True
            loop.call_soon(self._send)
        return await waiting.outcome

    def close(self) -> None:
        """Release the thread."""
        self._thread.shutdown(wait=False)

    def _send(self) -> None:
        batch = self._take()
        self._busy = bool(batch)
        if not batch:
            return
        results = [(waiting.trajectory, waiting.slot) for waiting in batch]
        sent = asyncio.get_running_loop().run_in_executor(self._thread, self._put_many, results)
        sent.add_done_callback(lambda sent: self._tell(batch, sent))

    def _take(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        num_tokens = 0
        while self._waiting and len(batch) < _MAX_RESULTS and num_tokens < _MAX_TOKENS:
            waiting = self._waiting.popleft()
            if not waiting.outcome.done():
                batch.append(waiting)
                num_tokens += waiting.trajectory.num_tokens
        return batch

    def _tell(self, batch: Sequence[_Waiting], sent: asyncio.Future[Sequence[Outcome]]) -> None:
        """Pass the outcomes on, and send what has gathered meanwhile."""
        error = None if sent.cancelled() else sent.exception()
        outcomes = sent.result() if not sent.cancelled() and error is None else [None] * len(batch)
        for waiting, outcome in zip(batch, outcomes, strict=True):
            if waiting.outcome.done():
                continue
            if outcome is None:
                waiting.outcome.set_exception(error or StoreError("the put was interrupted"))
            elif isinstance(outcome, StoreError):
                waiting.outcome.set_exception(outcome)
            else:
                waiting.outcome.set_result(outcome)
        self._send()
