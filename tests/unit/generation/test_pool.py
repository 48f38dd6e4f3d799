from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from forebay.clock import ManualClock
from forebay.errors import ConfigError, RecordError
from forebay.generation.client import HttpGenerator
from forebay.generation.pool import GeneratorPool, connect
from forebay.generation.protocol import (
    BadRequestError,
    Completion,
    GenerationRequest,
    GeneratorInfo,
    UnreachableError,
)
from tests.unit.generation.fakes import request, version


class Member:
    """A generator that answers with its own name as the token, or fails."""

    def __init__(self, name: int) -> None:
        self.name = name
        self.served: list[str] = []
        self.released: list[str] = []
        self.aborted: list[str] = []
        self.failure: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    async def generate(self, asked: GenerationRequest) -> Completion:
        self.served.append(asked.request_id)
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        empty = np.empty(0, np.float32)
        return Completion(
            tokens=np.array([self.name], np.int32), logprobs=empty, version_spans=(), finish="stop"
        )

    async def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)

    async def release(self, episode_id: str) -> None:
        self.released.append(episode_id)

    async def info(self) -> GeneratorInfo:
        if self.failure is not None:
            raise self.failure
        return GeneratorInfo(version=version(5 - self.name), context=64 + self.name, vocabulary=9, slots=2)

    async def close(self) -> None:
        self.failure = UnreachableError("closed")


def make(count: int = 2, **fields: Any) -> tuple[GeneratorPool, list[Member], ManualClock]:
    members = [Member(name) for name in range(count)]
    clock = ManualClock()
    return GeneratorPool(members, clock=clock, **fields), members, clock


async def ask(pool: GeneratorPool, name: str, episode: str = "", *, keep: bool = True) -> int:
    completion = await pool.generate(request(name, episode_id=episode, keep=keep))
    return int(completion.tokens[0])


def test_an_episode_stays_where_its_cache_is() -> None:
    async def scenario() -> None:
        pool, members, _ = make()
        members[0].gate.clear()
        first = asyncio.create_task(ask(pool, "a.0", "e0"))
        await asyncio.sleep(0)
        assert await ask(pool, "b.0", "e1") == 1
        members[0].gate.set()
        assert await first == 0
        # Both are idle now, so by load alone every request would go to member 0.
        assert [await ask(pool, f"b.{turn}", "e1") for turn in (1, 2)] == [1, 1]
        assert await ask(pool, "b.3", "e1", keep=False) == 1
        assert await ask(pool, "c", "e1") == 0

    asyncio.run(scenario())


def test_new_episodes_go_to_the_least_loaded() -> None:
    async def scenario() -> None:
        pool, members, _ = make(3)
        for member in members:
            member.gate.clear()
        tasks = [asyncio.create_task(ask(pool, f"r{number}", f"e{number}")) for number in range(7)]
        await asyncio.sleep(0)
        assert [len(member.served) for member in members] == [3, 2, 2]
        for member in members:
            member.gate.set()
        await asyncio.gather(*tasks)

    asyncio.run(scenario())


def test_a_dead_member_fails_over_and_is_avoided_for_a_while() -> None:
    async def scenario() -> None:
        pool, members, clock = make(avoid_s=5.0)
        assert await ask(pool, "a", "e") == 0
        members[0].failure = UnreachableError("gone")
        assert await ask(pool, "b", "e") == 1
        assert pool.failovers == 1
        assert await ask(pool, "c", "e") == 1
        assert await ask(pool, "d", "other") == 1
        members[0].failure = None
        clock.advance(6.0)
        assert await ask(pool, "f", "another") == 0

    asyncio.run(scenario())


def test_all_members_dead_is_an_error() -> None:
    async def scenario() -> None:
        pool, members, _ = make()
        for member in members:
            member.failure = UnreachableError(f"{member.name} is gone")
        with pytest.raises(UnreachableError, match="is gone"):
            await ask(pool, "a")
        assert [member.served for member in members] == [["a"], ["a"]]
        with pytest.raises(UnreachableError):
            await pool.info()

    asyncio.run(scenario())


@pytest.mark.parametrize("failure", [BadRequestError("no"), RecordError("logprob_mismatch", "no")])
def test_a_refusal_is_final(failure: Exception) -> None:
    async def scenario() -> None:
        pool, members, _ = make()
        members[0].failure = failure
        with pytest.raises(type(failure)):
            await ask(pool, "a")
        assert members[1].served == []

    asyncio.run(scenario())


def test_abort_and_release_go_where_the_request_and_the_cache_are() -> None:
    async def scenario() -> None:
        pool, members, _ = make()
        members[0].gate.clear()
        task = asyncio.create_task(ask(pool, "a", "e"))
        await asyncio.sleep(0)
        await pool.abort("a")
        await pool.abort("unknown")
        members[0].gate.set()
        await task
        await pool.release("e")
        await pool.release("e")
        assert (members[0].aborted, members[0].released) == (["a"], ["e"])
        assert (members[1].aborted, members[1].released) == ([], [])

    asyncio.run(scenario())


def test_info_is_the_oldest_version_and_the_tightest_limits() -> None:
    async def scenario() -> None:
        pool, members, _ = make()
        info = await pool.info()
        assert (info.version, info.context, info.slots) == (version(4), 64, 4)
        members[0].failure = UnreachableError("gone")
        assert (await pool.info()).context == 65

    asyncio.run(scenario())


def test_connect_makes_what_the_addresses_need() -> None:
    assert isinstance(connect(["http://127.0.0.1:1"]), HttpGenerator)
    assert isinstance(connect(["http://127.0.0.1:1", "http://127.0.0.1:2"]), GeneratorPool)
    with pytest.raises(ConfigError, match="no generator address"):
        connect([])
