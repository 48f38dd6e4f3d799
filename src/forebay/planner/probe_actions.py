"""What an audit says to an environment in a model's place."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Literal, NamedTuple

from forebay.chat import Message
from forebay.envs.demonstrations import make_demonstrations
from forebay.envs.registry import load_class
from forebay.envs.settings import EnvironmentSettings
from forebay.errors import ConfigError
from forebay.trajectory import Task

PolicyName = Literal["auto", "demonstrations", "random"]
MAX_SCRIPTS: Final = 256
_LETTERS: Final = "etaoinshrdlu      "


class Actions(NamedTuple):
    """Who answers the environment.

    Args:
        about: What they say, for a reader.
        tasks: What is posed, in turn.
        of: The answers to the task at a place in `tasks`, without end.
    """

    about: str
    tasks: tuple[Task, ...]
    of: Callable[[int], Iterator[str]]


def choose_actions(
    settings: EnvironmentSettings,
    tasks: Sequence[Task],
    *,
    policy: PolicyName = "auto",
    action: str | None = None,
    length: int = 64,
    seed: int = 0,
) -> Actions:
    """Decide what is said to an environment.

    Args:
        settings: The environment.
        tasks: What it can pose, at least one.
        policy: `demonstrations` plays those that its class makes, `random` says random text, `auto` takes
            the first that there is.
        action: What is always said instead; None leaves it to `policy`.
        length: Characters of a random text.
        seed: Seed of the texts.

    Raises:
        ConfigError: Demonstrations are wanted of a class that makes none, or hold no answers.
    """
    if action is not None:
        return Actions("the text given", tuple(tasks), lambda _: itertools.repeat(action))
    can = hasattr(load_class(settings.entrypoint), "demonstrate")
    if policy == "demonstrations" or (policy == "auto" and can):
        return _demonstrated(settings, tuple(tasks[:MAX_SCRIPTS]), seed)
    rng = random.Random(seed)
    return Actions(f"random text of {length} characters", tuple(tasks), lambda _: _babble(rng, length))


def _demonstrated(settings: EnvironmentSettings, tasks: tuple[Task, ...], seed: int) -> Actions:
    conversations = make_demonstrations(settings, tasks, noise=0.0, seed=seed)
    scripts = [_said(conversation) for conversation in itertools.islice(conversations, len(tasks))]
    if not scripts or not all(scripts):
        raise ConfigError(
            f"a demonstration of {settings.entrypoint} holds no answer",
            remedy="Use --policy random, or --action with what an agent would say.",
        )

    def of(place: int) -> Iterator[str]:
        script = scripts[place]
        return itertools.chain(script, itertools.repeat(script[-1]))

    return Actions("its own demonstrations", tasks[: len(scripts)], of)


def _said(conversation: Sequence[Message]) -> list[str]:
    return [message.content for message in conversation if message.role == "assistant"]


def _babble(rng: random.Random, length: int) -> Iterator[str]:
    while True:
        yield "".join(rng.choices(_LETTERS, k=length))
