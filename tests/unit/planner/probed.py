"""Environments whose speed and failures are known."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from forebay.envs.protocol import Action, Message, Observation, Outcome, Task

SAID = Observation((Message("user", "twelve chars"),))


class Steady:
    """Three steps of a second each; resets take none."""

    def __init__(self, *, step_s: float = 1.0, directory: str = "") -> None:
        self.step_s, self.directory = step_s, directory

    async def reset(self, task: Task) -> Observation:
        self.task, self.turns = task, 0
        return SAID

    async def step(self, action: Action) -> Outcome:
        await self.work()
        self.turns += 1
        if self.turns == 3:
            return Outcome(reward=1.0, terminated=True)
        return Outcome(observation=SAID)

    async def work(self) -> None:
        await asyncio.sleep(self.step_s)

    async def close(self) -> None:
        if self.directory:
            (Path(self.directory) / "closed").touch()

    @staticmethod
    def generate_tasks(num_tasks: int, seed: int) -> Iterator[dict[str, Any]]:
        for i in range(num_tasks):
            yield {"task_id": f"t{i}", "payload": {"number": i}}


class Service:
    """What several environments share: so many calls at once."""

    def __init__(self, limit: int) -> None:
        self.limit, self.running = limit, 0
        self.turn = asyncio.Semaphore(limit)


class Queueing(Steady):
    """Steps wait for one another."""

    def __init__(self, service: Service) -> None:
        super().__init__()
        self.service = service

    async def work(self) -> None:
        async with self.service.turn:
            await super().work()


class RateLimited(Steady):
    """Steps beyond the limit are refused."""

    def __init__(self, service: Service) -> None:
        super().__init__()
        self.service = service

    async def work(self) -> None:
        if self.service.running >= self.service.limit:
            raise RuntimeError("429: too many requests")
        self.service.running += 1
        try:
            await super().work()
        finally:
            self.service.running -= 1


class Broken(Steady):
    """Never poses anything."""

    async def reset(self, task: Task) -> Observation:
        raise OSError("no tool server at port 7")


class HangingNow(Steady):
    """Every fourth task hangs, and ignores that it is cancelled the first time."""

    async def work(self) -> None:
        if self.task.payload["number"] % 4 == 0:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
        await super().work()


class Stuck(Steady):
    """Never gives the event loop back."""

    async def work(self) -> None:
        time.sleep(600.0)


class Speaking(Steady):
    """Says how it is to be answered."""

    heard: tuple[str, ...] = ()

    async def step(self, action: Action) -> Outcome:
        self.heard = (*self.heard, action.text)
        return await super().step(action)

    @staticmethod
    def demonstrate(tasks: tuple[Task, ...], *, noise: float, seed: int) -> Iterator[tuple[Message, ...]]:
        for task in tasks:
            number = task.payload["number"]
            said = (Message("assistant", f"{number}.{turn}") for turn in range(2))
            yield (*itertools.islice(said, 1), Message("user", "go on"), *said)
