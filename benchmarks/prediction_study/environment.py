"""An environment that waits: it stands for slow tools, and says next to nothing; some are rate-limited."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterator
from typing import Any, ClassVar

from forebay.envs.latency import DelayModel, LatencySettings
from forebay.envs.protocol import Action, Message, Observation, Outcome, Task


class Waiting:
    """An episode of a few turns; every answer takes a while, the last one only if it is told to.

    Args:
        mean_s: Mean time of an answer, stragglers not counted.
        sigma: Standard deviation of its logarithm.
        stragglers: Share of answers that take `straggler_factor` times as long.
        straggler_factor: How many times longer those take.
        least_turns: Fewest turns of an episode.
        most_turns: Most turns; each number in between is as likely.
        at_once: Answers at a time, of all episodes of the process; 0 for no limit.
        waits_at_end: Whether the last answer takes a while too.
        seed: Seed of the delays.
    """

    _numbers: ClassVar[Iterator[int]] = itertools.count()
    _gates: ClassVar[dict[asyncio.AbstractEventLoop, asyncio.Semaphore]] = {}

    def __init__(
        self,
        mean_s: float,
        sigma: float = 0.5,
        stragglers: float = 0.0,
        straggler_factor: float = 8.0,
        least_turns: int = 4,
        most_turns: int = 4,
        at_once: int = 0,
        waits_at_end: bool = False,
        seed: int = 0,
    ) -> None:
        latency = LatencySettings(
            mean_s=mean_s,
            sigma=sigma,
            straggler_probability=stragglers,
            straggler_factor=straggler_factor,
        )
        self._latency, self._seed, self._at_once = latency, seed, at_once
        self._least_turns, self._most_turns, self._waits_at_end = least_turns, most_turns, waits_at_end

    async def reset(self, task: Task) -> Observation:
        """Pose a task at once."""
        # Members of a group are different episodes: their delays are drawn independently.
        episode = f"{self._seed}:{next(self._numbers)}"
        self._rng = random.Random(episode)
        self._delays = DelayModel(self._latency, self._rng.getrandbits(48))
        self._turns = self._rng.randint(self._least_turns, self._most_turns)
        self._turn = 0
        return Observation((Message("user", f"{task.payload['number']:04d}"),))

    async def step(self, action: Action) -> Outcome:
        """Answer after a while; the last turn brings a reward drawn at random."""
        self._turn += 1
        if self._turn < self._turns or self._waits_at_end:
            await self._wait()
        if self._turn >= self._turns:
            return Outcome(reward=float(self._rng.random() < 0.5), terminated=True)
        return Outcome(observation=Observation((Message("tool", f"{self._rng.randrange(10**6):06d}"),)))

    async def _wait(self) -> None:
        delay_s = self._delays.delay_s(self._turn)
        if self._at_once:
            async with self._gate():
                await asyncio.sleep(delay_s)
        else:
            await asyncio.sleep(delay_s)

    async def close(self) -> None:
        """Nothing is held."""

    @staticmethod
    def generate_tasks(num_tasks: int, seed: int) -> Iterator[dict[str, Any]]:
        """Yield tasks that differ in their number alone."""
        for index in range(num_tasks):
            yield {"task_id": f"waits-{index}", "payload": {"number": (index + seed) % 10_000}}

    def _gate(self) -> asyncio.Semaphore:
        loop = asyncio.get_running_loop()
        if loop not in self._gates:
            self._gates[loop] = asyncio.Semaphore(self._at_once)
        return self._gates[loop]
