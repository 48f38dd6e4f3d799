"""Delays that are drawn, not measured: any environment made slow in a reproducible way."""

from __future__ import annotations

import math
import random

from pydantic import BaseModel, ConfigDict, Field

from forebay.clock import Clock
from forebay.envs.protocol import Action, Environment, Observation, Outcome
from forebay.trajectory import Task


class LatencySettings(BaseModel):
    """How long an environment takes to answer: lognormal, with stragglers."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    mean_s: float = Field(0.0, ge=0, description="Mean answer time, stragglers not counted; 0 is no delay.")
    sigma: float = Field(0.5, ge=0, le=3, description="Standard deviation of the logarithm of the time.")
    straggler_probability: float = Field(0.0, ge=0, le=1, description="Share of answers that take longer.")
    straggler_factor: float = Field(8.0, ge=1, description="How many times longer they take.")
    reset_mean_s: float = Field(0.0, ge=0, description="Mean time to pose a task; 0 is no delay.")


class DelayModel:
    """Draws delays.

    Args:
        settings: The distribution.
        seed: Seed of one episode; call number n of the episode has the same delay whatever happened before.
    """

    def __init__(self, settings: LatencySettings, seed: int) -> None:
        self._settings = settings
        self._seed = seed

    def delay_s(self, call: int) -> float:
        """Return the delay of a call in seconds.

        Args:
            call: 0 for the reset, n for the n-th step.
        """
        mean_s = self._settings.mean_s if call else self._settings.reset_mean_s
        if not mean_s:
            return 0.0
        rng = random.Random(f"{self._seed}:{call}")
        sigma = self._settings.sigma
        # The mean of a lognormal lies sigma^2 / 2 above its median, in logarithms.
        delay_s = mean_s * math.exp(sigma * rng.gauss(0.0, 1.0) - sigma * sigma / 2.0)
        straggles = rng.random() < self._settings.straggler_probability
        return delay_s * self._settings.straggler_factor if straggles else delay_s


class LatencyEnvironment:
    """Another environment whose answers take time; a verdict that ends the episode takes none.

    Args:
        environment: The one that answers.
        delays: How long it takes.
        clock: Where the waiting happens.
    """

    def __init__(self, environment: Environment, delays: DelayModel, clock: Clock) -> None:
        self._environment = environment
        self._delays = delays
        self._clock = clock
        self._calls = 0

    async def reset(self, task: Task) -> Observation:
        """Pose the task after a delay."""
        self._calls = 0
        observation = await self._environment.reset(task)
        await self._wait(0)
        return observation

    async def step(self, action: Action) -> Outcome:
        """Answer after a delay."""
        self._calls += 1
        outcome = await self._environment.step(action)
        if outcome.observation.messages or not (outcome.terminated or outcome.truncated):
            await self._wait(self._calls)
        return outcome

    async def close(self) -> None:
        """Close the environment."""
        await self._environment.close()

    async def _wait(self, call: int) -> None:
        delay_s = self._delays.delay_s(call)
        if delay_s > 0.0:
            await self._clock.asleep(delay_s)
