"""The client's side of vLLM: holding, deadlines and masks, against a small real server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from forebay.errors import GenerationError
from forebay.generation.client import HttpGenerator
from tests.unit.generation.fakes import request, version
from tests.unit.generation.servers import QUICK, calling, listening
from tests.unit.generation.vllm_app import FakeVllm


@contextlib.asynccontextmanager
async def served(label: str, **fields: Any) -> AsyncIterator[tuple[FakeVllm, HttpGenerator]]:
    fake = FakeVllm()
    fake.label, fake.weights = label, 7
    async with listening(fake.app()) as address, calling(address, **fields) as client:
        yield fake, client


def test_a_request_is_sent_once_its_version_is_served() -> None:
    async def scenario() -> None:
        async with served("0.3") as (fake, client):
            waiting = asyncio.create_task(client.generate(request("a", min_version=version(4))))
            fresh = await client.generate(request("b", min_version=version(3)))
            assert fresh.version_spans[0].version == version(3)
            assert not waiting.done()
            assert [body["request_id"] for body in fake.bodies] == ["b"]
            fake.label = "0.4/0.2"
            span = (await waiting).version_spans[0]
            assert (span.version, span.kv_version) == (version(4), version(2))

    asyncio.run(scenario())


def test_many_waiting_requests_ask_for_the_label_one_at_a_time() -> None:
    async def scenario() -> None:
        fake = FakeVllm()
        fake.label = "0.3"
        asked = 0
        answer = fake.weight_info

        async def counting(received: Any) -> Any:
            nonlocal asked
            asked += 1
            return await answer(received)

        fake.weight_info = counting  # type: ignore[method-assign]
        async with listening(fake.app()) as address, calling(address) as client:
            requests = [request(f"r{n}", min_version=version(4), deadline_s=1.0) for n in range(50)]
            completions = await asyncio.gather(*map(client.generate, requests))
        assert {completion.finish for completion in completions} == {"deadline"}
        assert 1 < asked < 50

    asyncio.run(scenario())


def test_a_deadline_ends_a_request_with_what_it_has_or_with_nothing() -> None:
    async def scenario() -> None:
        async with served("0.3") as (fake, client):
            late = await client.generate(request("a", max_tokens=100_000, deadline_s=1.0))
            assert late.finish == "deadline"
            assert 0 < len(late.tokens) < 100_000
            held = await client.generate(request("b", min_version=version(9), deadline_s=0.05))
            assert (held.finish, len(held.tokens), held.version_spans) == ("deadline", 0, ())
            fake.going.clear()
            paused = await client.generate(request("c", deadline_s=0.1))
            assert (paused.finish, len(paused.tokens)) == ("deadline", 0)

    asyncio.run(scenario())


def test_tokens_of_unlabelled_or_older_weights_are_thrown_away() -> None:
    async def scenario() -> None:
        async with served("0.3") as (fake, client):
            await client.generate(request("a"))
            for lost in ("default", "0.1"):
                fake.label = lost
                waiting = asyncio.create_task(client.generate(request(lost, min_version=version(3))))
                await asyncio.sleep(0.1)
                assert not waiting.done()
                fake.label = "0.3"
                assert (await waiting).version_spans[0].version == version(3)

    asyncio.run(scenario())


def test_padding_is_masked_and_nothing_else() -> None:
    async def scenario() -> None:
        settings = QUICK.model_copy(update={"vocabulary": 37, "padded_vocabulary": 40})
        async with served("0.3", settings=settings) as (fake, client):
            await client.generate(request("a"))
        assert fake.bodies[0]["sampling_params"]["logit_bias"] == {"37": -100, "38": -100, "39": -100}
        async with served("0.3") as (fake, client):
            await client.generate(request("a"))
        assert "logit_bias" not in fake.bodies[0]["sampling_params"]

    asyncio.run(scenario())


def test_a_server_without_control_routes_names_the_remedy() -> None:
    async def scenario() -> None:
        fake = FakeVllm(dev_mode=False)
        async with listening(fake.app()) as address, calling(address) as client:
            for ask in (client.info(), client.generate(request())):
                with pytest.raises(GenerationError, match="VLLM_SERVER_DEV_MODE=1"):
                    await ask

    asyncio.run(scenario())


def test_weights_that_nobody_labelled_are_no_generator() -> None:
    async def scenario() -> None:
        async with served("default") as (_, client):
            with pytest.raises(GenerationError, match=r"not serve weights of this run.*forebay generate RUN"):
                await client.info()

    asyncio.run(scenario())


def test_weights_of_another_run_are_not_asked_for_tokens() -> None:
    async def scenario() -> None:
        mine = QUICK.model_copy(update={"run_id": "mine"})
        async with served("0.9/0.9@other", settings=mine) as (fake, client):
            with pytest.raises(GenerationError, match="not labelled by this run"):
                await client.info()
            waiting = asyncio.create_task(client.generate(request("a")))
            await asyncio.sleep(0.1)
            assert fake.bodies == []
            fake.label = "0.2/0.1@mine"
            span = (await waiting).version_spans[0]
            assert (span.version, span.kv_version) == (version(2), version(1))
            assert (await client.info()).version == version(2)

    asyncio.run(scenario())
