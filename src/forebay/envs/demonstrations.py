"""Demonstrations for a supervised warm start: from a file, or from an environment that can make them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from forebay.chat import Message
from forebay.envs.registry import load_class
from forebay.envs.settings import EnvironmentSettings
from forebay.envs.tasks import read_lines
from forebay.errors import ConfigError
from forebay.trajectory import Task


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    messages: tuple[Message, ...]


_decoder = msgspec.json.Decoder(_Line)


def read_demonstrations(path: Path) -> Iterator[tuple[Message, ...]]:
    """Yield the conversations of a JSONL file: one `{"messages": [{"role": ..., "content": ...}]}` a line.

    Raises:
        ConfigError: The file is missing, or a line is malformed; the message names the line.
    """
    for number, line in read_lines(path):
        try:
            yield _decoder.decode(line).messages
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ConfigError(
                f"{path}:{number} is not a conversation: {error}",
                remedy='A line looks like {"messages": [{"role": "user", "content": "..."}, ...]}.',
            ) from error


def make_demonstrations(
    settings: EnvironmentSettings, tasks: tuple[Task, ...], *, noise: float, seed: int
) -> Iterator[tuple[Message, ...]]:
    """Yield a conversation per task, made by the environment.

    The environment's class needs a static `demonstrate(tasks, *, noise, seed, **kwargs)` that yields
    tuples of messages; it gets the environment's `kwargs` too.

    Args:
        settings: The environment.
        tasks: What is demonstrated.
        noise: Share of model turns with a mistake.
        seed: Same seed: same mistakes.

    Raises:
        ConfigError: The environment has no `demonstrate`.
    """
    demonstrate: Any = getattr(load_class(settings.entrypoint), "demonstrate", None)
    if demonstrate is None:
        raise ConfigError(
            f"{settings.entrypoint} cannot make demonstrations",
            remedy="Set supervised.demonstrations to a JSONL file, or give the class a static demonstrate.",
        )
    yield from demonstrate(tasks, noise=noise, seed=seed, **settings.kwargs)
