"""What was measured over a window of a run: the figures that the verdict is a function of."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from forebay.telemetry.life_log import LifeTable
from forebay.telemetry.residence import EPISODE_STAGES
from forebay.telemetry.spans import TimeShares


class EnvironmentFigures(msgspec.Struct, frozen=True, kw_only=True):
    """How one environment answered over a window.

    Args:
        name: Its name.
        step_p95_s: 95 % of its steps took no longer.
        episode_p50_s: Half of its episodes took no longer.
        episode_p95_s: 95 % of its episodes took no longer.
        max_turns: Most model calls of an episode.
        episode_timeout_s: Its deadline for an episode.
    """

    name: str
    step_p95_s: float | None = None
    episode_p50_s: float | None = None
    episode_p95_s: float | None = None
    max_turns: int | None = None
    episode_timeout_s: float | None = None


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What the configuration allows.

    Args:
        groups: Groups of a batch, as the store holds them.
        group_size: Trajectories of each.
        siblings: Which episodes of a task wait for one another: all, pairs or finished.
        updates_per_batch: Optimizer updates of a batch.
        max_staleness: Oldest trained token, in versions.
        credit: Batches in flight.
        credit_is_set: Whether the configuration names the credit; if not, it follows max_staleness.
        on_stale: What happens to what would become too old: wait, drop or mask.
        actor_processes: Actor processes.
        episodes_per_process: Most episodes in flight in each.
        episodes_setting: What sets that: a number, or the most that actors may come to by themselves.
        slots: Sequences that the generator decodes at once.
        checkpoint_every: Batches between checkpoints.
    """

    groups: int = 1
    group_size: int = 1
    siblings: str = "all"
    updates_per_batch: int = 1
    max_staleness: int = 0
    credit: int = 1
    credit_is_set: bool = False
    on_stale: str = "wait"
    actor_processes: int = 1
    episodes_per_process: int = 1
    episodes_setting: str = "actors.episodes_per_process"
    slots: int = 1
    checkpoint_every: int = 1


class WindowFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured over a window of a run. A mean is over the batches; None where it is not known.

    Args:
        label: How the window is called in a sentence, such as `the last 5 min`.
        num_batches: Batches trained.
        shares: The learner's time by state.
        limits: What the configuration allows.
        goodput: 0 to 1.
        fill: Real tokens over slots, 0 to 1.
        waits: Seconds that the learner starved, by what it waited for: episodes, actors, credit, urgent or
            packing; empty if that was not recorded.
        life_s: Mean seconds that a trained token spent in each stage.
        lives: The lives of the trajectories that were trained; None if that was not recorded.
        environments: One entry per environment.
        live_episodes: Episodes in flight.
        accepted_per_s: Trajectories acknowledged per second.
        buffer_groups: Settled groups.
        outstanding_groups: Groups dispatched whose step is not published.
        trajectories: Trajectories in the batches, or that ended if no batch was trained.
        failures: Episodes that failed, by cause.
        reward: Mean reward.
        groups: Groups trained.
        zero_spread_groups: Those of them whose rewards are all equal.
        fresh_tokens: Sampled tokens that were trained.
        masked: Sampled tokens that were not, by reason.
        compiles: Programs built after warm-up.
        updates: Optimizer updates.
        nonfinite_updates: Those of them that changed nothing.
    """

    label: str
    num_batches: int
    shares: TimeShares
    limits: Limits
    goodput: float | None = None
    fill: float | None = None
    waits: Mapping[str, float] = {}
    life_s: Mapping[str, float] = {}
    lives: LifeTable | None = None
    environments: tuple[EnvironmentFigures, ...] = ()
    live_episodes: float | None = None
    accepted_per_s: float | None = None
    buffer_groups: float | None = None
    outstanding_groups: float | None = None
    trajectories: int = 0
    failures: Mapping[str, int] = {}
    reward: float | None = None
    groups: int = 0
    zero_spread_groups: int = 0
    fresh_tokens: int = 0
    masked: Mapping[str, int] = {}
    compiles: int = 0
    updates: int = 0
    nonfinite_updates: int = 0

    @property
    def cycle_s(self) -> float:
        """L + W: the learner's own time per batch."""
        return max(self.shares.wall_s - self.shares.seconds["starved"], 1e-9) / self.num_batches

    @property
    def episodes_per_batch(self) -> int:
        """B."""
        return self.limits.groups * self.limits.group_size

    @property
    def slowest(self) -> EnvironmentFigures | None:
        """The environment whose episodes take longest; None if nothing is known of any."""
        return max(
            self.environments, key=lambda env: (env.episode_p95_s or 0.0, env.step_p95_s or 0.0), default=None
        )

    @property
    def episode_s(self) -> float | None:
        """E[T]: from the tokens' lives, else by Little's law from what was in flight, else the median."""
        if spent_s := sum(self.life_s.get(stage, 0.0) for stage in EPISODE_STAGES):
            return spent_s
        if self.live_episodes and self.accepted_per_s:
            return self.live_episodes / self.accepted_per_s
        return self.slowest.episode_p50_s if self.slowest else None
