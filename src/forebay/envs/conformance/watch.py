"""Who blocks the event loop while an environment is checked, and where."""

from __future__ import annotations

import asyncio
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

_TICK_S = 0.02
_PACKAGE = str(Path(__file__).parents[2])
_LIBRARY = sysconfig.get_path("stdlib")


class Stall(NamedTuple):
    """A time in which the event loop did nothing else.

    Args:
        call: What was running.
        where: The line in the environment's code.
        duration_s: How long.
    """

    call: str
    where: str
    duration_s: float


class LoopWatch:
    """A thread that asks the event loop for a sign of life.

    Args:
        loop: The loop; the thread that makes the watch runs it.
        blocked_s: A silence this long is noted as a stall.
        limit_s: After this long, `on_stuck` is called, from the thread.
        on_stuck: Gets the stall that did not end; must not return.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        blocked_s: float,
        limit_s: float,
        on_stuck: Callable[[Stall], None],
    ) -> None:
        self.stalls: list[Stall] = []
        self.call = "the event loop"
        self._loop = loop
        self._blocked_s, self._limit_s = blocked_s, limit_s
        self._on_stuck = on_stuck
        self._thread_id = threading.get_ident()
        self._alive = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="loop watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the watch."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(_TICK_S):
            self._alive.clear()
            self._loop.call_soon_threadsafe(self._alive.set)
            if not self._alive.wait(self._blocked_s):
                self._note(self.call, self._place())

    def _note(self, call: str, where: str) -> None:
        waited_s = self._blocked_s
        while not (self._alive.wait(_TICK_S) or self._stopped.is_set()):
            waited_s += _TICK_S
            if waited_s > self._limit_s:
                self._on_stuck(Stall(call, where, waited_s))
        self.stalls.append(Stall(call, where, waited_s))

    def _place(self) -> str:
        return place_of(sys._current_frames().get(self._thread_id))


def place_of(frame: FrameType | None) -> str:
    """Return the innermost line of a stack that is neither forebay's nor the standard library's."""
    return _innermost(list(traceback.extract_stack(frame)) if frame else []) or "an unknown place"


def waiting_place(task: asyncio.Task[Any]) -> str:
    """Return the innermost such line that a suspended task waits in; empty if there is none."""
    entries: list[traceback.FrameSummary] = []
    awaited: Any = task.get_coro()
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None)
        entries += traceback.extract_stack(frame, limit=1) if frame else []
        awaited = getattr(awaited, "cr_await", None)
    return _innermost(entries)


def _innermost(entries: list[traceback.FrameSummary]) -> str:
    foreign = [entry for entry in entries if not entry.filename.startswith((_PACKAGE, _LIBRARY, "<frozen"))]
    return f"{foreign[-1].filename}:{foreign[-1].lineno} ({foreign[-1].line})" if foreign else ""
