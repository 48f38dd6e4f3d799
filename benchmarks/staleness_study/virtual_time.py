"""An event loop whose time passes only while nothing is ready: product code runs in it, nobody waits."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable


class _IdleSelector(selectors.SelectSelector):
    """Instead of waiting for files, tells the loop that it is idle."""

    def __init__(self) -> None:
        super().__init__()
        self.on_idle: Callable[[float | None], None] = lambda timeout_s: None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout > 0.0:
            self.on_idle(timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop on virtual time, for one thread and without files or sockets.

    Args:
        answer: Called when nothing is ready, before time passes; returns whether it has made something ready.
    """

    def __init__(self, answer: Callable[[], bool]) -> None:
        selector = _IdleSelector()
        self._now_s = 0.0
        self._answer = answer
        super().__init__(selector)
        selector.on_idle = self._idle

    def time(self) -> float:
        """Return virtual seconds since the loop was made."""
        return self._now_s

    def _idle(self, timeout_s: float | None) -> None:
        if self._answer():
            return
        if timeout_s is None:
            raise RuntimeError("everything waits, and nothing will happen")
        self._now_s += timeout_s


class VirtualClock:
    """The time of a `VirtualLoop`, as the `Clock` that components are given; sleeping runs the loop.

    Args:
        loop: The loop; `sleep` must not be called inside it.
    """

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def wall_s(self) -> float:
        """Return virtual seconds."""
        return self._loop.time()

    def monotonic_s(self) -> float:
        """Return virtual seconds."""
        return self._loop.time()

    def sleep(self, duration_s: float) -> None:
        """Let that much virtual time pass, with everything that happens in it."""
        self._loop.run_until_complete(asyncio.sleep(duration_s))

    async def asleep(self, duration_s: float) -> None:
        """Suspend the calling task."""
        await asyncio.sleep(duration_s)
