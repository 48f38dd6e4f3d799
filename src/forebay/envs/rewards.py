"""A reward function of one's own: called once, when an episode ends, where it cannot harm another episode.

Answers of a model are hostile text. They reach the function as data, are never evaluated here, and a function
that hangs or crashes on one is stopped at its deadline: a plain function runs in a worker process, which is
killed, and a coroutine function in a task, which is cancelled and left behind if it does not end.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

from forebay.envs.foreign import attempt
from forebay.envs.importing import import_named
from forebay.envs.outcomes import as_number, checked_outcome
from forebay.envs.protocol import Action, Environment, Message, Observation, Outcome
from forebay.envs.worker import WorkerPool
from forebay.errors import ConfigError, EnvironmentFailure
from forebay.trajectory import Task

RewardMode = Literal["replace", "add"]
RewardFunction = Callable[[Task, tuple[Message, ...], Outcome], Any]
"""Judges an episode: the task, every message in order, and the outcome that ended it.

The outcome's reward is the sum of the environment's own rewards, None if it gave none. Returns a number, a
dict with `reward` and more numbers that become metrics, or None for an episode that cannot be scored; may be
a coroutine function.
"""

_FAILED = "reward_failed"


class RewardRule(NamedTuple):
    """What a reward function does to an episode.

    Args:
        function: Its import path, `module:function`.
        mode: `replace` drops the environment's own rewards; `add` keeps them.
        timeout_s: Longest time for one call.
        on_failure: Reward when the function hangs, crashes or raises; None fails the attempt.
        processes: Plain functions that run at once.
        max_turns: Model calls after which an episode is over.
    """

    function: str
    mode: RewardMode
    timeout_s: float
    on_failure: float | None
    processes: int
    max_turns: int


class Grading(msgspec.Struct, frozen=True):
    """What a reward function is called with."""

    task: Task
    messages: tuple[Message, ...]
    outcome: Outcome


class Score(NamedTuple):
    """What a reward function found; no reward is an episode that cannot be scored."""

    reward: float | None
    metrics: dict[str, float]


class Grader(Protocol):
    """A reward function, called within its deadline."""

    async def open(self) -> None:
        """Make what its calls share, so that the first one need not wait for it.

        Raises:
            ConfigError: That fails.
        """
        ...

    async def grade(self, grading: Grading) -> Score:
        """Judge an episode.

        Raises:
            EnvironmentFailure: The function hung, crashed, raised, or returned what is no score.
        """
        ...

    async def close(self) -> None:
        """Free what its calls share."""
        ...


def score_of(value: object, function: str) -> Score:
    """Return what a reward function's result means.

    Args:
        value: A number, a mapping with `reward` and other numbers, or None.
        function: Its import path; named in the error.

    Raises:
        TypeError: It is something else.
        ValueError: A number is not finite.

    Example:
        >>> score_of({"reward": 1, "format": 0.5}, "grading:score")
        Score(reward=1.0, metrics={'format': 0.5})
    """
    if isinstance(value, Mapping):
        if "reward" not in value:
            raise TypeError(f"{function} returned a dict without `reward`: {sorted(map(str, value))!r:.200}")
        entries = {
            str(name): _finite(v, f"{name!r:.80} of {function}") for name, v in value.items() if v is not None
        }
        return Score(entries.pop("reward", None), entries)
    return Score(None if value is None else _finite(value, f"the result of {function}"), {})


def load_grader(rule: RewardRule) -> Grader:
    """Import a reward function and choose where it runs: a coroutine function here, another one in processes.

    Raises:
        ConfigError: It cannot be imported, or does not take (task, messages, outcome).
    """
    function = import_named(rule.function, "reward function")
    if not callable(function):
        raise ConfigError(f"{rule.function} is no function", got=type(function).__name__)
    try:
        inspect.signature(function).bind(None, None, None)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"reward function {rule.function} cannot be called: {error}",
            remedy="Define it as (task, messages, outcome).",
        ) from error
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):
        return _CoroutineGrader(function, rule)
    return _ProcessGrader(rule)


class RewardEnvironment:
    """Another environment whose episodes are judged by a reward function.

    Args:
        environment: The one that answers.
        grader: The function.
        rule: What its score does.
    """

    def __init__(self, environment: Environment, grader: Grader, rule: RewardRule) -> None:
        self._environment = environment
        self._grader = grader
        self._rule = rule
        self._task: Task | None = None
        self._messages: list[Message] = []
        self._own_rewards: list[float] = []
        self._turns_left = rule.max_turns

    async def reset(self, task: Task) -> Observation:
        """Pose the task."""
        observation = await self._environment.reset(task)
        self._task = task
        self._messages = list(observation.messages)
        self._own_rewards = []
        self._turns_left = self._rule.max_turns
        return observation

    async def step(self, action: Action) -> Outcome:
        """Let the environment answer; judge the episode if that ended it.

        Raises:
            EnvironmentFailure: The reward function failed, and there is no reward for that.
        """
        outcome = checked_outcome(await self._environment.step(action))
        self._messages += [Message("assistant", action.text), *outcome.observation.messages]
        self._own_rewards += [] if outcome.reward is None else [outcome.reward]
        self._turns_left -= 1
        kept = outcome.reward if self._rule.mode == "add" else None
        if not (outcome.terminated or outcome.truncated) and self._turns_left:
            return msgspec.structs.replace(outcome, reward=kept)
        score = await self._judge(outcome)
        rewards = [reward for reward in (kept, score.reward) if reward is not None]
        return msgspec.structs.replace(
            outcome, reward=sum(rewards) if rewards else None, metrics=outcome.metrics | score.metrics
        )

    async def close(self) -> None:
        """Close the environment."""
        await self._environment.close()

    async def _judge(self, outcome: Outcome) -> Score:
        assert self._task is not None
        total = math.fsum(self._own_rewards) if self._own_rewards else None
        seen = msgspec.structs.replace(outcome, reward=total)
        try:
            score = await self._grader.grade(Grading(self._task, tuple(self._messages), seen))
        except EnvironmentFailure:
            if self._rule.on_failure is None:
                raise
            return Score(self._rule.on_failure, {_FAILED: 1.0})
        failed = {} if self._rule.on_failure is None else {_FAILED: 0.0}
        return Score(score.reward, score.metrics | failed)


class FunctionEnvironment:
    """A plain reward function as an environment of one step, so that it runs in a killable worker process.

    Args:
        function: Its import path.
    """

    def __init__(self, function: str) -> None:
        self._path = function
        self._function: RewardFunction = import_named(function, "reward function")

    def reset(self, task: Task) -> Observation:
        """Take what is to be judged, which is the task's payload."""
        self._grading = msgspec.convert(task.payload, Grading)
        return Observation(())

    def step(self, action: Action) -> Outcome:
        """Judge it."""
        grading = self._grading
        score = score_of(self._function(grading.task, grading.messages, grading.outcome), self._path)
        return Outcome(reward=score.reward, metrics=score.metrics, terminated=True)

    def close(self) -> None:
        """Hold nothing."""


