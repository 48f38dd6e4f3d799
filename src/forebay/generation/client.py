"""A generator behind HTTP: our engine or vLLM, with deadlines on every wait; no JAX is imported here."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import aiohttp
import msgspec

from forebay.clock import Clock, SystemClock
from forebay.errors import ConfigError, GenerationError, PeerFailedError
from forebay.generation import http_records as records
from forebay.generation import http_wire as wire
from forebay.generation.protocol import (
    BadRequestError,
    Completion,
    GenerationRequest,
    GeneratorInfo,
    OverloadedError,
    UnreachableError,
)
from forebay.generation.settings import ClientSettings

_SETTINGS, _CLOCK = ClientSettings(), SystemClock()
_MIN_BACKOFF_S = 0.05
_MIN_PING_S = 0.1
_EXCERPT_CHARS = 300
_CONFLICT, _BUSY = 409, (429, 503)
T = TypeVar("T")


def read_token(token_env: str | None, environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the bearer token that an environment variable holds; None if no variable is named.

    Raises:
        ConfigError: The variable is named but not set.
    """
    if token_env is None:
        return None
    token = environ.get(token_env, "").strip()
    if not token:
        raise ConfigError(
            f"environment variable {token_env} holds no token",
            remedy=f"Set it: export {token_env}=$(openssl rand -hex 32)",
        )
    return token


class _NotFoundError(BadRequestError):
    """The generator has no such route: vLLM keeps no episodes, for instance."""


class _Connection:
    """One HTTP request and its answer, or the error that says what kind of trouble it was."""

    def __init__(self, address: str, settings: ClientSettings, token: str | None) -> None:
        self.address, self._settings = address, settings
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._session: aiohttp.ClientSession | None = None

    async def request(
        self, method: str, path: str, body: bytes | None = None, timeout_s: float | None = None
    ) -> bytes:
        settings = self._settings
        timeout = aiohttp.ClientTimeout(
            total=timeout_s or settings.unresponsive_s, sock_connect=settings.connect_timeout_s
        )
        headers = self._headers | ({"Content-Type": "application/json"} if body is not None else {})
        try:
            async with self._open().request(
                method, self.address + path, data=body, headers=headers, timeout=timeout
            ) as response:
                data = await response.read()
                status = response.status
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            reason = str(error) or type(error).__name__
            raise UnreachableError(f"generator {self.address} cannot be reached: {reason}") from error
        if status != 200:
            raise self._refusal(status, data)
        return data

    def _refusal(self, status: int, data: bytes) -> GenerationError:
        message = (
            f"generator {self.address} answered {status}: {data[:_EXCERPT_CHARS].decode(errors='replace')}"
        )
        if status in _BUSY:
            return OverloadedError(message)
        if status == _CONFLICT:  # the same request is still ending there, after a connection was lost
            return UnreachableError(message)
        if status == 404:
            return _NotFoundError(message)
        if status == 401:
            return BadRequestError(message, remedy="Give both sides the same token through token_env.")
        return BadRequestError(message) if 400 <= status < 500 else GenerationError(message)

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        return self._session

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


