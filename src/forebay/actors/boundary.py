"""The fault boundary: code that is not ours may do anything there, and only its own episode suffers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from forebay.errors import EnvironmentFailure, ForebayError

T = TypeVar("T")
_MAX_MESSAGE: Final = 500


class DeadlinePassedError(ForebayError):
    """A call did not return in time."""


class FaultBoundary:
    """Runs foreign calls in tasks of their own, contains what they raise, and leaves those that do not end.

    Args:
        grace_s: Time that a cancelled call gets to return, in seconds of the event loop.

    Attributes:
        num_abandoned: Calls that ignored their cancellation for longer than that.
    """

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._leaving: set[asyncio.Task[Any]] = set()
        self.num_abandoned = 0

    async def call(self, call: Callable[[], Awaitable[T]], *, timeout_s: float, name: str) -> T:
        """Await a foreign call for at most `timeout_s` seconds of the event loop.

        Returns at the deadline, whether or not the call reacts to its cancellation.

        Args:
            call: Makes the awaitable; may itself do anything.
            timeout_s: Deadline.
            name: Names the task, and the call in errors and in the reports of a blocked loop.

        Raises:
            DeadlinePassedError: It did not return in time.
            EnvironmentFailure: It raised, `SystemExit` and the like included.
        """
        task = asyncio.create_task(_contained(call, name), name=name)
        try:
            done, _ = await asyncio.wait({task}, timeout=max(timeout_s, 0.0))
        except asyncio.CancelledError:
            self._cancel(task)
            raise
        if done:
            return task.result()
        self._cancel(task)
        raise DeadlinePassedError(f"{name} did not return", limit=f"{timeout_s:.3g} s")

    async def settle(self, prefix: str) -> None:
        """Wait, for the grace time at most, until cancelled calls named `prefix...` have returned."""
        if leaving := {task for task in self._leaving if task.get_name().startswith(prefix)}:
            await asyncio.wait(leaving, timeout=self._grace_s)

    def _cancel(self, task: asyncio.Task[Any]) -> None:
        self._leaving.add(task)
        task.add_done_callback(self._left)
        task.cancel()
        asyncio.get_running_loop().call_later(self._grace_s, self._note_if_abandoned, task)

    def _note_if_abandoned(self, task: asyncio.Task[Any]) -> None:
        self.num_abandoned += not task.done()

    def _left(self, task: asyncio.Task[Any]) -> None:
        self._leaving.discard(task)
        if not task.cancelled():
            task.exception()  # taken note of, so that the loop does not complain


async def _contained(call: Callable[[], Awaitable[T]], name: str) -> T:
    try:
        return await call()
    except BaseException as error:
        task = asyncio.current_task()
        cancelled = isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling()
        if cancelled or isinstance(error, GeneratorExit):
            raise
        reason = f"{type(error).__name__}: {error}"[:_MAX_MESSAGE]
        raise EnvironmentFailure(f"{name} raised {reason}") from error
