"""The routes over a real socket, with a model that needs no JAX behind them."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from forebay.errors import GenerationError
from forebay.generation.http_wire import encode_request
from forebay.generation.protocol import BadRequestError, OverloadedError, UnreachableError
from tests.unit.generation.fakes import FakeExecutor, Gated, Unhurried, request, version
from tests.unit.generation.servers import CONTEXT, calling, serving

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


def test_a_client_that_hangs_up_aborts_its_request() -> None:
    async def scenario() -> None:
        gated = Gated()
        async with serving(gated) as (address, generator):
            async with calling(address) as client:
                task = asyncio.create_task(client.generate(request("a", [1, 2], max_tokens=200_000)))
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
            serving(Unhurried(2, CONTEXT)) as (address, generator),
            calling(address) as client,
            aiohttp.ClientSession() as session,
        ):
            asked = request("a", [1, 2], max_tokens=200_000)
            first = asyncio.create_task(client.generate(asked))
            while not generator.stats().running:
                await asyncio.sleep(0.001)
            response = await session.post(address + "/inference/v1/generate", data=encode_request(asked))
            assert response.status == 409
            await client.abort("a")
            assert (await first).finish == "abort"

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
            metrics = await (await session.get(address + "/metrics")).json()
            assert metrics["refusals"] == {"400": 15}

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
