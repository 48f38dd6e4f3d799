"""What an actor and the worker processes of an environment tell one another: JSON, one object a line."""

from __future__ import annotations

from typing import Any

import msgspec

from forebay.envs.protocol import Action, Observation, Outcome, Task


class Blueprint(msgspec.Struct, frozen=True):
    """What the workers of an environment have in common.

    Args:
        entrypoint: The class, as package.module:Class.
        kwargs: Its keyword arguments.
        shared: Whether its imports happen once, before workers are forked, or in every worker.
    """

    entrypoint: str
    kwargs: dict[str, Any]
    shared: bool = True


class Started(msgspec.Struct, frozen=True):
    """What became of the imports.

    Args:
        refusal: Why the settings cannot work; empty if they may.
        failure: What the imports raised otherwise; empty if nothing.
    """

    refusal: str = ""
    failure: str = ""


class Check(msgspec.Struct, frozen=True, tag=True):
    """Make an instance, and drop it: are the keyword arguments right?"""


class Reset(msgspec.Struct, frozen=True, tag=True):
    """Pose a task to a new instance."""

    task: Task


class Step(msgspec.Struct, frozen=True, tag=True):
    """Answer an action."""

    action: Action


class Close(msgspec.Struct, frozen=True, tag=True):
    """End the episode."""


class Reply(msgspec.Struct, frozen=True):
    """What a request led to.

    Args:
        observation: Answer to `Reset`.
        outcome: Answer to `Step`.
        refusal: Why the settings cannot work; empty if they do.
        failure: What the environment raised; the worker ends after it.
    """

    observation: Observation | None = None
    outcome: Outcome | None = None
    refusal: str = ""
    failure: str = ""


Request = Check | Reset | Step | Close
