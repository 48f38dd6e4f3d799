"""Requests that persist through short trouble and notice a silent generator; without JAX."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from forebay.clock import Clock
from forebay.errors import GenerationError
from forebay.generation import http_records as records
from forebay.generation.http_connection import Connection, NotFoundError
from forebay.generation.protocol import OverloadedError, UnreachableError
from forebay.generation.settings import ClientSettings

_MIN_BACKOFF_S = 0.05
_MIN_PING_S = 0.1
T = TypeVar("T")


class Transport:
    """Gets requests to one generator through.

    Waits: for a generator that cannot be reached (`retry_s`), that is loading or full (`busy_retry_s`), and
    that is silent (`unresponsive_s`, noticed by a heartbeat while completions are awaited).

    Args:
        address: Base address, without a slash at its end.
        settings: The waits.
        token: Bearer token.
        clock: Source of time.

    Attributes:
        connection: Requests that are tried once.
        retries: How often a request was tried again.
    """

    def __init__(self, address: str, settings: ClientSettings, token: str | None, clock: Clock) -> None:
        self.address = address
        self.connection = Connection(address, settings, token)
        self._settings, self._clock = settings, clock
        self._running: set[asyncio.Task[bytes]] = set()
        self._silent: set[asyncio.Task[bytes]] = set()
        self._heartbeat: asyncio.Task[None] | None = None
        self.retries = 0

    async def get(self, path: str) -> bytes:
        """Return the answer of a route.

        Raises:
            GenerationError: As for `persist`.
        """
        return await self.persist(lambda: self.connection.request("GET", path))

    async def complete(self, body: bytes) -> bytes:
        """Return the completion of an encoded request.

        Raises:
            GenerationError: As for `persist`; `UnreachableError` also when the generator falls silent.
        """
        return await self.persist(lambda: self._watched(body))

    async def persist(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Try until it works, the answer is final, or the time for the kind of trouble is over.

        Raises:
            BadRequestError: The request was refused.
            OverloadedError: The generator was busy for longer than `busy_retry_s`.
            UnreachableError: It could not be reached for longer than `retry_s`.
            GenerationError: It failed.
        """
        backoff_s = _MIN_BACKOFF_S
        since: dict[type[GenerationError], float] = {}
        while True:
            started_s = self._clock.monotonic_s()
            try:
                return await attempt()
            except (UnreachableError, OverloadedError) as error:
                kind = type(error)
                limit_s = self._settings.busy_retry_s if kind is OverloadedError else self._settings.retry_s
                # Counted from the first try's start: a slow failure is not granted the time again.
                if self._clock.monotonic_s() - since.setdefault(kind, started_s) + backoff_s > limit_s:
                    raise
            self.retries += 1
            await self._clock.asleep(backoff_s)
            backoff_s = min(2 * backoff_s, self._settings.max_backoff_s)

    async def tell(self, path: str, message: msgspec.Struct) -> None:
        """Send a notice; a generator that is gone, or has no such route, has no use for it."""
        try:
            await self.connection.request("POST", path, msgspec.json.encode(message))
        except (UnreachableError, OverloadedError, NotFoundError):
            return

    async def close(self) -> None:
        """Close the connections; running requests end on the generator too."""
        for task in [*self._running, *([self._heartbeat] if self._heartbeat else [])]:
            task.cancel()
        await self.connection.close()

    async def _watched(self, body: bytes) -> bytes:
        """Ask for a completion; fail when the heartbeat finds the generator silent."""
        task = asyncio.ensure_future(
            self.connection.request("POST", records.GENERATE_PATH, body, self._settings.request_timeout_s)
        )
        self._running.add(task)
        if self._heartbeat is None or self._heartbeat.done():
            self._heartbeat = asyncio.create_task(self._watch())
        try:
            return await task
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if task not in self._silent or (caller is not None and caller.cancelling()):
                task.cancel()
                raise
            raise UnreachableError(
                f"generator {self.address} did not answer for {self._settings.unresponsive_s:g} s",
                remedy="Look at its log; its process is stopped, or its machine is gone.",
            ) from None
        finally:
            self._running.discard(task)
            self._silent.discard(task)

    async def _watch(self) -> None:
        """Heartbeat.

        Consumes: answers of the health route. Waits for: `heartbeat_s`. Unblocked by: time. Produces:
        cancelled requests, once nothing has answered for `unresponsive_s`.
        """
        limit_s = self._settings.unresponsive_s
        heard_s = self._clock.monotonic_s()
        while self._running:
            await self._clock.asleep(self._settings.heartbeat_s)
            left_s = limit_s - (self._clock.monotonic_s() - heard_s)
            try:
                await self.connection.request("GET", records.HEALTH_PATH, timeout_s=max(left_s, _MIN_PING_S))
            except UnreachableError:
                if self._clock.monotonic_s() - heard_s >= limit_s:
                    self._silent |= self._running
                    for task in self._running:
                        task.cancel()
                    return
                continue
            except GenerationError:
                pass  # any answer at all is a sign of life
            heard_s = self._clock.monotonic_s()
