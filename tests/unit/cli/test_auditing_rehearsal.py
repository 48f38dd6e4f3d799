"""Environments of a rehearsal are opened and closed within their time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from forebay.cli.auditing_rehearsal import opened
from forebay.clock import SystemClock
from forebay.envs.registry import EnvironmentKind, load_environment
from forebay.envs.settings import EnvironmentSettings
from forebay.errors import ConfigError, EnvironmentFailure

Call = Callable[[], Awaitable[None]]


async def returns() -> None:
    pass


async def hangs() -> None:
    await asyncio.Event().wait()


async def breaks() -> None:
    raise RuntimeError("no tool server")


async def refuses() -> None:
    raise ConfigError("no such worker")


def kind(log: list[str], name: str, opening: Call, closing: Call) -> EnvironmentKind:
    async def close() -> None:
        log.append(name)
        await closing()

    made = load_environment(EnvironmentSettings(entrypoint="calculator"), SystemClock())
    return made._replace(name=name, open=opening, close=close)


@pytest.mark.parametrize("closing", [hangs, breaks])
def test_every_environment_is_closed_though_the_first_cannot_be(closing: Call) -> None:
    log: list[str] = []

    async def rehearsed() -> None:
        kinds = {
            "a": kind(log, "a", returns, closing),
            "b": kind(log, "b", returns, returns),
        }
        async with opened(kinds, close_s=0.05):
            log.append("played")

    asyncio.run(rehearsed())
    assert log == ["played", "a", "b"]


@pytest.mark.parametrize(
    ("opening", "error", "message"),
    [
        (hangs, EnvironmentFailure, r"environment a does not open \(limit 0.05 s\)"),
        (breaks, EnvironmentFailure, "environment a does not open: RuntimeError: no tool server"),
        (refuses, ConfigError, "no such worker"),
    ],
)
def test_one_that_does_not_open_is_named_and_all_are_closed(
    opening: Call, error: type[Exception], message: str
) -> None:
    log: list[str] = []

    async def rehearsed() -> None:
        kinds = {"a": kind(log, "a", opening, returns), "b": kind(log, "b", returns, returns)}
        async with opened(kinds, open_s=0.05):
            log.append("played")

    with pytest.raises(error, match=message):
        asyncio.run(rehearsed())
    assert log == ["a", "b"]
