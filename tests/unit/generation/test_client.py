"""The client against real servers, sockets and all."""

from __future__ import annotations

import asyncio
import json

import pytest

from forebay.errors import ConfigError, PeerFailedError, RecordError
from forebay.generation.client import read_token
from forebay.generation.pool import GeneratorPool
from forebay.generation.protocol import BadRequestError, OverloadedError, UnreachableError
from forebay.trajectory import Sampling
from tests.unit.generation.fakes import Gated, expected_tokens, request, version
from tests.unit.generation.servers import QUICK, Scripted, calling, listening, serving
from tests.unit.generation.test_http_wire import VLLM_RESPONSE

IMPATIENT = QUICK.model_copy(update={"unresponsive_s": 0.2})
PATIENT = QUICK.model_copy(update={"unresponsive_s": 1.0})
IDS_OF_40 = QUICK.model_copy(update={"vocabulary": 37, "padded_vocabulary": 40})
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


def test_abort_ends_a_running_request() -> None:
    async def scenario() -> None:
        gated = Gated()
        async with serving(gated) as (address, _), calling(address) as client:
            task = asyncio.create_task(client.generate(request("a", [1, 2], max_tokens=200_000)))
            while not gated.entered.is_set():
                await asyncio.sleep(0.001)
            await client.abort("a")
            await client.abort("unknown")
            gated.gate.set()
            completion = await task
            assert completion.finish == "abort"
            assert len(completion.tokens) < 200_000

    asyncio.run(scenario())


def test_ids_outside_the_vocabulary_are_refused_by_name() -> None:
    async def scenario() -> None:
        async with serving() as (address, _), calling(address) as client:
            with pytest.raises(BadRequestError, match=r"answered 400.*got 50, limit 0 <= id < 50"):
                await client.generate(request("a", [1, 50]))
            assert client.retries == 0

    asyncio.run(scenario())


def test_sampling_and_limits_cross_the_wire() -> None:
    async def scenario() -> None:
        async with serving() as (address, _), calling(address) as client:
            sampling = Sampling(temperature=0.6, top_p=0.5, top_k=3)
            expected = expected_tokens([1, 2], 9, seed=5)
            asked = request(
                "a",
                [1, 2],
                sampling=sampling,
                seed=5,
                max_tokens=9,
                stop_tokens=(expected[3],),
                deadline_s=60.0,
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
            script.healthy = False
            with pytest.raises(PeerFailedError, match="not ready within"):
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


def test_release_on_a_server_without_the_route_is_nothing() -> None:
    async def scenario() -> None:
        async with listening(Scripted((404, b"Not Found"))) as address, calling(address) as client:
            await client.release("e")
            with pytest.raises(BadRequestError, match="404"):
                await client.generate(request())

    asyncio.run(scenario())


def test_vllm_describes_its_model_and_weights() -> None:
    async def scenario() -> None:
        models = {"object": "list", "data": [{"id": "policy", "object": "model", "max_model_len": 4096}]}
        script = Scripted((200, b'{"weight_version": "1.38"}'), models=json.dumps(models).encode())
        async with listening(script) as address, calling(address, settings=IDS_OF_40) as client:
            info = await client.info()
        assert (info.version, info.context, info.model) == (version(38, incarnation=1), 4096, "policy")
        assert info.vocabulary == 37

    asyncio.run(scenario())


def test_a_silent_generator_is_noticed_by_the_heartbeat() -> None:
    async def scenario() -> None:
        script = Scripted(None, healthy=False)
        async with listening(script) as address, calling(address, settings=IMPATIENT) as client:
            with pytest.raises(UnreachableError, match=r"did not answer for 0\.2 s"):
                await client.generate(request())

    asyncio.run(scenario())


def test_a_slow_generator_that_is_alive_is_waited_for() -> None:
    async def scenario() -> None:
        gated = Gated()
        async with serving(gated) as (address, _), calling(address, settings=PATIENT) as client:
            task = asyncio.create_task(client.generate(request("a", [1, 2])))
            await asyncio.sleep(2 * PATIENT.unresponsive_s)
            assert not task.done()
            gated.gate.set()
            assert (await task).tokens.tolist() == expected_tokens([1, 2], 4)

    asyncio.run(scenario())


def test_a_pool_fails_over_from_a_dead_server_with_the_same_tokens() -> None:
    async def scenario() -> None:
        async with serving() as (alive, _):
            async with serving() as (dying, _), calling(dying) as first, calling(alive) as second:
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
