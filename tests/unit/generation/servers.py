"""Real servers on the loopback: ours over the fake model, and one that plays a script."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import uvicorn

from forebay.clock import SystemClock
from forebay.generation.client import HttpGenerator
from forebay.generation.http_records import MODELS_PATH, ModelCard, ModelList
from forebay.generation.local import LocalGenerator
from forebay.generation.protocol import GeneratorInfo
from forebay.generation.scheduler import Scheduler
from forebay.generation.server import Routes
from forebay.generation.settings import ClientSettings, GeneratorSettings
from forebay.generation.watcher import WatchCounters
from tests.unit.generation.fakes import VOCABULARY, FakeExecutor, Gated, version

CONTEXT = 1 << 18
QUICK = ClientSettings(
    connect_timeout_s=1.0,
    retry_s=0.2,
    heartbeat_s=0.02,
    unresponsive_s=60.0,
    busy_retry_s=0.2,
    max_backoff_s=0.05,
)
OUR_MODELS = msgspec.json.encode(
    ModelList(
        [
            ModelCard(
                id="policy",
                max_model_len=CONTEXT,
                forebay=GeneratorInfo(version=version(3), context=CONTEXT, vocabulary=VOCABULARY),
            )
        ]
    )
)


@contextlib.asynccontextmanager
async def listening(app: Any) -> AsyncIterator[str]:
    """Serve an ASGI application on a free port of the loopback."""
    server = uvicorn.Server(
        uvicorn.Config(
            app, port=0, lifespan="off", ws="none", log_level="critical", timeout_graceful_shutdown=1
        )
    )
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.001)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


@contextlib.asynccontextmanager
async def serving(
    executor: FakeExecutor | None = None, *, token: str | None = None, **settings: Any
) -> AsyncIterator[tuple[str, LocalGenerator]]:
    fields = GeneratorSettings(slots=2, context=CONTEXT, prefill_chunks=(8,), **settings)

    def build() -> Scheduler:
        return Scheduler(executor or FakeExecutor(2, CONTEXT), fields, version(3), SystemClock())

    info = GeneratorInfo(version=version(0), context=CONTEXT, vocabulary=VOCABULARY, model="m", slots=2)
    generator = LocalGenerator(build, info)
    routes = Routes(
        generator,
        watch=WatchCounters(),
        compiles=lambda: 7,
        vocabulary=VOCABULARY,
        context=CONTEXT,
        max_body_bytes=fields.max_body_bytes,
        stall_timeout_s=fields.stall_timeout_s,
    )
    generator.start()
    while generator.state == "starting":
        await asyncio.sleep(0.001)
    async with listening(routes.app(token)) as address:
        try:
            yield address, generator
        finally:
            if isinstance(executor, Gated):
                executor.gate.set()
            await generator.close()


@contextlib.asynccontextmanager
async def calling(address: str, **fields: Any) -> AsyncIterator[HttpGenerator]:
    client = HttpGenerator(address, **({"settings": QUICK} | fields))
    try:
        yield client
    finally:
        await client.close()


class Scripted:
    """An ASGI application that plays a list of answers to the generate route; None never answers."""

    def __init__(
        self, *answers: tuple[int, bytes] | None, healthy: bool = True, models: bytes = OUR_MODELS
    ) -> None:
        self.answers, self.healthy, self.models = list(answers), healthy, models
        self.requests = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/health":
            answer: tuple[int, bytes] | None = (200, b"{}") if self.healthy else None
        elif scope["path"] == MODELS_PATH:
            answer = (200, self.models)
        else:
            while (await receive()).get("more_body"):
                pass
            self.requests += 1
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is None:
            while (await receive())["type"] != "http.disconnect":
                pass
            return
        await send({"type": "http.response.start", "status": answer[0], "headers": []})
        await send({"type": "http.response.body", "body": answer[1]})
