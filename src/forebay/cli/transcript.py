"""What happens in one episode, as it happens: watched at the environment and the generator, shown or kept."""

from __future__ import annotations

import math
import time
import unicodedata
from collections.abc import Callable
from typing import Any, Final

import msgspec
from rich.console import Console
from rich.text import Text

from forebay.chat import Chat, Message
from forebay.envs.outcomes import checked_observation, checked_outcome
from forebay.envs.protocol import Action, Environment, Observation, Outcome, Task
from forebay.generation.protocol import Completion, GenerationRequest, Generator, GeneratorInfo
from forebay.trajectory import Trajectory

_MAX_LISTED: Final = 48
_TINTS: Final = ((0.9, "green"), (0.5, "yellow"), (0.1, "dark_orange"), (0.0, "bold red"))
_ROLE_STYLES: Final = {"system": "dim", "user": "cyan", "tool": "magenta", "assistant": "bold"}


class Posed(msgspec.Struct, frozen=True, tag=True):
    """The environment has posed the task."""

    messages: tuple[Message, ...]
    environment_s: float


class Said(msgspec.Struct, frozen=True, tag=True):
    """The model, or a person, has spoken.

    Args:
        text: Without the stop token.
        tokens: Each token as text.
        token_ids: Their ids.
        logprobs: Nats, of the distribution that was sampled.
        finish: Why the generator stopped.
        wait_s: From the request to the first decode.
        generate_s: From there to the end.
    """

    text: str
    tokens: tuple[str, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: str
    wait_s: float
    generate_s: float


class Answered(msgspec.Struct, frozen=True, tag=True):
    """The environment has answered."""

    messages: tuple[Message, ...]
    reward: float | None
    terminated: bool
    truncated: bool
    metrics: dict[str, float]
    environment_s: float


Event = Posed | Said | Answered
Listener = Callable[[Event], None]


class WatchedEnvironment:
    """Another environment, whose answers a listener hears of.

    Args:
        environment: The one that answers.
        tell: The listener.
    """

    def __init__(self, environment: Environment, tell: Listener) -> None:
        self._environment = environment
        self._tell = tell

    async def reset(self, task: Task) -> Observation:
        """Pose the task."""
        started_s = time.monotonic()
        observation = checked_observation(await self._environment.reset(task))
        self._tell(Posed(observation.messages, time.monotonic() - started_s))
        return observation

    async def step(self, action: Action) -> Outcome:
        """Answer."""
        started_s = time.monotonic()
        outcome = checked_outcome(await self._environment.step(action))
        self._tell(
            Answered(
                outcome.observation.messages,
                outcome.reward,
                outcome.terminated,
                outcome.truncated,
                outcome.metrics,
                time.monotonic() - started_s,
            )
        )
        return outcome

    async def close(self) -> None:
        """Close it."""
        await self._environment.close()


class WatchedGenerator:
    """Another generator, whose completions a listener hears of.

    Args:
        generator: The one that speaks.
        chat: Turns tokens into text.
        tell: The listener.
    """

    def __init__(self, generator: Generator, chat: Chat, tell: Listener) -> None:
        self._generator = generator
        self._chat = chat
        self._tell = tell

    async def generate(self, request: GenerationRequest) -> Completion:
        """Continue a prompt."""
        completion = await self._generator.generate(request)
        self._tell(
            Said(
                text=self._chat.spoken(completion.tokens),
                tokens=tuple(
                    self._chat.decode(completion.tokens[i : i + 1]) for i in range(len(completion.tokens))
                ),
                token_ids=tuple(completion.tokens.tolist()),
                logprobs=tuple(completion.logprobs.tolist()),
                finish=completion.finish,
                wait_s=completion.wait_s,
                generate_s=completion.generate_s,
            )
        )
        return completion

    async def abort(self, request_id: str) -> None:
        """End a running request."""
        await self._generator.abort(request_id)

    async def release(self, episode_id: str) -> None:
        """Forget an episode."""
        await self._generator.release(episode_id)

    async def info(self) -> GeneratorInfo:
        """Return version and limits."""
        return await self._generator.info()

    async def close(self) -> None:
        """Leave the other generator to whoever made it."""


class Screen:
    """Shows an episode in a terminal, each token in a color that says how likely it was.

    Args:
        console: Where.
        person: Whether a person answers: they are certain of every token.
        typed: Whether their answers are typed there, and so need not be repeated.
    """

    def __init__(self, console: Console, *, person: bool, typed: bool) -> None:
        self._console = console
        self._person = person
        self._typed = typed

    def show(self, event: Event) -> None:
        """Show what has happened."""
        match event:
            case Posed():
                self._messages(event.messages)
            case Said():
                self._said(event)
            case Answered():
                self._messages(event.messages)
                reward = "no reward" if event.reward is None else f"reward {event.reward:g}"
                self._note(f"{reward}; environment {_time(event.environment_s)}")

    def prompt(self) -> None:
        """Ask the person for an answer."""
        self._console.print(Text("you> ", "bold"), end="")

    def _messages(self, messages: tuple[Message, ...]) -> None:
        for message in messages:
            line = Text().append(f"{message.role}: ", _ROLE_STYLES.get(message.role, ""))
            self._console.print(line.append(visible(message.content)))

    def _said(self, said: Said) -> None:
        cut = "" if said.finish == "stop" else f", cut: {said.finish}"
        if self._person:
            if not self._typed:
                self._console.print(Text(visible(said.text)))
            if cut:
                self._note(f"{len(said.tokens)} tokens{cut}")
            return
        line = Text().append("assistant: ", _ROLE_STYLES["assistant"])
        pairs = list(zip(map(visible, said.tokens), said.logprobs, strict=True))
        for token, logprob in pairs:
            line.append(token, tint(logprob))
        self._console.print(line)
        listed = Text("  ")
        for token, logprob in pairs[:_MAX_LISTED]:
            listed.append(f"{token} ", tint(logprob)).append(f"{logprob:.2f}  ", "dim")
        self._console.print(listed.append("..." if len(pairs) > _MAX_LISTED else ""))
        mean = sum(said.logprobs) / max(len(said.logprobs), 1)
        self._note(
            f"{len(pairs)} tokens, mean logprob {mean:.2f}{cut}; waited {_time(said.wait_s)}, "
            f"generated {_time(said.generate_s)}"
        )

    def _note(self, text: str) -> None:
        self._console.print(Text(f"  {text}", "dim"))


def visible(text: str) -> str:
    """Return text that cannot steer a terminal: control and formatting characters are spelled out.

    Example:
        >>> visible(f"a{chr(27)}[31mb") == "a" + chr(92) + "x1b[31mb"
        True
    """
    return "".join(c if c == "\n" or unicodedata.category(c)[0] != "C" else _escaped(c) for c in text)


def tint(logprob: float) -> str:
    """Return the style of a token by its probability.

    Example:
        >>> tint(0.0), tint(-5.0)
        ('green', 'bold red')
    """
    probability = math.exp(min(logprob, 0.0))
    return next(style for least, style in _TINTS if probability >= least)


def legend() -> str:
    """Say what the tints mean."""
    return "tokens by probability: green 0.9 or more, yellow 0.5, orange 0.1, red less; beside them, logprobs"


def summary(trajectory: Trajectory) -> str:
    """Return how an episode ended, as one line."""
    reward = "no reward" if trajectory.reward is None else f"reward {trajectory.reward:g}"
    metrics = ", ".join(
        f"{name} {value:g}" for name, value in trajectory.metrics.items() if name != "branches"
    )
    return (
        f"{reward}; {trajectory.finish} after {len(trajectory.steps)} turns, "
        f"{trajectory.num_action_tokens} tokens, {trajectory.finished_s - trajectory.started_s:.2f} s"
        + (f"; {metrics}" if metrics else "")
    )


def as_json(task: Task, player: str, events: list[Event], trajectory: Trajectory | None) -> dict[str, Any]:
    """Return an episode for scripts.

    Args:
        task: What was posed.
        player: Who answered.
        events: What happened, in order.
        trajectory: How it ended; None if the player left.
    """
    return {
        "environment": task.environment,
        "task_id": task.task_id,
        "payload": task.payload,
        "player": player,
        "reward": trajectory.reward if trajectory else None,
        "finish": trajectory.finish if trajectory else "left",
        "metrics": trajectory.metrics if trajectory else {},
        "events": msgspec.to_builtins(events),
    }


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def _time(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms" if seconds < 1.0 else f"{seconds:.2f} s"
