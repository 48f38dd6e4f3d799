"""The environment under check: every call has a deadline, is announced, and is judged."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, NamedTuple, NoReturn, TypeVar

from forebay.chat import Chat
from forebay.envs.conformance.contract import judge_reset, judge_step
from forebay.envs.conformance.findings import Begun, CheckRequest, Finding, Word
from forebay.envs.conformance.watch import LoopWatch, Stall, waiting_place
from forebay.envs.foreign import Attempt, attempt
from forebay.envs.outcomes import checked_outcome
from forebay.envs.protocol import Action, Environment, Message, Observation, Outcome
from forebay.envs.registry import EnvironmentKind
from forebay.trajectory import Task

T = TypeVar("T")
_CLOSE_S = 5.0


class CallFailedError(Exception):
    """A call that no later check can do without failed.

    Args:
        finding: Why.
        stuck: It did not return: further checks would wait in vain.
    """

    def __init__(self, finding: Finding, *, stuck: bool = False) -> None:
        super().__init__(finding.what)
        self.finding = finding
        self.stuck = stuck


class Turn(NamedTuple):
    """What an environment answered to one call.

    Args:
        said: The action's text; None for the reset.
        messages: What it said.
        outcome: The checked outcome of a step.
    """

    said: str | None
    messages: tuple[Message, ...]
    outcome: Outcome | None = None


class Play(NamedTuple):
    """One episode as it went.

    Args:
        task: What was posed.
        turns: The reset, then the steps.
        ended: The environment ended it.
    """

    task: Task
    turns: tuple[Turn, ...]
    ended: bool


class _PlainFunctionError(Exception):
    """What should have been awaitable was not."""


class Subject:
    """The environment, its limits, and what has been noticed on the way.

    Args:
        request: The limits.
        kind: The environment.
        chat: Tokenizer and template.
        say: Tells the parent process.
        give_up: Ends this process.

    Attributes:
        noticed: Findings that stop nothing.
        durations_s: How long calls took, by verb.
    """

    def __init__(
        self,
        request: CheckRequest,
        kind: EnvironmentKind,
        chat: Chat,
        say: Callable[[Word], None],
        give_up: Callable[[], NoReturn],
    ) -> None:
        self.request, self.kind, self.chat = request, kind, chat
        self.say, self._give_up = say, give_up
        self.timeout_s = min(request.timeout_s, kind.settings.step_timeout_s)
        self.noticed: list[Finding] = []
        self.durations_s: dict[str, list[float]] = defaultdict(list)
        self.watch = LoopWatch(
            asyncio.get_running_loop(),
            blocked_s=request.blocked_s,
            limit_s=self.timeout_s,
            on_stuck=self._stuck,
        )

    async def call(self, call: Callable[[], Awaitable[T]], verb: str, about: str = "") -> T:
        """Await a call of the environment.

        Args:
            call: Makes it.
            verb: The method.
            about: What it was called with, for the findings.

        Raises:
            CallFailedError: It did not return in time, or raised.
        """
        tried = await self.attempt(call, verb, about)
        what = f"{verb}{about}"
        if tried.timed_out:
            where = f", at {place}" if (place := waiting_place(tried.task)) else ""
            raise CallFailedError(
                Finding(
                    "deadline",
                    "fault",
                    f"{what} did not return within {self.timeout_s:g} s{where}",
                    f"Give every wait in it a timeout: a run cuts the episode after step_timeout_s="
                    f"{self.kind.settings.step_timeout_s:g}. If it only is slow: --timeout, or timeout_s.",
                ),
                stuck=True,
            )
        if isinstance(tried.error, _PlainFunctionError):
            remedy = "Define it with `async def`, or set blocking=true."
            raise CallFailedError(Finding(verb, "fault", f"{verb} is a plain function", remedy))
        if tried.error is not None:
            remedy = "An attempt that raises is tried again, 3 times at most: tell the model instead."
            raise CallFailedError(Finding(verb, "fault", f"{what} raised {tried.reason}", remedy))
        return tried.value

    async def attempt(self, call: Callable[[], Awaitable[T]], verb: str, about: str = "") -> Attempt[T]:
        """Await a call of the environment, however it ends."""
        timeout_s = {"close": _CLOSE_S, "start": self.kind.settings.start_timeout_s}.get(verb, self.timeout_s)
        self.say(Begun(f"{verb}{about}", timeout_s + self.request.slack_s))
        self.watch.call = f"{verb}{about}"
        started_s = time.monotonic()
        tried = await attempt(lambda: _awaited(call, verb), timeout_s=timeout_s, name=f"{verb}{about}")
        self.durations_s[verb].append(time.monotonic() - started_s)
        self.watch.call = "the event loop"
        return tried

    def judge(self, findings: Iterable[Finding]) -> None:
        """Note warnings, and stop at a fault.

        Raises:
            CallFailedError: There is one.
        """
        for finding in findings:
            if finding.level == "fault":
                raise CallFailedError(finding)
            self.noticed.append(finding)

    async def play(self, task: Task, said: Sequence[str], about: str = "") -> Play:
        """Play an episode with given answers, as far as they last.

        Raises:
            CallFailedError: A call failed, or returned what breaks the contract.
        """
        session = Session(self, task, about)
        try:
            turns = [await session.reset()]
            for text in said:
                turns.append(await session.step(Action(text=text)))
                if session.ended:
                    break
        except CallFailedError:
            await session.abandon()
            raise
        await session.close()
        return Play(task, tuple(turns), session.ended)

    def _stuck(self, stall: Stall) -> NoReturn:
        remedy = "Set blocking=true to run it in a process that can be killed, or await instead of blocking."
        what = f"{stall.call} has blocked the event loop for {stall.duration_s:.0f} s, at {stall.where}"
        self.say(Finding("blocking", "fault", what, remedy))
        self._give_up()


class Session:
    """One episode under check.

    Args:
        subject: The environment.
        task: What is posed.
        about: What the episode is for, in findings.
    """

    def __init__(self, subject: Subject, task: Task, about: str = "") -> None:
        self._subject = subject
        self._task = task
        self._about = about
        self.environment: Environment = subject.kind.make(0)
        self.ended = False

    async def reset(self) -> Turn:
        """Pose the task."""
        observation: Observation = await self._subject.call(
            lambda: self.environment.reset(self._task), "reset", f" on task {self._task.task_id}{self._about}"
        )
        self._subject.judge(judge_reset(observation))
        return Turn(None, tuple(observation.messages))

    async def step(self, action: Action) -> Turn:
        """Answer."""
        about = f" on {action.text[:60]!r}{self._about}"
        value: Any = await self._subject.call(lambda: self.environment.step(action), "step", about)
        self._subject.judge(judge_step(value))
        outcome = checked_outcome(value)
        self.ended = outcome.terminated or outcome.truncated
        return Turn(action.text, tuple(outcome.observation.messages), outcome)

    async def close(self) -> None:
        """End the episode."""
        await self._subject.call(self.environment.close, "close", self._about)

    async def abandon(self) -> None:
        """End an episode that has failed already, whatever comes of it."""
        await self._subject.attempt(self.environment.close, "close", self._about)


async def _awaited(call: Callable[[], Awaitable[T]], verb: str) -> T:
    made: Any = call()
    if not inspect.isawaitable(made):
        raise _PlainFunctionError(verb)
    result: T = await made
    return result
