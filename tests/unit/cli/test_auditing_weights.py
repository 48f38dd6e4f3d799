"""Publications whose first token is waited for."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import Any

import pytest

from forebay.cli.auditing_weights import time_publication
from forebay.errors import GenerationError, PeerFailedError
from forebay.generation.protocol import Completion, GenerationRequest
from tests.unit.generation.fakes import request, version


class Waiting:
    """A generator that answers once a version is published, or fails when it is not any more waited for."""

    def __init__(self, completion: Any = None) -> None:
        self.published, self.completion = asyncio.Event(), completion
        self.asked: list[GenerationRequest] = []

    async def generate(self, wanted: GenerationRequest) -> Completion:
        self.asked.append(wanted)
        try:
            await self.published.wait()
        except asyncio.CancelledError:
            raise GenerationError("the connection is closed") from None
        return self.completion


class Finished:
    """An answer."""

    def __init__(self, finish: str) -> None:
        self.finish = finish


def test_a_failed_publication_leaves_no_call_behind() -> None:
    complaints: list[dict[str, Any]] = []

    async def failing() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        generator: Any = Waiting()

        def publish() -> Path:
            raise OSError(28, "No space left on device")

        with pytest.raises(OSError, match="No space left"):
            await time_publication(generator, publish, request(), version(3))
        assert asyncio.all_tasks() == {asyncio.current_task()}
        gc.collect()

    asyncio.run(failing())
    assert complaints == []


def test_the_first_token_is_asked_of_the_new_version_and_is_later_than_the_publication() -> None:
    async def published(finish: str) -> tuple[float, float]:
        generator: Any = Waiting(Finished(finish))
        loop = asyncio.get_running_loop()

        def publish() -> Path:
            loop.call_soon_threadsafe(generator.published.set)
            return Path()

        found = await time_publication(generator, publish, request(), version(3))
        (asked,) = generator.asked
        assert (asked.min_version, asked.max_tokens) == (version(3), 1)
        return found

    visible_s, first_token_s = asyncio.run(published("stop"))
    assert 0.0 <= visible_s <= first_token_s
    with pytest.raises(PeerFailedError, match="did not take up version 3"):
        asyncio.run(published("deadline"))