class HttpGenerator:
    """The `Generator` protocol over HTTP.

    Waits: for a connection (`connect_timeout_s`), for a generator that cannot be reached (`retry_s`), that is
    loading or full (`busy_retry_s`), that is silent (`unresponsive_s`, noticed by a heartbeat while requests
    run), and for the completion (the request's deadline, then `request_timeout_s`).

    Args:
        address: Base address, e.g. `http://127.0.0.1:8100`.
        settings: The waits.
        token: Bearer token.
        clock: Source of time.
    """

    def __init__(
        self,
        address: str,
        *,
        settings: ClientSettings = _SETTINGS,
        token: str | None = None,
        clock: Clock = _CLOCK,
    ) -> None:
        self.address = address.rstrip("/")
        self._settings = settings
        self._clock = clock
        self._connection = _Connection(self.address, settings, token)
        self._running: set[asyncio.Task[bytes]] = set()
        self._silent: set[asyncio.Task[bytes]] = set()
        self._heartbeat: asyncio.Task[None] | None = None
        self.retries = 0

    async def generate(self, request: GenerationRequest) -> Completion:
        """Continue one prompt; tried again while the generator cannot be reached or is busy.

        Trying again is safe: the tokens are a function of prompt, seed and weights.

        Raises:
            BadRequestError: The generator refused the request.
            OverloadedError: It was busy for longer than `busy_retry_s`.
            UnreachableError: It could not be reached, fell silent, or did not finish in time.
            GenerationError: It failed.
            RecordError: Its answer contradicts itself (`logprob_mismatch` and others).
        """
        body = wire.encode_request(request)
        return wire.decode_completion(await self._persist(lambda: self._watched(body)))

    async def abort(self, request_id: str) -> None:
        """End a running request; a generator that is gone has nothing to end."""
        await self._tell(
            records.ABORT_PATH, records.AbortBody([request_id, records.VLLM_ID_PREFIX + request_id])
        )

    async def release(self, episode_id: str) -> None:
        """Forget the KV cache of an episode; a generator that is gone holds none."""
        await self._tell(records.RELEASE_PATH, records.ReleaseBody([episode_id]))

    async def info(self) -> GeneratorInfo:
        """Return the version served and the limits.

        Raises:
            GenerationError: As for `generate`.
        """
        data = await self._persist(lambda: self._connection.request("GET", records.MODELS_PATH))
        try:
            cards = msgspec.json.decode(data, type=records.ModelList).data
            if cards and cards[0].forebay:
                return cards[0].forebay
            label = msgspec.json.decode(
                await self._connection.request("GET", records.WEIGHT_PATH), type=dict[str, str]
            )
        except msgspec.DecodeError as error:
            raise GenerationError(f"{self.address} does not describe its model: {error}") from error
        card = cards[0] if cards else records.ModelCard(id="")
        return GeneratorInfo(
            version=wire.parse_version(label.get("weight_version", "")),
            context=card.max_model_len or 0,
            vocabulary=0,
            model=card.id,
        )

    async def wait_ready(self, timeout_s: float) -> None:
        """Wait until the generator has loaded weights and compiled its programs.

        Raises:
            PeerFailedError: It was not ready within `timeout_s`; the message holds its last answer.
        """
        give_up_s = self._clock.monotonic_s() + timeout_s
        while True:
            left_s = give_up_s - self._clock.monotonic_s()
            try:
                limit_s = max(min(left_s, self._settings.unresponsive_s), _MIN_PING_S)
                await self._connection.request("GET", records.HEALTH_PATH, timeout_s=limit_s)
                return
            except (UnreachableError, OverloadedError) as error:
                if self._clock.monotonic_s() >= give_up_s:
                    raise PeerFailedError(
                        f"generator {self.address} was not ready within {timeout_s:g} s: {error}"
                    ) from error
            await self._clock.asleep(4 * _MIN_BACKOFF_S)

    async def close(self) -> None:
        """Close the connections; running requests end on the generator too."""
        for task in [*self._running, *([self._heartbeat] if self._heartbeat else [])]:
            task.cancel()
        await self._connection.close()

    async def _persist(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Try until it works, the answer is final, or the time for the kind of trouble is over."""
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

    async def _watched(self, body: bytes) -> bytes:
        """Ask for a completion; fail when the heartbeat finds the generator silent."""
        task = asyncio.ensure_future(
            self._connection.request("POST", records.GENERATE_PATH, body, self._settings.request_timeout_s)
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
                await self._connection.request("GET", records.HEALTH_PATH, timeout_s=max(left_s, _MIN_PING_S))
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

    async def _tell(self, path: str, message: msgspec.Struct) -> None:
        try:
            await self._connection.request("POST", path, msgspec.json.encode(message))
        except (UnreachableError, OverloadedError, _NotFoundError):
            return
