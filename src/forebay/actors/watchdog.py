"""Who blocks the event loop: a thread asks it for a sign of life, and names the task that is in the way."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable
from types import FrameType
from typing import NamedTuple

from forebay.errors import PeerFailedError

_MAX_FRAMES = 12
_log = logging.getLogger(__name__)


class Blockage(NamedTuple):
    """An event loop that does not turn.

    Args:
        task: Name of the task that runs; environment calls are named `environment/episode/call`.
        stack: Where it is, innermost last.
        blocked_s: How long it has been blocked.
    """

    task: str
    stack: str
    blocked_s: float

    @property
    def environment(self) -> str:
        """The environment whose code it is, if it is an environment's."""
        return self.task.partition("/")[0]


def log_blockage(blockage: Blockage) -> None:
    """Say who blocks the loop, where, and what to do about it."""
    _log.warning(
        "%s has blocked the event loop for %.1f s, and with it every other episode. "
        "If it is an environment, set environment.%s.blocking = true.\n%s",
        blockage.task,
        blockage.blocked_s,
        blockage.environment,
        blockage.stack,
    )


def end_process(blockage: Blockage) -> None:
    """End the process, because its leases would expire unnoticed and its episodes never."""
    sys.stderr.write(
        f"forebay: {blockage.task} has blocked the event loop for {blockage.blocked_s:.0f} s (limit "
        f"actors.blocked_limit_s). Set environment.{blockage.environment}.blocking = true.\n{blockage.stack}"
    )
    sys.stderr.flush()
    # The thread that could end the process in an orderly way is the one that is blocked.
    os._exit(PeerFailedError.exit_code)


class LoopWatchdog:
    """Reports an event loop that is blocked.

    Code that blocks in an event loop cannot be stopped from outside, only named; with `blocking = true` it
    runs in a process that can be killed.

    Args:
        loop: The loop to watch.
        limit_s: Blocked this long, it is reported once.
        fatal_s: Blocked this long, `on_fatal` is called.
        on_blocked: Told of each blockage, in the watchdog's thread; it is logged in any case.
        on_fatal: Told of one that does not end; by default it ends the process with exit code 4.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limit_s: float,
        fatal_s: float,
        *,
        on_blocked: Callable[[Blockage], None] = lambda _: None,
        on_fatal: Callable[[Blockage], None] | None = None,
    ) -> None:
        self._loop = loop
        self._loop_thread = threading.get_ident()
        self._limit_s = limit_s
        self._fatal_s = fatal_s
        self._on_blocked = on_blocked
        self._on_fatal = on_fatal or end_process
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="loop-watchdog", daemon=True)

    def start(self) -> None:
        """Begin to watch; call it in the loop's thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop watching."""
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(self._limit_s / 2):
            alive = threading.Event()
            try:
                self._loop.call_soon_threadsafe(alive.set)
            except RuntimeError:  # the loop is closed
                return
            if alive.wait(self._limit_s):
                continue
            blockage = self._look(self._limit_s)
            log_blockage(blockage)
            self._on_blocked(blockage)
            if not self._wait_for_life(alive):
                self._on_fatal(blockage._replace(blocked_s=self._fatal_s))
                return

    def _wait_for_life(self, alive: threading.Event) -> bool:
        """Return whether the loop turns again, or is no longer watched, before the fatal limit."""
        left_s = self._fatal_s - self._limit_s
        while left_s > 0 and not self._stop.is_set():
            if alive.wait(min(left_s, self._limit_s)):
                return True
            left_s -= self._limit_s
        return self._stop.is_set()

    def _look(self, blocked_s: float) -> Blockage:
        task = asyncio.current_task(self._loop)
        frame: FrameType | None = sys._current_frames().get(self._loop_thread)
        stack = "".join(traceback.format_stack(frame)[-_MAX_FRAMES:]) if frame else ""
        return Blockage(task.get_name() if task else "unknown", stack, blocked_s)
