"""The client against the real server: sockets and all, with a model that needs no JAX behind it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import pickle
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import uvicorn

from forebay.clock import SystemClock
from forebay.errors import ConfigError, GenerationError, PeerFailedError, RecordError
from forebay.generation.client import HttpGenerator, read_token
from forebay.generation.http_wire import encode_request
from forebay.generation.local import LocalGenerator
from forebay.generation.pool import GeneratorPool
from forebay.generation.protocol import (
    BadRequestError,
    GeneratorInfo,
    OverloadedError,
    UnreachableError,
)
from forebay.generation.scheduler import Scheduler
from forebay.generation.server import Routes
from forebay.generation.settings import ClientSettings, GeneratorSettings
from forebay.generation.watcher import WatchCounters
from forebay.trajectory import Sampling
from tests.unit.generation.fakes import VOCABULARY, FakeExecutor, expected_tokens, request, version
from tests.unit.generation.test_http_wire import VLLM_RESPONSE
from tests.unit.generation.test_local import Gated

CONTEXT = 4096
QUICK = ClientSettings(
    connect_timeout_s=1.0,
    retry_s=0.2,
    heartbeat_s=0.02,
    unresponsive_s=0.2,
    busy_retry_s=0.2,
    max_backoff_s=0.05,
)
ROUTES = [
    ("POST", "/inference/v1/generate"),
    ("POST", "/inference/v1/abort_requests"),
    ("POST", "/inference/v1/release_episodes"),
    ("GET", "/health"),
    ("GET", "/v1/models"),
    ("GET", "/weight_info"),
    ("GET", "/metrics"),
    ("GET", "/no/such/route"),
]


@contextlib.asynccontextmanager
async def listening(app: Any) -> AsyncIterator[str]:
    """Serve an ASGI application on a free port of the loopback."""
    server = uvicorn.Server(
        uvicorn.Config(app, port=0, lifespan="off", ws="none", log_level="critical", timeout_graceful_shutdown=1)
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

    def __init__(self, *answers: tuple[int, bytes] | None, healthy: bool = True) -> None:
        self.answers, self.healthy = list(answers), healthy
        self.requests = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/health":
            answer: tuple[int, bytes] | None = (200, b"{}") if self.healthy else None
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


VLLM = json.dumps(VLLM_RESPONSE).encode()


def test_tokens_come_back_as_the_model_made_them() -> None:
    async def scenario() -> None:
        async with serving() as (address, _), calling(address) as client:
            first = await client.generate(request("a", [1, 2, 3], episode_id="e", keep=True))
            assert first.tokens.tolist() == expected_tokens([1, 2, 3], 4)
            assert first.version_spans[0].version == version(3)
            prompt = [1, 2, 3, *first.tokens.tolist(), 9]
            again = await client.generate(request("b", prompt, episode_id="e", keep=True))
            assert again.tokens.tolist() == expected_tokens(prompt, 4)
            assert (again.num_cached, again.num_prefilled) == (6, 2)
            await client.release("e")

    asyncio.run(scenario())


def test_info_and_metrics_describe_the_generator() -> None:
    async def scenario() -> None:
        async with serving() as (address, _), calling(address) as client:
            info = await client.info()
            assert (info.version, info.context, info.vocabulary, info.slots) == (version(3), CONTEXT, 50, 2)
            await client.generate(request())
            async with aiohttp.ClientSession() as session:
                metrics = await (await session.get(address + "/metrics")).json()
                health = await session.get(address + "/health")
                assert (health.status, (await health.json())["version"]) == (200, "0.3")
                weights = await (await session.get(address + "/weight_info")).json()
        assert weights == {"weight_version": "0.3"}
        assert metrics["generator"]["requests"]["sampled_tokens"] == 4
        assert metrics["compiles"] == 7

    asyncio.run(scenario())


def test_abort_ends_a_running_request() -> None:
    async def scenario() -> None:
        gated = Gated()
        async with serving(gated) as (address, _), calling(address) as client:
            task = asyncio.create_task(client.generate(request("a", [1, 2], max_tokens=4000)))
            while not gated.entered.is_set():
                await asyncio.sleep(0.001)
            await client.abort("a")
            await client.abort("unknown")
            gated.gate.set()
            completion = await task
            assert completion.finish == "abort"
            assert len(completion.tokens) < 4000

    asyncio.run(scenario())


def test_a_client_that_hangs_up_aborts_its_request() -> None:
    async def scenario() -> None:
        gated = Gated()
        async with serving(gated) as (address, generator):
            async with calling(address) as client:
                task = asyncio.create_task(client.generate(request("a", [1, 2], max_tokens=4000)))
                while not gated.entered.is_set():
                    await asyncio.sleep(0.001)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            await asyncio.sleep(0.05)
            gated.gate.set()
            while generator.stats().requests.aborted == 0:
                await asyncio.sleep(0.001)

    asyncio.run(scenario())


def test_same_id_twice_at_once_is_a_conflict() -> None:
    async def scenario() -> None:
        async with (
            serving() as (address, generator),
            calling(address) as client,
            aiohttp.ClientSession() as session,
        ):
            asked = request("a", [1, 2], max_tokens=4000)
            first = asyncio.create_task(client.generate(asked))
            while not generator.stats().running:
                await asyncio.sleep(0.001)
            response = await session.post(address + "/inference/v1/generate", data=encode_request(asked))
            assert response.status == 409
            await client.abort("a")
            assert (await first).finish == "abort"

    asyncio.run(scenario())


def test_ids_outside_the_vocabulary_are_refused_by_name() -> None:
    async def scenario() -> None:
        async with serving() as (address, _), calling(address) as client:
            with pytest.raises(BadRequestError, match=r"answered 400.*got 50, limit 0 <= id < 50"):
                await client.generate(request("a", [1, 50]))
            assert client.retries == 0

    asyncio.run(scenario())


def test_c75_pickles_and_garbage_get_a_4xx_and_run_nothing(tmp_path: Path) -> None:
    canary = tmp_path / "canary"

    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (canary,)

    async def scenario() -> None:
        async with serving() as (address, _), aiohttp.ClientSession() as session:
            for data in (pickle.dumps(Bomb()), b"\x80\x04", b"\x00" * 1000, b"{", b"[" * 100_000):
                for method, path in ROUTES[:3]:
                    response = await session.request(method, address + path, data=data)
                    assert response.status == 400, (path, data[:10], response.status)
            response = await session.get(address + "/health")
            assert response.status == 200

    asyncio.run(scenario())
    assert not canary.exists()


def test_c76_every_route_answers_401_without_the_token() -> None:
    async def scenario() -> None:
        async with serving(token="secret") as (address, _), aiohttp.ClientSession() as session:
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "secret"}):
                for method, path in ROUTES:
                    response = await session.request(method, address + path, headers=headers)
                    assert response.status == 401, path
            async with calling(address) as client:
                with pytest.raises(BadRequestError, match=r"401.*token_env"):
                    await client.generate(request())
            async with calling(address, token="secret") as client:
                assert (await client.generate(request())).finish == "length"

    asyncio.run(scenario())


def test_bodies_beyond_the_limit_are_refused() -> None:
    async def scenario() -> None:
        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(20):
                yield b"x" * 100

        async with serving(max_body_bytes=1024) as (address, _), aiohttp.ClientSession() as session:
            for data in (b"x" * 2000, chunks()):
                response = await session.post(address + "/inference/v1/generate", data=data)
                assert response.status == 413

    asyncio.run(scenario())


def test_health_says_503_when_a_device_call_hangs() -> None:
    async def scenario() -> None:
        gated = Gated()
        async with serving(gated, stall_timeout_s=0.01) as (address, _), calling(address) as client:
            task = asyncio.create_task(client.generate(request()))
            while not gated.entered.is_set():
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.05)
            async with aiohttp.ClientSession() as session:
                response = await session.get(address + "/health")
                assert (response.status, (await response.json())["state"]) == (503, "stalled")
            gated.gate.set()
            await task

    asyncio.run(scenario())


def test_failure_of_the_engine_is_a_500_with_its_cause() -> None:
    async def scenario() -> None:
        failing = FakeExecutor(2, CONTEXT)
        failing.failure = RuntimeError("the device is on fire")
        async with serving(failing) as (address, _), calling(address) as client:
            with pytest.raises(GenerationError, match=r"500.*on fire") as caught:
                await client.generate(request())
            assert not isinstance(caught.value, OverloadedError | UnreachableError)

    asyncio.run(scenario())


def test_sampling_and_limits_cross_the_wire() -> None:
    async def scenario() -> None:
        async with serving() as (address, _), calling(address) as client:
            sampling = Sampling(temperature=0.6, top_p=0.5, top_k=3)
            expected = expected_tokens([1, 2], 9, seed=5)
            asked = request(
                "a", [1, 2], sampling=sampling, seed=5, max_tokens=9, stop_tokens=(expected[3],), deadline_s=60.0
            )
            completion = await client.generate(asked)
            assert completion.tokens.tolist() == expected[: expected.index(expected[3]) + 1]
            assert completion.finish == "stop"

    asyncio.run(scenario())


def test_c02_length_mismatch_over_http_is_refused_and_not_retried() -> None:
    async def scenario() -> None:
        broken = json.loads(VLLM)
        broken["choices"][0]["token_ids"].append(4)
        script = Scripted((200, json.dumps(broken).encode()))
        async with listening(script) as address, calling(address) as client:
            with pytest.raises(RecordError, match="got 3, limit 4"):
                await client.generate(request())
            assert script.requests == 1

    asyncio.run(scenario())


def test_a_busy_generator_is_tried_again() -> None:
    async def scenario() -> None:
        script = Scripted((503, b"loading"), (429, b"full"), (200, VLLM))
        async with listening(script) as address, calling(address) as client:
            assert (await client.generate(request())).tokens.tolist() == [7, 8, 2]
            assert client.retries == 2

    asyncio.run(scenario())


def test_a_generator_that_stays_busy_is_an_error_with_its_answer() -> None:
    async def scenario() -> None:
        script = Scripted((503, b"still loading"))
        async with listening(script) as address, calling(address) as client:
            with pytest.raises(OverloadedError, match=r"answered 503: still loading"):
                await client.generate(request())
            with pytest.raises(PeerFailedError, match="not ready within"):
                script.healthy = False
                await client.wait_ready(0.05)

    asyncio.run(scenario())


def test_a_generator_that_is_gone_is_an_error_after_a_few_tries() -> None:
    async def scenario() -> None:
        async with listening(Scripted((200, b""))) as address:
            pass
        async with calling(address) as client:
            with pytest.raises(UnreachableError, match="cannot be reached"):
                await client.generate(request())
            assert client.retries > 1
            await client.abort("a")
            await client.release("e")

    asyncio.run(scenario())


def test_a_silent_generator_is_noticed_by_the_heartbeat() -> None:
    async def scenario() -> None:
        script = Scripted(None, healthy=False)
        async with listening(script) as address, calling(address) as client:
            with pytest.raises(UnreachableError, match=r"did not answer for 0\.2 s"):
                await client.generate(request())

    asyncio.run(scenario())


def test_a_slow_generator_that_is_alive_is_waited_for() -> None:
    async def scenario() -> None:
        gated = Gated()
        async with serving(gated) as (address, _), calling(address) as client:
            task = asyncio.create_task(client.generate(request("a", [1, 2])))
            await asyncio.sleep(4 * QUICK.unresponsive_s)
            assert not task.done()
            gated.gate.set()
            assert (await task).tokens.tolist() == expected_tokens([1, 2], 4)

    asyncio.run(scenario())


def test_a_pool_fails_over_from_a_dead_server_with_the_same_tokens() -> None:
    async def scenario() -> None:
        async with serving() as (alive, _):
            async with serving() as (dying, _):
                async with calling(dying) as first, calling(alive) as second:
                    pool = GeneratorPool([first, second])
                    one = await pool.generate(request("a", [1, 2, 3], episode_id="e", keep=True))
            async with calling(dying) as first, calling(alive) as second:
                pool = GeneratorPool([first, second])
                prompt = [1, 2, 3, *one.tokens.tolist(), 4]
                two = await pool.generate(request("b", prompt, episode_id="e"))
                assert two.tokens.tolist() == expected_tokens(prompt, 4)
                assert pool.failovers == 1

    asyncio.run(scenario())


def test_token_comes_from_the_environment() -> None:
    assert read_token(None, {}) is None
    assert read_token("T", {"T": " secret\n"}) == "secret"
    with pytest.raises(ConfigError, match="environment variable T holds no token"):
        read_token("T", {"T": " "})
