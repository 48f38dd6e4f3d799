"""The seam to the world: what an environment is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from forebay.chat import Message
from forebay.trajectory import Task

__all__ = ["Action", "Environment", "EnvironmentFactory", "Message", "Observation", "Outcome", "Task"]


class Observation(msgspec.Struct, frozen=True):
    """What the environment says; only what is new since the last observation."""

    messages: tuple[Message, ...]


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """What the model said.

    Args:
        text: The sampled tokens as text, without the end-of-turn token.
        finish: `stop` if the model ended its turn, `length` or `context` if it was cut.
    """

    text: str
    finish: str = "stop"


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The environment's answer to an action.

    Args:
        observation: New messages; may be empty when the episode is over.
        reward: Reward of this step; None if there is none yet.
        terminated: The episode reached its own end.
        truncated: The environment cut it (a turn limit).
        metrics: Numbers to report; finite.
    """

    observation: Observation = Observation(())
    reward: float | None = None
    terminated: bool = False
    truncated: bool = False
    metrics: dict[str, float] = {}


class Environment(Protocol):
    """One episode at a time; a fresh instance may be made per episode.

    Waits for: its own tools. Every call may be cancelled at a deadline; `close` is called in any case.
    """

    async def reset(self, task: Task) -> Observation:
        """Pose the task; return the first messages."""
        ...

    async def step(self, action: Action) -> Outcome:
        """Answer an action."""
        ...

    async def close(self) -> None:
        """Free what the episode holds."""
        ...


EnvironmentFactory = Callable[[int], Environment]
"""Makes the environment of one episode from a seed that no other episode has."""
