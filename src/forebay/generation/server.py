"""The generator's HTTP routes, closed by default; no JAX is imported here."""

from __future__ import annotations

import asyncio
import hmac
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from forebay.errors import ForebayError
from forebay.generation import http_records as records
from forebay.generation import http_wire as wire
from forebay.generation.local import LocalGenerator
from forebay.generation.protocol import BadRequestError, DuplicateRequestError, OverloadedError
from forebay.generation.watcher import WatchCounters

T = TypeVar("T")
_MODEL_ID = "policy"
_CLIENT_GONE = 499


class _BodyTooLarge(BadRequestError):
    """The body exceeds the limit."""


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `/health`; the status is 200 only when requests are served."""

    state: str
    version: str | None
    waiting: int
    running: int
    stalled_s: float


class Guard:
    """Answers 401 to everything that lacks the token; outermost, so that no route can be forgotten.

    Args:
        app: The application behind it.
        token: The bearer token; None lets everybody in.
    """

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode() if token else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if self._expected is not None and scope["type"] == "http":
            given = Headers(scope=scope).get("authorization", "").encode()
            if not hmac.compare_digest(given, self._expected):
                response = _error(401, "missing or wrong bearer token", "AuthenticationError")
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)


class Routes:
    """The routes over one generator.

    Args:
        generator: Does the work.
        watch: Counters of the weight watcher.
        compiles: Returns how often the process compiled.
        vocabulary: Ids below this are accepted.
        context: Most tokens of prompt and completion.
        max_body_bytes: Largest body.
        stall_timeout_s: Longest device call before health says 503.
    """

    def __init__(
        self,
        generator: LocalGenerator,
        *,
        watch: WatchCounters,
        compiles: Callable[[], int],
        vocabulary: int,
        context: int,
        max_body_bytes: int,
        stall_timeout_s: float,
    ) -> None:
        self._generator, self._watch, self._compiles = generator, watch, compiles
        self._vocabulary, self._context = vocabulary, context
        self._max_body_bytes, self._stall_timeout_s = max_body_bytes, stall_timeout_s
        self._refusals: Counter[str] = Counter()

    def app(self, token: str | None) -> ASGIApp:
        """Return the application, guarded by `token`."""
        routes = [
            Route(records.GENERATE_PATH, self._answering(self.generate), methods=["POST"]),
            Route(records.ABORT_PATH, self._answering(self.abort), methods=["POST"]),
            Route(records.RELEASE_PATH, self._answering(self.release), methods=["POST"]),
            Route(records.HEALTH_PATH, self.health),
            Route(records.MODELS_PATH, self.models),
            Route(records.WEIGHT_PATH, self.weight_version),
            Route(records.METRICS_PATH, self.metrics),
        ]
        return Guard(Starlette(routes=routes), token)

    async def generate(self, request: Request) -> Response:
        """Continue one prompt; a client that hangs up ends its request."""
        body = wire.decode_request(await self._body(request), self._vocabulary, self._context)
        completion = await _unless_gone(request, self._generator.generate(body))
        if completion is None:
            return Response(status_code=_CLIENT_GONE)
        return _json(wire.encode_completion(body.request_id, completion))

    async def abort(self, request: Request) -> Response:
        """End running requests."""
        body = _decode(await self._body(request), records.AbortBody)
        for request_id in body.request_ids:
            await self._generator.abort(request_id)
        return _json(b"{}")

    async def release(self, request: Request) -> Response:
        """Forget the KV caches of episodes."""
        body = _decode(await self._body(request), records.ReleaseBody)
        for episode_id in body.episode_ids:
            await self._generator.release(episode_id)
        return _json(b"{}")

    async def health(self, _: Request) -> Response:
        """Say whether requests are served."""
        stats, stalled_s = self._generator.stats(), self._generator.stalled_s()
        health = Health(
            state="stalled" if stalled_s > self._stall_timeout_s else stats.state,
            version=wire.version_label(stats.version) if stats.version else None,
            waiting=stats.waiting,
            running=stats.running,
            stalled_s=round(stalled_s, 3),
        )
        return _json(msgspec.json.encode(health), 200 if health.state == "ready" else 503)

    async def models(self, _: Request) -> Response:
        """Describe the model, in the shape of OpenAI's list of models."""
        info = await self._generator.info()
        card = records.ModelCard(id=_MODEL_ID, max_model_len=info.context, forebay=info)
        return _json(msgspec.json.encode(records.ModelList([card])))

    async def weight_version(self, _: Request) -> Response:
        """Name the weights that are served."""
        info = await self._generator.info()
        return _json(msgspec.json.encode({"weight_version": wire.version_label(info.version)}))

    async def metrics(self, _: Request) -> Response:
        """Return every counter."""
        numbers = {
            "generator": self._generator.stats(),
            "weights": self._watch,
            "compiles": self._compiles(),
            "refusals": self._refusals,
        }
        return _json(msgspec.json.encode(numbers))

    def _answering(
        self, route: Callable[[Request], Awaitable[Response]]
    ) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Turn the errors of a route into answers, and count them."""

        async def answer(request: Request) -> Response:
            try:
                return await route(request)
            except ForebayError as error:
                status, kind = _refusal(error)
                self._refusals[str(status)] += 1
                return _error(status, str(error), kind)

        return answer

    async def _body(self, request: Request) -> bytes:
        """Read the body, and no more than the limit of it."""
        limit = self._max_body_bytes
        declared = request.headers.get("content-length", "0")
        body = bytearray()
        if not declared.isdigit() or int(declared) > limit:
            raise _BodyTooLarge("the body is too large", got=declared[:32], limit=f"{limit} bytes")
        async for part in request.stream():
            body += part
            if len(body) > limit:
                raise _BodyTooLarge("the body is too large", limit=f"{limit} bytes")
        return bytes(body)


def _refusal(error: ForebayError) -> tuple[int, str]:
    """Return the status and vLLM's word for an error."""
    match error:
        case _BodyTooLarge():
            return 413, "RequestTooLarge"
        case DuplicateRequestError():
            return 409, "Conflict"
        case BadRequestError():
            return 400, "BadRequestError"
        case OverloadedError():
            return 503, "ServiceUnavailableError"
    return 500, "InternalServerError"


async def _unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T | None:
    """Return the result of `work`; cancel it and return None if the client hangs up first."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        gone.cancel()
        task.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        continue


def _decode(data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequestError(f"malformed request: {error}") from error


def _json(data: bytes, status: int = 200) -> Response:
    return Response(data, status, media_type="application/json")


def _error(status: int, message: str, kind: str) -> Response:
    """Return an error in vLLM's shape."""
    return _json(msgspec.json.encode({"error": {"message": message, "type": kind, "code": status}}), status)
