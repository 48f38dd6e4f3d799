"""What the pool tells about its episodes, without ever waiting for a listener."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal

import msgspec

from forebay.actors.levels import Turn
from forebay.trajectory import Finish, StepRecord, Trajectory

# What became of an episode: the store's answer to its result; `failed` if it has none because of an error,
# `released` if its slot went back untried, `cancelled` if its lease was lost or the pool ended.
Ending = Literal["accepted", "duplicate", "late", "refused", "failed", "released", "cancelled"]


# Where an episode can be, as gauges count it.
PLACES: Final = ("reset", "generator", "environment", "put")


@dataclass(slots=True)
class EpisodeLog:
    """What a running episode has done so far; it survives the episode, however that ends.

    Args:
        traced: Whether spans are kept.
        steps: Its model calls, in order.
        num_action_tokens: Tokens sampled.
        spans: Name, begin and end of what it did, in seconds of the event loop's clock.
        reset_s: Time of the environment's reset; None before its end.
        doing: Where it is now: reset, generator, environment or put; empty between them.
        asked_s: When it asked the generator last, on the event loop's clock.
        on_turn: Told of every turn that ended in time or at a deadline.
    """

    traced: bool = False
    steps: list[StepRecord] = field(default_factory=list)
    num_action_tokens: int = 0
    spans: list[tuple[str, float, float]] = field(default_factory=list)
    reset_s: float | None = None
    doing: str = ""
    asked_s: float = 0.0
    on_turn: Callable[[Turn], None] | None = None

    def add(self, step: StepRecord, began_s: float, ended_s: float, *, failed: bool) -> None:
        """Note a model call and the environment's answer, which took from `began_s` to `ended_s`."""
        if self.on_turn is not None and not failed:
            turn = Turn(len(self.steps), self.asked_s, began_s - self.asked_s, ended_s - began_s)
            self.on_turn(turn)
        self.steps.append(step)

    def enter(self, place: str, now_s: float) -> float:
        """Note where the episode is from now on; return `now_s`."""
        self.doing = place
        return now_s

    def leave(self, name: str, began_s: float, now_s: float) -> float:
        """Note what it did since `began_s`, and that it is on its way; return `now_s`."""
        self.doing = ""
        self.span(name, began_s, now_s)
        return now_s

    def span(self, name: str, began_s: float, ended_s: float) -> None:
        """Note what the episode did, if it is traced."""
        if self.traced:
            self.spans.append((name, began_s, ended_s))


class EpisodeStats(msgspec.Struct, frozen=True, kw_only=True):
    """One ended episode in numbers.

    Args:
        environment: Its environment.
        ending: What became of it.
        finish: What ended it; None if it left no trajectory.
        reward: Its return; None if unscored.
        num_turns: Model calls.
        num_action_tokens: Tokens sampled.
        duration_s: From the claim, or from the reset if it left a trajectory, to the end.
        admission_s: From claim to reset.
        generator_wait_s: Waiting for the generator's first decode, over all turns.
        generate_s: Decoding, over all turns.
        environment_s: Answer times of the environment, by turn.
    """

    environment: str
    ending: Ending
    finish: Finish | None
    reward: float | None
    num_turns: int
    num_action_tokens: int
    duration_s: float
    admission_s: float
    generator_wait_s: float
    generate_s: float
    environment_s: tuple[float, ...]

    @classmethod
    def of(cls, trajectory: Trajectory, ending: Ending) -> EpisodeStats:
        """Return the numbers of an episode that left a trajectory."""
        return cls(
            environment=trajectory.environment,
            ending=ending,
            finish=trajectory.finish,
            reward=trajectory.reward,
            num_turns=len(trajectory.steps),
            num_action_tokens=trajectory.num_action_tokens,
            duration_s=trajectory.finished_s - trajectory.started_s,
            admission_s=trajectory.admission_s,
            generator_wait_s=sum(step.generator_wait_s for step in trajectory.steps),
            generate_s=sum(step.generate_s for step in trajectory.steps),
            environment_s=tuple(step.environment_s for step in trajectory.steps),
        )

    @classmethod
    def without_result(
        cls, environment: str, ending: Ending, log: EpisodeLog, duration_s: float
    ) -> EpisodeStats:
        """Return the numbers of an episode that left nothing but its log."""
        return cls(
            environment=environment,
            ending=ending,
            finish=None,
            reward=None,
            num_turns=len(log.steps),
            num_action_tokens=log.num_action_tokens,
            duration_s=duration_s,
            admission_s=0.0,
            generator_wait_s=sum(step.generator_wait_s for step in log.steps),
            generate_s=sum(step.generate_s for step in log.steps),
            environment_s=tuple(step.environment_s for step in log.steps),
        )


class StatsQueue:
    """A bounded queue that drops its newest entries, and counts them, when nobody reads.

    Args:
        capacity: Entries kept.

    Attributes:
        num_lost: Entries dropped so far.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._entries: deque[EpisodeStats] = deque()
        self.num_lost = 0

    def offer(self, entry: EpisodeStats) -> None:
        """Add an entry if there is room; never waits."""
        if len(self._entries) < self._capacity:
            self._entries.append(entry)
        else:
            self.num_lost += 1

    def drain(self) -> list[EpisodeStats]:
        """Return and forget all entries."""
        entries = list(self._entries)
        self._entries.clear()
        return entries
