"""How full the queues are: looked at in random moments, so that the looks see the mean over time."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

from forebay.errors import StoreError
from forebay.telemetry.little import Flow

logger = logging.getLogger(__name__)


class OccupancySampler:
    """Looks at queues from a thread of its own, at exponentially distributed intervals.

    A look at fixed moments of the learner's cycle, such as the end of a step, sees the buffer always at the
    same point of its ups and downs; moments that follow a Poisson process see the mean over time.

    Waits for: the next moment. Unblocked by: time; `close`. Produces: sums for `drain`.

    Args:
        look: Returns what is inside each queue now. A store that does not answer costs the look.
        period_s: Mean interval.
        seed: Of the intervals.

    Attributes:
        num_failed: Looks that the store did not answer.

    References:
        Wolff (1982), Poisson arrivals see time averages, https://doi.org/10.1287/opre.30.2.223.
    """

    def __init__(
        self, look: Callable[[], Mapping[str, float]], *, period_s: float = 0.5, seed: int = 0
    ) -> None:
        self._look = look
        self._period_s = period_s
        self._random = random.Random(seed)
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._flows: dict[str, Flow] = {}
        self._executor = ThreadPoolExecutor(1, "occupancy")
        self._running: Future[None] | None = None
        self.num_failed = 0

    def start(self, on_start: Callable[[], None] = lambda: None) -> None:
        """Begin; `on_start` runs first in the new thread."""

        def run() -> None:
            on_start()
            while not self._stopping.wait(self._random.expovariate(1.0 / self._period_s)):
                self.sample()

        self._running = self._executor.submit(run)

    def sample(self) -> None:
        """Look once."""
        try:
            seen = self._look()
        except StoreError:
            self.num_failed += 1
            return
        with self._lock:
            for queue, number in seen.items():
                self._flows.setdefault(queue, Flow()).merge(Flow(0, 0.0, 1, number, number * number))

    def drain(self) -> dict[str, Flow]:
        """Return, and forget, what was seen since the last call."""
        with self._lock:
            drained, self._flows = self._flows, {}
        return drained

    def close(self) -> None:
        """End the thread; say how many looks the store did not answer.

        Raises:
            Exception: What ended it before.
        """
        self._stopping.set()
        self._executor.shutdown(wait=True)
        if self.num_failed:
            logger.warning("%d looks at the queues were not answered by the store", self.num_failed)
        if self._running is not None:
            self._running.result()
