from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable

import pytest

from forebay.envs.foreign import Attempt, attempt


def tried(call: Callable[[], Awaitable[int]], timeout_s: float = 5.0) -> Attempt[int]:
    return asyncio.run(attempt(call, timeout_s=timeout_s, name="call"))


def test_what_returns_has_a_value() -> None:
    async def call() -> int:
        return 7

    result = tried(call)
    assert (result.timed_out, result.error, result.value) == (False, None, 7)


def test_what_raises_is_kept_even_when_no_awaitable_comes_of_it() -> None:
    def call() -> Awaitable[int]:
        raise LookupError("gone")

    assert tried(call).reason == "LookupError: gone"


@pytest.mark.parametrize("error", [SystemExit("enough"), KeyboardInterrupt("enough")])
def test_what_wants_to_end_the_process_does_not(error: BaseException) -> None:
    async def call() -> int:
        raise error

    assert tried(call).reason == f"{type(error).__name__}: enough"


def test_what_cancels_itself_is_an_error_and_what_hangs_a_timeout() -> None:
    async def cancels() -> int:
        raise asyncio.CancelledError

    assert isinstance(tried(cancels).error, asyncio.CancelledError)

    async def hangs() -> int:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            await asyncio.sleep(0.01)
        return sys.maxsize

    result = tried(hangs, timeout_s=0.01)
    assert (result.timed_out, result.error) == (True, None)


def test_the_cancellation_of_the_caller_reaches_the_call() -> None:
    async def main() -> list[str]:
        said: list[str] = []

        async def call() -> int:
            try:
                await asyncio.sleep(3600)
            finally:
                said.append("cancelled")
            return 0

        task = asyncio.create_task(attempt(call, timeout_s=3600, name="call"))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0)
        return said

    assert asyncio.run(main()) == ["cancelled"]
