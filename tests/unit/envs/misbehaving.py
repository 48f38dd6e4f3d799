"""Environments that each break the contract in one way, for the conformance checks to find."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import itertools
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from forebay.envs.protocol import Action, Message, Observation, Outcome, Task


class Good:
    """Keeps the contract; its answers are judged by their length."""

    async def reset(self, task: Task) -> Observation:
        self.number = task.payload["number"]
        self.turns = 0
        return Observation((Message("user", f"number {self.number}"),))

    async def step(self, action: Action) -> Outcome:
        self.turns += 1
        await asyncio.sleep(0.001)
        said = Observation((Message("tool", f"{len(action.text)} after {self.number}"),))
        return Outcome(observation=said, reward=len(action.text) % 3 / 2, terminated=self.turns == 3)

    async def close(self) -> None:
        pass

    @staticmethod
    def generate_tasks(num_tasks: int, seed: int) -> Iterator[dict[str, Any]]:
        for index in range(num_tasks):
            yield {"task_id": f"n{index}", "payload": {"number": index}}


class PaysAQuarter(Good):
    """One turn, a quarter for anything."""

    async def step(self, action: Action) -> Outcome:
        said = Observation((Message("tool", "on"),))
        return Outcome(observation=said, reward=0.25, terminated=True, metrics={"inner": 1.0})


class HangsInReset(Good):
    async def reset(self, task: Task) -> Observation:
        await asyncio.sleep(3600)
        return await super().reset(task)


class HangsInStep(Good):
    async def step(self, action: Action) -> Outcome:
        await asyncio.Event().wait()
        return await super().step(action)


class BlocksForever(Good):
    async def step(self, action: Action) -> Outcome:
        time.sleep(3600)
        return await super().step(action)


class HoldsTheInterpreter(Good):
    """Blocks without letting another thread run, as a C extension may."""

    async def step(self, action: Action) -> Outcome:
        ctypes.PyDLL(None).sleep(3600)
        return await super().step(action)


class BlocksForAWhile(Good):
    async def step(self, action: Action) -> Outcome:
        if action.text == "1":
            time.sleep(0.15)
        return await super().step(action)


class Exits(Good):
    async def step(self, action: Action) -> Outcome:
        os._exit(7)


class WantsToExit(Good):
    async def step(self, action: Action) -> Outcome:
        sys.exit("enough")


class PlainFunctions(Good):
    def reset(self, task: Task) -> Observation:  # type: ignore[override]
        return Observation((Message("user", "plain"),))


class Rewards(Good):
    """Gives the reward that it is made with."""

    def __init__(self, *, kind: str = "string") -> None:
        import numpy as np

        self.reward: Any = {
            "string": "1.0",
            "nan": float("nan"),
            "bool": True,
            "numpy": np.float32(0.5),
            "list": [1.0],
        }.get(kind)

    async def step(self, action: Action) -> Outcome:
        return Outcome(reward=self.reward, terminated=True)


class Speaks(Good):
    """Says what it is told to."""

    def __init__(self, *, text: str) -> None:
        self.text = text

    async def reset(self, task: Task) -> Observation:
        await super().reset(task)
        return Observation((Message("user", self.text),))


class WrongTypes(Good):
    """Returns what is no observation, or no outcome."""

    def __init__(self, *, step: str = "", reset: str = "") -> None:
        self.outcome: Any = {"tuple": ("text", 1.0), "silent": Outcome(reward=0.0)}.get(step)
        self.opening: Any = {
            "text": "hello",
            "dict": Observation(({"role": "user", "content": "x"},)),  # type: ignore[arg-type]
            "role": Observation((Message("human", "x"),)),  # type: ignore[arg-type]
            "number": Observation((Message("user", 5),)),  # type: ignore[arg-type]
        }.get(reset)

    async def reset(self, task: Task) -> Observation:
        usual = await super().reset(task)
        return self.opening or usual

    async def step(self, action: Action) -> Outcome:
        usual = await super().step(action)
        return self.outcome or usual


class Evaluates(Good):
    """Runs the model's text as code: what nobody should write."""

    async def step(self, action: Action) -> Outcome:
        said = await super().step(action)
        with contextlib.suppress(Exception):
            eval(action.text.removeprefix("\\pi*") if "**" not in action.text else "0")  # noqa: S307
        return said


