"""Time, injected: every deadline is computed on a `Clock`, so that tests move time by hand."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """A source of time and of waiting."""

    def wall_s(self) -> float:
        """Return seconds since the epoch; comparable between processes and across restarts."""
        ...

    def monotonic_s(self) -> float:
        """Return seconds that never go back; comparable within one process only."""
        ...

    def sleep(self, duration_s: float) -> None:
        """Block the calling thread for `duration_s` seconds."""
        ...

    async def asleep(self, duration_s: float) -> None:
        """Suspend the calling task for `duration_s` seconds."""
        ...


class SystemClock:
    """The clock of the operating system."""

    def wall_s(self) -> float:
        """Return seconds since the epoch."""
        return time.time()

    def monotonic_s(self) -> float:
        """Return seconds since an arbitrary point."""
        return time.monotonic()

    def sleep(self, duration_s: float) -> None:
        """Block the calling thread."""
        time.sleep(duration_s)

    async def asleep(self, duration_s: float) -> None:
        """Suspend the calling task."""
        await asyncio.sleep(duration_s)


class ManualClock:
    """A clock that moves only when told; sleeping moves it at once.

    Example:
        >>> clock = ManualClock(start_s=100.0)
        >>> clock.sleep(2.5)
        >>> clock.wall_s()
        102.5
    """

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s

    def advance(self, duration_s: float) -> None:
        """Move time forward by `duration_s` seconds."""
        self._now_s += duration_s

    def wall_s(self) -> float:
        """Return the current manual time."""
        return self._now_s

    def monotonic_s(self) -> float:
        """Return the current manual time."""
        return self._now_s

    def sleep(self, duration_s: float) -> None:
        """Advance the clock instead of blocking."""
        self.advance(duration_s)

    async def asleep(self, duration_s: float) -> None:
        """Advance the clock and yield to the event loop once."""
        self.advance(duration_s)
        await asyncio.sleep(0)