class _ProcessGrader:
    def __init__(self, rule: RewardRule) -> None:
        self._rule = rule
        path = f"{FunctionEnvironment.__module__}:{FunctionEnvironment.__qualname__}"
        self._workers = WorkerPool(path, {"function": rule.function})
        # Calls are short: a few processes serve many episodes, and one that hangs is over at its deadline.
        self._places = asyncio.Semaphore(rule.processes)

    async def open(self) -> None:
        await self._workers.check()

    async def grade(self, grading: Grading) -> Score:
        async with self._places:
            return await _within(self._rule, lambda: self._call(grading))

    async def close(self) -> None:
        await self._workers.close()

    async def _call(self, grading: Grading) -> Score:
        task = msgspec.structs.replace(grading.task, payload=msgspec.to_builtins(grading))
        call = self._workers.environment()
        await call.reset(task)
        outcome = await call.step(Action(text=""))
        await call.close()
        return Score(outcome.reward, outcome.metrics)


class _CoroutineGrader:
    def __init__(self, function: RewardFunction, rule: RewardRule) -> None:
        self._function = function
        self._rule = rule

    async def open(self) -> None:
        """Need nothing."""

    async def grade(self, grading: Grading) -> Score:
        return await _within(self._rule, lambda: self._call(grading))

    async def close(self) -> None:
        """Hold nothing."""

    async def _call(self, grading: Grading) -> Score:
        result = await self._function(grading.task, grading.messages, grading.outcome)
        return score_of(result, self._rule.function)


async def _within(rule: RewardRule, call: Callable[[], Awaitable[Score]]) -> Score:
    tried = await attempt(call, timeout_s=rule.timeout_s, name=f"reward {rule.function}")
    if tried.timed_out:
        raise EnvironmentFailure(
            f"reward function {rule.function} did not return",
            limit=f"{rule.timeout_s:g} s",
            remedy="Raise environment.NAME.reward_timeout_s, or set reward_on_failure.",
        )
    if tried.error is None:
        return tried.value
    reason = str(tried.error) if isinstance(tried.error, EnvironmentFailure) else tried.reason
    raise EnvironmentFailure(f"reward function {rule.function} failed: {reason:.500}") from tried.error


def _finite(value: object, what: str) -> float:
    number = as_number(value, what)
    if not math.isfinite(number):
        raise ValueError(f"{what} must be finite, got {number}")
    return number
