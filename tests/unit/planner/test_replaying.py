"""A real server, over a model that computes nothing, under replayed conversations."""

from __future__ import annotations

import asyncio

import pytest

from forebay.generation.protocol import Completion, GenerationRequest
from forebay.planner.replaying import Replayer
from forebay.planner.traffic import Recorder, made_up
from tests.unit.generation.fakes import VOCABULARY, request
from tests.unit.generation.servers import Scripted, calling, listening, serving

# Two turns: the second prompt holds the first one and what was answered to it.
TURNS = (request("a", [1, 2, 3], max_tokens=3), request("b", [1, 2, 3, 9, 9, 9, 4], max_tokens=2))


def test_a_load_replays_whole_conversations_after_prompts_alone() -> None:
    async def scenario() -> None:
        async with serving() as (address, _), calling(address) as client:
            recorder = Recorder(client)
            replayer = Replayer(recorder, [TURNS], vocabulary=VOCABULARY, patience_s=30.0)
            load = await replayer.run_level(3, 0.2, 0.1)
        assert replayer.loads == [load] and not replayer.is_hopeless
        assert (load.requests, load.num_errors, load.error) == (3, 0, "")
        assert len(load.prompts) >= 3 and len(load.calls) >= 3
        assert {one.sampled_tokens for one in load.prompts} == {1}
        assert {one.computed_tokens for one in load.prompts} == {3}
        assert {one.sampled_tokens for one in load.calls} <= {3, 2}
        asked = [asked for calls in recorder.calls.values() for asked, _ in calls]
        names = [one.request_id for one in asked]
        assert len(set(names)) == len(names)
        turns = [one for one in asked if one.episode_id]
        assert {(one.request_id.endswith(".0"), one.keep) for one in turns} <= {(True, True), (False, False)}

    asyncio.run(scenario())


def test_a_load_that_is_cancelled_keeps_what_was_answered() -> None:
    async def scenario() -> None:
        answered = asyncio.Event()

        class Noticing(Recorder):
            async def generate(self, request: GenerationRequest) -> Completion:
                completion = await super().generate(request)
                if request.episode_id:
                    asyncio.get_running_loop().call_soon(answered.set)
                return completion

        async with serving() as (address, _), calling(address) as client:
            replayer = Replayer(Noticing(client), [TURNS], vocabulary=VOCABULARY, patience_s=30.0)
            running = asyncio.create_task(replayer.run_level(1, 1000.0, 0.01))
            await answered.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
        (load,) = replayer.loads
        assert load.calls and load.window_s < 1000.0

    asyncio.run(scenario())


def test_failures_are_counted_and_a_generator_that_only_fails_is_hopeless() -> None:
    async def scenario() -> None:
        failing = Scripted((500, b'{"error": {"message": "out of memory"}}'))
        async with listening(failing) as address, calling(address) as client:
            replayer = Replayer(client, made_up(2, 4, 2, 50, 0), vocabulary=50, patience_s=5.0)
            load = await replayer.run_level(2, 0.05, 0.05)
        assert load.calls == () and load.num_errors >= 2 and "out of memory" in load.error
        assert replayer.is_hopeless

    asyncio.run(scenario())
