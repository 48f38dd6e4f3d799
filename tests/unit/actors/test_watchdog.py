"""In real time: a loop can only be blocked for real. Limits are short, what is asserted is who is named."""

from __future__ import annotations

import asyncio
import threading
import time

from forebay.actors.boundary import FaultBoundary
from forebay.actors.watchdog import Blockage, LoopWatchdog

HANG_S = 100.0


def test_the_environment_that_blocks_the_loop_is_named_with_its_stack() -> None:
    reports: list[Blockage] = []
    seen = threading.Event()

    def note(blockage: Blockage) -> None:
        reports.append(blockage)
        seen.set()

    async def block() -> None:
        deadline_s = time.monotonic() + HANG_S
        while not seen.is_set() and time.monotonic() < deadline_s:
            time.sleep(0.01)

    async def main() -> None:
        watchdog = LoopWatchdog(asyncio.get_running_loop(), 0.1, 600.0, on_blocked=note)
        watchdog.start()
        await FaultBoundary(1.0).call(block, timeout_s=600.0, name="web/g0.0.0.actor.1/step")
        watchdog.stop()

    asyncio.run(main())
    assert reports[0].environment == "web"
    assert "in block" in reports[0].stack


def test_a_loop_that_stays_blocked_is_fatal() -> None:
    fatal = threading.Event()

    async def main() -> None:
        watchdog = LoopWatchdog(asyncio.get_running_loop(), 0.05, 0.2, on_fatal=lambda blockage: fatal.set())
        watchdog.start()
        assert fatal.wait(HANG_S)
        watchdog.stop()

    asyncio.run(main())


def test_a_loop_that_turns_is_left_alone() -> None:
    reports: list[Blockage] = []

    async def main() -> None:
        watchdog = LoopWatchdog(asyncio.get_running_loop(), HANG_S, 2 * HANG_S, on_blocked=reports.append)
        watchdog.start()
        await asyncio.sleep(0.05)
        watchdog.stop()

    asyncio.run(main())
    assert reports == []
