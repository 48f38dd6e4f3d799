"""Makes batches ahead of the learner, in the background."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Generic, Literal, NamedTuple, TypeVar

from forebay.clock import Clock
from forebay.errors import NoProgressError

Item = TypeVar("Item")
Produce = Callable[[int, threading.Event], Item]
ProducerState = Literal["idle", "producing", "full", "ended"]


class Prefetched(NamedTuple, Generic[Item]):
    """What was made for one version.

    Args:
        version: The version that it is differentiated at first.
        item: The batch, or whatever is made.
        waited_s: How long the consumer waited for it, seconds.
    """

    version: int
    item: Item
    waited_s: float


class Prefetcher(Generic[Item]):
    """Calls `produce` for one version after another, at most `depth` ahead of the consumer.

    What is made for version v is differentiated at exactly v: versions are numbered ahead, and the consumer
    takes them in order. With depth 0 nothing is made before it is asked for.

    The background thread consumes: what `produce` takes. Waits for: groups, inside `produce`; the consumer,
    when `depth` items are ready. Unblocked by: the store; `get`; `stop`. Produces: items, in order.

    Args:
        produce: `(version, stopping) -> item`; returns soon once `stopping` is set, with whatever: it is not
            used.
        first: The first version.
        last: The version behind the last one to be made for.
        stride: Versions from one item to the next: optimizer updates per batch.
        depth: Items made ahead.
        clock: Measures waits.
    """

    def __init__(
        self,
        produce: Produce[Item],
        *,
        first: int,
        last: int,
        stride: int = 1,
        depth: int = 1,
        clock: Clock,
    ) -> None:
        self._produce = produce
        self._versions = range(first, last, stride)
        self._depth = depth
        self._clock = clock
        self._stopping = threading.Event()
        self._changed = threading.Condition()
        self._ready: deque[tuple[int, Item]] = deque()
        self._asking = False
        self._state: ProducerState = "idle"
        self._starved_s = 0.0
        self._executor = ThreadPoolExecutor(1, "prefetch")
        self._running: Future[None] | None = None

    def start(self, on_start: Callable[[], None] = lambda: None) -> None:
        """Begin; `on_start` runs first in the new thread (to move it off the learner's core)."""
        self._running = self._executor.submit(self._run, on_start)
        self._running.add_done_callback(self._ended)

    def get(self, timeout_s: float) -> Prefetched[Item] | None:
        """Return the next item, waiting at most `timeout_s` seconds; None if it is not ready by then.

        Raises:
            NoProgressError: No item will come: the last was taken, or the prefetcher was stopped or never
                started.
            ForebayError: Whatever ended `produce`, after the items made before it.
        """
        began_s = self._clock.monotonic_s()
        with self._changed:
            self._asking = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._ready or self._over, timeout_s)
            waited_s = self._clock.monotonic_s() - began_s
            self._starved_s += waited_s
            if not self._ready and not self._over:
                return None
            self._asking = False
            if self._ready:
                version, item = self._ready.popleft()
                self._changed.notify_all()
                return Prefetched(version, item, waited_s)
        if self._running is not None and self._running.done():
            self._running.result()
        raise NoProgressError(
            "no batch will come: the prefetcher has ended", got=f"last {self._versions[-1:]}"
        )

    def stop(self, timeout_s: float = 30.0) -> None:
        """Ask the background thread to end, and wait for it; what is ready is forgotten.

        Raises:
            NoProgressError: `produce` did not return within `timeout_s` seconds.
        """
        self._stopping.set()
        with self._changed:
            self._changed.notify_all()
            self._ready.clear()
        self._executor.shutdown(wait=False)
        if self._running is not None and not wait([self._running], timeout_s).done:
            raise NoProgressError("the batch producer does not stop", limit=f"{timeout_s} s")

    @property
    def starved_s(self) -> float:
        """Seconds that the consumer has waited in `get`, in total."""
        return self._starved_s

    @property
    def num_ready(self) -> int:
        """Items that wait for the consumer."""
        return len(self._ready)

    @property
    def state(self) -> ProducerState:
        """What the background thread does; `producing` may be waiting for groups, `full` waits for `get`."""
        return self._state

    @property
    def _over(self) -> bool:
        return self._running is None or self._state == "ended"

    def _run(self, on_start: Callable[[], None]) -> None:
        on_start()
        for version in self._versions:
            with self._changed:
                self._state = "full"
                self._changed.wait_for(self._has_room)
            if self._stopping.is_set():
                return
            self._state = "producing"
            item = self._produce(version, self._stopping)
            if self._stopping.is_set():
                return
            with self._changed:
                self._ready.append((version, item))
                self._changed.notify_all()

    def _has_room(self) -> bool:
        return self._stopping.is_set() or len(self._ready) < self._depth + self._asking

    def _ended(self, _: Future[None]) -> None:
        with self._changed:
            self._state = "ended"
            self._changed.notify_all()