class Computes(Good):
    """Never comes back from 9**9**9**9."""

    async def step(self, action: Action) -> Outcome:
        if "**" in action.text:
            await asyncio.sleep(3600)
        return await super().step(action)


class Picky(Good):
    async def step(self, action: Action) -> Outcome:
        if not action.text.strip() or "\0" in action.text:
            raise ValueError("what is that supposed to mean")
        return await super().step(action)


class Repeats(Good):
    async def step(self, action: Action) -> Outcome:
        outcome = await super().step(action)
        said = Observation((Message("tool", f"you said {action.text[:200]}"),))
        return Outcome(observation=said, reward=outcome.reward, terminated=outcome.terminated)


class Lucky(Good):
    async def step(self, action: Action) -> Outcome:
        return Outcome(reward=random.random(), terminated=True)


class Shares(Good):
    """Keeps the number of the episode in the class."""

    async def reset(self, task: Task) -> Observation:
        Shares.shared = task.payload["number"]
        return await super().reset(task)

    async def step(self, action: Action) -> Outcome:
        self.number = Shares.shared
        return await super().step(action)


class IgnoresCancellation(Good):
    async def step(self, action: Action) -> Outcome:
        try:
            return await super().step(action)
        except asyncio.CancelledError:
            await asyncio.sleep(3600)
            raise


class ClosesOnce(Good):
    async def reset(self, task: Task) -> Observation:
        self.file = tempfile.TemporaryFile()  # noqa: SIM115
        return await super().reset(task)

    async def close(self) -> None:
        self.file.close()
        del self.file


class Leaves(Good):
    """Leaves things of some kinds behind, one per episode."""

    kept: list[Any] = []  # noqa: RUF012

    def __init__(self, *, kinds: tuple[str, ...] = ()) -> None:
        self.kinds = kinds

    async def reset(self, task: Task) -> Observation:
        for kind in self.kinds:
            self.kept.append(await self.leave(kind))
        return await super().reset(task)

    async def leave(self, kind: str) -> Any:
        match kind:
            case "tasks":
                return asyncio.create_task(asyncio.sleep(3600), name="poller")
            case "threads":
                return threading.Thread(target=time.sleep, args=(3600,), name="reader", daemon=True).start()
            case "processes":
                return subprocess.Popen(["sleep", "3600"])
            case "files":
                return Path(__file__).open()
            case "sockets":
                return socket.create_server(("127.0.0.1", 0))
            case "directories":
                return tempfile.mkdtemp(prefix="episode-")


class Tasks(Good):
    """Its tasks are wrong in the way that it is asked for."""

    count = itertools.count()

    @staticmethod
    def generate_tasks(num_tasks: int, seed: int, *, fault: str = "") -> Iterator[dict[str, Any]]:
        for index in range(3 if fault == "few" else num_tasks):
            number: Any = {"object": object(), "tuple": (1, 2), "random": next(Tasks.count)}.get(fault, index)
            name = {"repeated": "same", "name": f"a task/{index}"}.get(fault, f"n{index}")
            entry = {"task_id": name, "payload": {"number": number}}
            yield {"id": name} if fault == "shape" else entry


class NoTasks(Good):
    generate_tasks = None  # type: ignore[assignment]


class WithoutStep:
    async def reset(self, task: Task) -> Observation: ...  # type: ignore[empty-body]

    async def close(self) -> None: ...


class BlockingGood:
    """Synchronous, and keeps the contract."""

    def reset(self, task: Task) -> Observation:
        self.turns = 0
        return Observation((Message("user", "go"),))

    def step(self, action: Action) -> Outcome:
        self.turns += 1
        return Outcome(
            observation=Observation((Message("tool", "on"),)), reward=0.5, terminated=self.turns == 2
        )

    def close(self) -> None:
        pass

    generate_tasks = Good.generate_tasks


class BlockingHangs(BlockingGood):
    def step(self, action: Action) -> Outcome:
        subprocess.Popen(["sleep", "3600"], start_new_session=True)
        time.sleep(3600)
        return super().step(action)


async def answer_length(task: Task, messages: tuple[Message, ...], outcome: Outcome) -> Any:
    """A reward function that gives text."""
    return str(len(messages))
