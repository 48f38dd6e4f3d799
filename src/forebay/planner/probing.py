"""Driving an environment: so many episodes at a time, one after another, each call with a deadline."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from forebay.envs.conformance.watch import LoopWatch, Stall
from forebay.envs.foreign import attempt
from forebay.envs.outcomes import checked_observation, checked_outcome
from forebay.envs.protocol import Action, Environment, Observation, Outcome
from forebay.envs.registry import EnvironmentKind
from forebay.envs.settings import EnvironmentSettings
from forebay.planner.audit_records import FAILED, Call, Ending, Episode, Level, Verb
from forebay.planner.probe_actions import Actions
from forebay.trajectory import Task

T = TypeVar("T")
_CLOSE_S: Final = 5.0
_PAUSE_S: Final = 0.05
_MAX_PAUSE_S: Final = 1.0
_HOPELESS_EPISODES: Final = 8
MAX_CALLS: Final = 20_000
_CPU_TIMES: Final = Path("/proc/stat")


class Prober:
    """Measures an environment, level by level; what it has measured can be read at any time.

    Args:
        kind: The environment.
        actions: Who answers it.

    Attributes:
        levels: The levels that are over.
        watch: Who blocks the event loop; None if nobody looks.
        num_unclosed: Environments that raised or hung when they were closed.
    """

    def __init__(self, kind: EnvironmentKind, actions: Actions) -> None:
        self._kind = kind
        self._actions = actions
        self._running: _RunningLevel | None = None
        self._numbers = itertools.count()
        self._has_answers = False
        self._num_failed = 0
        self.levels: list[Level] = []
        self.watch: LoopWatch | None = None
        self.num_unclosed = 0

    def measured(self) -> list[Level]:
        """Return the levels that are over, and the one that runs as far as it has come; for any thread."""
        running = self._running
        return [*self.levels, *([running.snapshot()] if running is not None else [])]

    @property
    def is_hopeless(self) -> bool:
        """Whether nothing has ever been answered, although episodes failed or a level passed."""
        return not self._has_answers and (self._num_failed >= _HOPELESS_EPISODES or bool(self.levels))

    async def run_level(self, concurrency: int, window_s: float, drain_s: float) -> Level:
        """Keep so many episodes going for a time.

        Consumes: tasks. Waits for: the environment. Unblocked by: its answers, the deadlines of its settings,
            the end of the level. Produces: a level in `levels`, also if it is cancelled.

        Args:
            concurrency: Episodes at a time.
            window_s: Time in which episodes are begun.
            drain_s: Longest time to wait for those that have begun; then they are cut.
        """
        running = self._running = _RunningLevel(concurrency, window_s, self.watch)
        slots = [asyncio.create_task(self._slot(running), name=f"slot {i}") for i in range(concurrency)]
        try:
            await asyncio.wait(slots, timeout=window_s + drain_s)
        finally:
            level = running.snapshot()
            self.levels.append(level)
            self._running = None
            for slot in slots:
                slot.cancel()
            await asyncio.wait([*slots, *running.closing], timeout=_CLOSE_S)
        return level

    async def _slot(self, level: _RunningLevel) -> None:
        """Run episodes one after another until the window is over or nothing can come of it."""
        num_failed = 0
        while level.now_s() < level.window_s and not self.is_hopeless:
            number = next(self._numbers)
            place = number % len(self._actions.tasks)
            task, said = self._actions.tasks[place], self._actions.of(place)
            probe = _ProbedEpisode(self._kind, task, said, number, level.now_s)
            level.live[number] = probe
            try:
                await probe.run()
            finally:
                level.keep(probe.record())
                del level.live[number]
                closing = asyncio.create_task(self._close(probe), name=f"close {number}")
                level.closing.add(closing)
                closing.add_done_callback(level.closing.discard)
            failed = probe.ending in FAILED
            self._has_answers |= probe.has_answers
            self._num_failed += failed
            num_failed = num_failed + 1 if failed else 0
            if num_failed:
                await asyncio.sleep(min(_MAX_PAUSE_S, _PAUSE_S * 2 ** min(num_failed - 1, 10)))

    async def _close(self, probe: _ProbedEpisode) -> None:
        if probe.environment is None:
            return
        tried = await attempt(probe.environment.close, timeout_s=_CLOSE_S, name="close")
        self.num_unclosed += tried.timed_out or tried.error is not None


class _ProbedEpisode:
    """One episode, its calls timed where they happen."""

    def __init__(
        self,
        kind: EnvironmentKind,
        task: Task,
        said: Iterator[str],
        number: int,
        now_s: Callable[[], float],
    ) -> None:
        self._settings = kind.settings
        self._kind, self._task, self._said = kind, task, said
        self._number = number
        self._now_s = now_s
        self._began_s = self._free_since_s = now_s()
        self._calls: list[Call] = []
        self._open: tuple[Verb, float] | None = None
        self._own_s = 0.0
        self._observed_characters = 0
        self._error = self._detail = ""
        self.ending: Ending = "cut"
        self.environment: Environment | None = None

    @property
    def has_answers(self) -> bool:
        """Whether any call was answered."""
        return any(call.answered for call in self._calls)

    async def run(self) -> None:
        """Play it to its end, or until a call fails."""

        async def reset() -> tuple[Observation, bool]:
            # Each episode has a seed of its own, like those of a run.
            self.environment = self._kind.make(self._number)
            return checked_observation(await self.environment.reset(self._task)), False

        observation = await self._call("reset", reset)
        if observation is None:
            return
        self._observe(observation)
        for text in itertools.islice(self._said, self._settings.max_turns):
            outcome = await self._call("step", self._step_of(text))
            if outcome is None:
                return
            self._observe(outcome.observation)
            if outcome.terminated or outcome.truncated:
                self.ending = "terminated" if outcome.terminated else "truncated"
                return
        self.ending = "turns"

    def record(self) -> Episode:
        """Return it as far as it has come; a call that has not returned is one without an answer."""
        calls, ended_s = tuple(self._calls), self._free_since_s
        if (open_ := self._open) is not None:
            ended_s = self._now_s()
            calls = (*calls, Call(open_[0], open_[1], ended_s, answered=False))
        return Episode(
            began_s=self._began_s,
            ended_s=ended_s,
            calls=calls,
            own_s=self._own_s,
            observed_characters=self._observed_characters,
            ending=self.ending,
            error=self._error,
            detail=self._detail,
        )

    def _step_of(self, text: str) -> Callable[[], Awaitable[tuple[Outcome, bool]]]:
        async def step() -> tuple[Outcome, bool]:
            assert self.environment is not None
            outcome = checked_outcome(await self.environment.step(Action(text=text)))
            return outcome, outcome.terminated or outcome.truncated

        return step

    async def _call(self, verb: Verb, call: Callable[[], Awaitable[tuple[T, bool]]]) -> T | None:
        """Return the answer; None, and the failure noted, if there is none."""
        left_s = self._began_s + self._settings.episode_timeout_s - self._now_s()
        timeout_s = min(self._settings.step_timeout_s, left_s)

        async def timed() -> tuple[T, bool]:
            began_s = self._now_s()
            self._own_s += began_s - self._free_since_s
            self._open = verb, began_s
            answered = final = False
            try:
                value, final = await call()
                answered = True
                return value, final
            finally:
                # After a deadline, the call has been noted by whoever waited for it.
                if self._open is not None:
                    self._note(answered=answered, final=final)

        tried = await attempt(timed, timeout_s=max(timeout_s, 0.0), name=f"{verb} {self._number}")
        if tried.timed_out:
            if self._open is not None:
                self._note(answered=False)
            if left_s < self._settings.step_timeout_s:
                limit_s = self._settings.episode_timeout_s
                self._fail(
                    "timeout", "episode: timeout", f"not over within episode_timeout_s = {limit_s:g} s"
                )
            else:
                self._fail(
                    "timeout", f"{verb}: timeout", f"no answer within step_timeout_s = {timeout_s:g} s"
                )
            return None
        if tried.error is not None:
            self._fail("error", f"{verb}: {type(tried.error).__name__}", tried.reason)
            return None
        return tried.value[0]

    def _note(self, *, answered: bool, final: bool = False) -> None:
        assert self._open is not None
        (verb, began_s), self._open = self._open, None
        self._free_since_s = self._now_s()
        self._calls.append(Call(verb, began_s, self._free_since_s, answered, final))

    def _fail(self, ending: Ending, error: str, detail: str) -> None:
        self.ending, self._error, self._detail = ending, error, detail

    def _observe(self, observation: Observation) -> None:
        self._observed_characters += sum(len(message.content) for message in observation.messages)


class _RunningLevel:
    """A level that has not ended."""

    def __init__(self, concurrency: int, window_s: float, watch: LoopWatch | None) -> None:
        self._loop_time = asyncio.get_running_loop().time
        self._began_s = self._loop_time()
        self._concurrency = concurrency
        self._cpu = _cpu_times()
        self._own_cpu_s = time.process_time()
        self._watch = watch
        self._num_stalls = len(watch.stalls) if watch else 0
        self.window_s = window_s
        self._num_calls = 0
        self.episodes: list[Episode] = []
        self.live: dict[int, _ProbedEpisode] = {}
        self.closing: set[asyncio.Task[None]] = set()

    def now_s(self) -> float:
        return self._loop_time() - self._began_s

    def keep(self, episode: Episode) -> None:
        """Keep an episode; with calls enough, the window ends early."""
        self.episodes.append(episode)
        self._num_calls += len(episode.calls)
        if self._num_calls >= MAX_CALLS:
            self.window_s = min(self.window_s, self.now_s())

    def snapshot(self) -> Level:
        elapsed_s = self.now_s()
        stalls: list[Stall] = self._watch.stalls[self._num_stalls :] if self._watch else []
        longest = max(stalls, key=lambda stall: stall.duration_s, default=None)
        return Level(
            concurrency=self._concurrency,
            window_s=min(self.window_s, elapsed_s),
            episodes=(*self.episodes, *(probe.record() for probe in list(self.live.values()))),
            cpu_busy=_busy_share(self._cpu, _cpu_times()),
            own_cpu=(time.process_time() - self._own_cpu_s) / elapsed_s if elapsed_s > 0.0 else 0.0,
            blocked_s=sum(stall.duration_s for stall in stalls),
            blocked_at=longest.where if longest else "",
        )


class _CpuTimes(NamedTuple):
    busy: int
    total: int


def _cpu_times() -> _CpuTimes | None:
    """Return the ticks of all processors since its start; None where it does not count them."""
    with contextlib.suppress(OSError, ValueError):
        ticks = [int(field) for field in _CPU_TIMES.read_text().split("\n", 1)[0].split()[1:9]]
        idle = ticks[3] + ticks[4]
        return _CpuTimes(sum(ticks) - idle, sum(ticks))
    return None


def _busy_share(before: _CpuTimes | None, after: _CpuTimes | None) -> float | None:
    if before is None or after is None or after.total <= before.total:
        return None
    return (after.busy - before.busy) / (after.total - before.total)


class Idle:
    """An environment that does nothing: what is measured of it is the measurement itself."""

    async def reset(self, task: Task) -> Observation:
        """Pose nothing."""
        return Observation(())

    async def step(self, action: Action) -> Outcome:
        """Answer nothing."""
        return Outcome()

    async def close(self) -> None:
        """Hold nothing."""


async def measure_overhead_s(duration_s: float) -> float:
    """Return the time between an answer and the next call, measured on an environment that does nothing.

    Args:
        duration_s: How long to measure.
    """

    async def nothing() -> None:
        pass

    settings = EnvironmentSettings(name="idle", max_turns=8)
    kind = EnvironmentKind("idle", settings, lambda _: Idle(), nothing)
    actions = Actions(
        "nothing", (Task(task_id="idle", environment="idle", payload={}),), lambda _: itertools.repeat("")
    )
    prober = Prober(kind, actions)
    level = await prober.run_level(1, duration_s, 0.0)
    num_calls = sum(len(episode.calls) for episode in level.episodes)
    return sum(episode.own_s for episode in level.episodes) / max(1, num_calls)
