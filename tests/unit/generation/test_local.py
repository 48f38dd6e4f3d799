from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from forebay.clock import SystemClock
from forebay.errors import GenerationError
from forebay.generation.local import LocalGenerator
from forebay.generation.protocol import GeneratorInfo, OverloadedError
from forebay.generation.scheduler import Scheduler
from forebay.generation.settings import GeneratorSettings
from tests.unit.generation.fakes import FakeExecutor, Gated, expected_tokens, request, version

SETTINGS = GeneratorSettings(slots=2, context=1 << 18, prefill_chunks=(8,))
INFO = GeneratorInfo(version=version(0), context=1 << 18, vocabulary=50, slots=2)


def generator_over(executor: FakeExecutor, **fields: Any) -> LocalGenerator:
    def build() -> Scheduler:
        return Scheduler(executor, SETTINGS, version(0), SystemClock())

    return LocalGenerator(build, INFO, **fields)


@contextlib.asynccontextmanager
async def running(executor: FakeExecutor, **fields: Any) -> AsyncIterator[LocalGenerator]:
    generator = generator_over(executor, **fields)
    generator.start()
    while generator.state == "starting":
        await asyncio.sleep(0.001)
    try:
        yield generator
    finally:
        await generator.close()


def executor() -> FakeExecutor:
    return FakeExecutor(2, 4096)


def test_requests_from_a_loop_are_served_by_the_thread() -> None:
    async def scenario() -> None:
        async with running(executor()) as generator:
            completions = await asyncio.gather(
                *(generator.generate(request(f"r{number}", [number, 1])) for number in range(10))
            )
        for number, completion in enumerate(completions):
            assert completion.tokens.tolist() == expected_tokens([number, 1], 4)
        assert generator.state == "stopped"

    asyncio.run(scenario())


def test_not_ready_is_said_and_not_waited_for() -> None:
    async def scenario() -> None:
        generator = generator_over(executor())
        with pytest.raises(OverloadedError, match="starting"):
            await generator.generate(request())
        assert generator.stats().state == "starting"
        await generator.close()

    asyncio.run(scenario())


def test_cancelling_the_caller_ends_its_request() -> None:
    async def scenario() -> None:
        gated = Gated()
        async with running(gated) as generator:
            task = asyncio.create_task(generator.generate(request("a", [1], max_tokens=200_000)))
            while not gated.entered.is_set():
                await asyncio.sleep(0.001)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            gated.gate.set()
            while generator.stats().requests.aborted == 0:
                await asyncio.sleep(0.001)
            assert generator.stats().running == 0

    asyncio.run(scenario())


def test_a_request_waits_from_when_it_comes_though_a_block_is_being_decoded() -> None:
    async def scenario() -> None:
        clock, gated = SystemClock(), Gated()
        async with running(gated) as generator:
            first = asyncio.create_task(generator.generate(request("a", [1, 2])))
            while not gated.entered.is_set():
                await asyncio.sleep(0.001)
            second = asyncio.create_task(generator.generate(request("b", [3, 4])))
            await asyncio.sleep(0)  # it is there now, and no slot is taken before the gate opens
            came_s = clock.monotonic_s()
            await asyncio.sleep(0.02)
            waited_s = clock.monotonic_s() - came_s
            gated.gate.set()
            assert (await second).queue_s >= waited_s
            assert (await first).finish == "length"

    asyncio.run(scenario())


def test_weights_arrive_between_blocks() -> None:
    async def scenario() -> None:
        gated = Gated()
        async with running(gated) as generator:
            task = asyncio.create_task(generator.generate(request("a", [1, 2])))
            while not gated.entered.is_set():
                await asyncio.sleep(0.001)
            generator.load(version(1), "w1")
            gated.gate.set()
            completion = await task
            assert [(span.num_tokens, span.version.version) for span in completion.version_spans] == [
                (2, 0),
                (2, 1),
            ]
            assert (await generator.info()).version == version(1)

    asyncio.run(scenario())


def test_weights_that_arrive_while_it_loads_are_not_lost() -> None:
    async def scenario() -> None:
        gate = threading.Event()

        def build() -> Scheduler:
            assert gate.wait(60)
            return Scheduler(executor(), SETTINGS, version(0), SystemClock())

        generator = LocalGenerator(build, INFO)
        generator.start()
        generator.load(version(1), "w1")
        gate.set()
        while generator.state == "starting":
            await asyncio.sleep(0.001)
        completion = await generator.generate(request("a", [1, 2], min_version=version(1)))
        assert completion.tokens.tolist() == expected_tokens([1, 2], 4, "w1")
        await generator.close()

    asyncio.run(scenario())


def test_deadline_of_a_held_request_needs_no_other_event() -> None:
    async def scenario() -> None:
        async with running(executor()) as generator:
            completion = await generator.generate(request(min_version=version(9), deadline_s=0.05))
            assert completion.finish == "deadline"

    asyncio.run(scenario())


def test_failure_of_the_executor_reaches_everybody_and_is_kept() -> None:
    async def scenario() -> None:
        failing, told = executor(), threading.Event()
        failing.failure = RuntimeError("the device is on fire")
        async with running(failing, on_failure=told.set) as generator:
            results = await asyncio.gather(
                *(generator.generate(request(f"r{number}")) for number in range(4)), return_exceptions=True
            )
            assert all(isinstance(result, GenerationError) for result in results)
            assert "RuntimeError: the device is on fire" in str(results[0])
            assert told.wait(60)
            with pytest.raises(GenerationError, match="on fire"):
                await generator.generate(request("late"))
        assert generator.failure is failing.failure
        assert generator.state == "failed"

    asyncio.run(scenario())


def test_failure_while_loading_is_kept() -> None:
    def build() -> Scheduler:
        raise GenerationError("no such model")

    async def scenario() -> None:
        generator = LocalGenerator(build, INFO)
        generator.start()
        while generator.state == "starting":
            await asyncio.sleep(0.001)
        assert isinstance(generator.failure, GenerationError)
        await generator.close()

    asyncio.run(scenario())


def test_stopping_ends_what_runs() -> None:
    async def scenario() -> None:
        gated = Gated()
        async with running(gated) as generator:
            task = asyncio.create_task(generator.generate(request("a", [1], max_tokens=200_000)))
            while not gated.entered.is_set():
                await asyncio.sleep(0.001)
            assert generator.stalled_s() >= 0.0
            closing = asyncio.create_task(generator.close())
            gated.gate.set()
            with pytest.raises(GenerationError, match="stopped"):
                await task
            await closing

    asyncio.run(scenario())
