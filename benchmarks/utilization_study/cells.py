"""The cells of the headline benchmark: how long a tool takes, how much that varies, how many straggle."""

from __future__ import annotations

import math
from typing import Final

import msgspec

from forebay.cli.comparison import CONFIG
from forebay.envs.latency import DelayModel, LatencySettings
from forebay.planner.distribution import constant, sampled
from forebay.planner.profile import EnvironmentProfile, Origin

MEANS_S: Final = (0.25, 1.0, 4.0, 10.0)
CVS: Final = (0.5, 1.5, 4.0)
STRAGGLERS: Final = 0.05
STRAGGLER_FACTOR: Final = 8.0
# An episode's deadline, in tool calls of mean length; that of the demo.
_DEADLINE_CALLS: Final = 15.0
_SHORTEST_DEADLINE_S: Final = 6.0
_DRAWS: Final = 5000


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One environment.

    Args:
        env_s: Mean time of a tool call, stragglers not counted.
        cv: Its standard deviation over its mean; lognormal.
        stragglers: Share of the calls that take 8 times as long.
    """

    env_s: float
    cv: float = 0.5
    stragglers: float = 0.0

    @property
    def name(self) -> str:
        """What it is called."""
        tail = f"-stragglers{self.stragglers:g}" if self.stragglers else ""
        return f"{self.env_s:g}s-cv{self.cv:g}{tail}"

    @property
    def latency(self) -> LatencySettings:
        """Its delays."""
        return LatencySettings(
            mean_s=self.env_s,
            sigma=math.sqrt(math.log1p(self.cv**2)),
            straggler_probability=self.stragglers,
            straggler_factor=STRAGGLER_FACTOR,
        )

    @property
    def deadline_s(self) -> float:
        """Longest time of an episode."""
        return max(_SHORTEST_DEADLINE_S, _DEADLINE_CALLS * self.env_s)

    def config(self) -> str:
        """Return its configuration: the demo's with other tools."""
        latency = self.latency
        return "\n".join(
            [
                f'extends = "{CONFIG}"',
                "[environment.calculator]",
                f"step_timeout_s = {self.deadline_s}",
                f"episode_timeout_s = {self.deadline_s}",
                f"latency.mean_s = {latency.mean_s}",
                f"latency.sigma = {latency.sigma}",
                f"latency.straggler_probability = {latency.straggler_probability}",
                f"latency.straggler_factor = {latency.straggler_factor}",
                "[learner]",
                "eval_every = 0",
                "[generator]",
                "max_queue = 8192",
                "",
            ]
        )

    def environment(self, origin: Origin) -> EnvironmentProfile:
        """Return it as a profile has it: its delays are a setting, so they are drawn and not waited for.

        How many turns an episode has is the model's affair; the generator's part of the profile says it.
        """
        delays = DelayModel(self.latency, seed=1)
        return EnvironmentProfile(
            origin=origin,
            reset_s=constant(0.0),
            step_s=sampled(delays.delay_s(call) for call in range(1, _DRAWS)),
            final_step_s=constant(0.0),
            turns=constant(3.0),
            num_episodes=1,
            concurrency=1,
        )


def grid() -> tuple[Cell, ...]:
    """Return all cells: those with stragglers first."""
    straggling = tuple(Cell(env_s=env_s, stragglers=STRAGGLERS) for env_s in MEANS_S)
    return straggling + tuple(Cell(env_s=env_s, cv=cv) for cv in CVS for env_s in MEANS_S)
