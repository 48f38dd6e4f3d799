"""What the pool tells about its episodes, without ever waiting for a listener."""

from __future__ import annotations

from collections import deque

import msgspec

from forebay.trajectory import Finish, Trajectory


class EpisodeStats(msgspec.Struct, frozen=True, kw_only=True):
    """One finished episode in numbers.

    Args:
        environment: Its environment.
        finish: What ended it.
        receipt: What the store said: `accepted`, `duplicate`, `late` or `refused`.
        reward: Its return; None if unscored.
        num_turns: Model calls.
        num_action_tokens: Tokens sampled.
        duration_s: From reset to the end.
        admission_s: From claim to reset.
        generator_wait_s: Waiting for the generator's first decode, over all turns.
        generate_s: Decoding, over all turns.
        environment_s: Answer times of the environment, by turn.
    """

    environment: str
    finish: Finish
    receipt: str
    reward: float | None
    num_turns: int
    num_action_tokens: int
    duration_s: float
    admission_s: float
    generator_wait_s: float
    generate_s: float
    environment_s: tuple[float, ...]

    @classmethod
    def of(cls, trajectory: Trajectory, receipt: str) -> EpisodeStats:
        """Return the numbers of a trajectory."""
        return cls(
            environment=trajectory.environment,
            finish=trajectory.finish,
            receipt=receipt,
            reward=trajectory.reward,
            num_turns=len(trajectory.steps),
            num_action_tokens=trajectory.num_action_tokens,
            duration_s=trajectory.finished_s - trajectory.started_s,
            admission_s=trajectory.admission_s,
            generator_wait_s=sum(step.generator_wait_s for step in trajectory.steps),
            generate_s=sum(step.generate_s for step in trajectory.steps),
            environment_s=tuple(step.environment_s for step in trajectory.steps),
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
