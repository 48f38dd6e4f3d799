"""Calls of code that is not ours: it may raise anything, and it may never return."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Generic, NamedTuple, TypeVar

T = TypeVar("T")

_left: set[asyncio.Task[Any]] = set()
"""Calls that may still run: an event loop alone does not keep its tasks alive."""


class Attempt(NamedTuple, Generic[T]):
    """How a foreign call went.

    Attributes:
        task: The task that it ran in; after a timeout it was cancelled and may still run.
        timed_out: It did not return in time.
        error: What it raised, if it did.
    """

    task: asyncio.Task[T]
    timed_out: bool
    error: BaseException | None

    @property
    def value(self) -> T:
        """What it returned; only for a call that did."""
        return self.task.result()

    @property
    def reason(self) -> str:
        """What it raised, as text."""
        error = self.error.__cause__ if isinstance(self.error, ProcessExitError) else self.error
        return f"{type(error).__name__}: {error}"[:500]


class ProcessExitError(Exception):
    """A call that wanted to end the process."""


async def attempt(call: Callable[[], Awaitable[T]], *, timeout_s: float, name: str) -> Attempt[T]:
    """Await a foreign call until its deadline, whether or not it reacts to its cancellation.

    Args:
        call: Makes the awaitable; may itself do anything.
        timeout_s: Deadline.
        name: Names the task.
    """
    task = asyncio.create_task(_contained(call), name=name)
    _left.add(task)
    task.add_done_callback(_forget)
    try:
        done, _ = await asyncio.wait({task}, timeout=timeout_s)
    except asyncio.CancelledError:
        task.cancel()
        raise
    if not done:
        task.cancel()
        return Attempt(task, timed_out=True, error=None)
    if task.cancelled():
        return Attempt(task, timed_out=False, error=asyncio.CancelledError("cancelled itself"))
    return Attempt(task, timed_out=False, error=task.exception())


async def _contained(call: Callable[[], Awaitable[T]]) -> T:
    try:
        return await call()
    except (SystemExit, KeyboardInterrupt) as error:  # from a task, these would end the event loop
        raise ProcessExitError(f"{type(error).__name__}: {error}") from error


def _forget(task: asyncio.Task[Any]) -> None:
    _left.discard(task)
    if not task.cancelled():
        task.exception()  # taken note of, so that the loop does not complain
