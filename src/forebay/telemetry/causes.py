"""Who is to blame for a wait: the time of one thread by cause, readable from another."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Mapping

from forebay.clock import Clock


class CauseClock:
    """Books every second of a thread on the cause that it has named last.

    Args:
        clock: Source of time.
        cause: The first cause.
        observe: Called with each stretch of time that has ended: its cause, begin and end in monotonic
            seconds.

    Example:
        >>> from forebay.clock import ManualClock
        >>> clock = ManualClock()
        >>> causes = CauseClock(clock, "episodes")
        >>> clock.advance(2.0)
        >>> causes.switch("packing")
        >>> clock.advance(1.0)
        >>> causes.read()
        {'episodes': 2.0, 'packing': 1.0}
    """

    def __init__(
        self, clock: Clock, cause: str, observe: Callable[[str, float, float], None] = lambda *_: None
    ) -> None:
        self._clock = clock
        self._observe = observe
        self._lock = threading.Lock()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._cause = cause
        self._since_s = self._booked_s = clock.monotonic_s()

    @property
    def cause(self) -> str:
        """The cause named last."""
        return self._cause

    def switch(self, cause: str) -> None:
        """Name the cause of the time from now on."""
        if cause == self._cause:
            return
        with self._lock:
            now_s = self._book()
            before, since_s = self._cause, self._since_s
            self._cause, self._since_s = cause, now_s
        self._observe(before, since_s, now_s)

    def read(self) -> dict[str, float]:
        """Return seconds by cause since the beginning, the present one included."""
        with self._lock:
            self._book()
            return dict(self._seconds)

    def _book(self) -> float:
        now_s = self._clock.monotonic_s()
        self._seconds[self._cause] += now_s - self._booked_s
        self._booked_s = now_s
        return now_s


class CauseTotals:
    """Seconds by cause that one thread adds and forgets when it reports them."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def add_since(self, before: Mapping[str, float], now: Mapping[str, float]) -> dict[str, float]:
        """Add, and return, what has passed between two readings of a `CauseClock`."""
        differences = {cause: seconds - before.get(cause, 0.0) for cause, seconds in now.items()}
        passed = {cause: seconds for cause, seconds in differences.items() if seconds > 0.0}
        for cause, seconds in passed.items():
            self._seconds[cause] += seconds
        return passed

    def drain(self) -> dict[str, float]:
        """Return seconds by cause since the last call."""
        drained = dict(self._seconds)
        self._seconds.clear()
        return drained
