"""Reward functions as users would write them, good and bad."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from pathlib import Path
from typing import Any

from forebay.envs.protocol import Message, Outcome, Task


def words(task: Task, messages: tuple[Message, ...], outcome: Outcome) -> dict[str, float]:
    """One point for each word that the model said, and what the environment thought of it."""
    said = [message.content for message in messages if message.role == "assistant"]
    return {"reward": len(" ".join(said).split()), "turns": len(said), "own": outcome.reward or 0.0}


async def words_soon(task: Task, messages: tuple[Message, ...], outcome: Outcome) -> dict[str, float]:
    return words(task, messages, outcome)


async def patient(task: Task, messages: tuple[Message, ...], outcome: Outcome) -> bool:
    await asyncio.sleep(0)
    return messages[-1].content == "on"


def unscored(task: Task, messages: tuple[Message, ...], outcome: Outcome) -> None:
    return None


def exact(task: Task, messages: tuple[Message, ...], outcome: Outcome) -> bool:
    """Compare what was said last with the exact answer to `1+2`, as text."""
    return [message.content for message in messages if message.role == "assistant"][-1] == "#3"


def faulty(task: Task, messages: tuple[Message, ...], outcome: Outcome) -> Any:
    """Do what the model says."""
    match messages[1].content.split()[0]:
        case "text":
            return "good"
        case "nan":
            return float("nan")
        case "keys":
            return {"score": 1.0}
        case "raise":
            raise LookupError("no such answer")
        case "exit":
            os._exit(9)
        case "hang":
            child = subprocess.Popen(["sleep", "3600"], start_new_session=True)
            Path(task.payload["pids"]).write_text(f"{os.getpid()} {child.pid}")
            time.sleep(3600)
    return 1.0


async def faulty_coroutine(task: Task, messages: tuple[Message, ...], outcome: Outcome) -> Any:
    match messages[1].content.split()[0]:
        case "exit":
            raise SystemExit(9)
        case "hang":
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                await asyncio.sleep(3600)
        case "raise":
            raise TimeoutError
    return 1.0


def two_arguments(task: Task, answer: str) -> float:
    return 1.0


NOT_A_FUNCTION = 5
