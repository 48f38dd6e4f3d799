"""What is simulated: the settings of a run that decide how busy it is, and what goes wrong in it."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from forebay.errors import ConfigError
from forebay.staleness import OnStale, StalenessSettings, check_updates_per_batch, credit_batches


class Scenario(BaseModel):
    """A run as the simulation sees it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    groups: int = Field(32, ge=1, le=100_000, description="Groups of one batch.")
    group_size: int = Field(8, ge=1, le=10_000, description="Trajectories of one group.")
    min_group_size: int | None = Field(
        None, ge=1, description="Members that suffice once a group's deadline has passed; default 2, or 1."
    )
    minibatches: int = Field(1, ge=1, description="Optimizer updates that a batch's groups are split into.")
    epochs: int = Field(1, ge=1, description="Times that a batch is gone through.")
    prefetch: int = Field(1, ge=0, le=1000, description="Batches packed ahead of the one that is trained.")
    publish_every: int = Field(1, ge=1, description="Batches between published versions.")

    max_staleness: int = Field(8, ge=0, le=10_000, description="Oldest trained token, in versions.")
    on_stale: OnStale = Field("wait", description="wait for urgent groups, drop late ones, or mask tokens.")
    credit: int | None = Field(None, ge=1, description="Batches in flight; default that of the run.")

    episodes_in_flight: int | None = Field(
        None, ge=1, description="Places for episodes, of all actor processes; default what the credit fills."
    )
    poll_s: float = Field(
        0.05, gt=0, description="First wait of an idle actor before it looks for work; doubles."
    )
    poll_max_s: float = Field(
        0.5, ge=0, description="Longest wait of an idle actor before it looks for work."
    )
    version_period_s: float = Field(
        0.5, ge=0, description="Time between two looks of an actor at the generator's version."
    )
    generators: int = Field(1, ge=1, le=100_000, description="Generators like the one that was measured.")
    slots: int | None = Field(None, ge=1, description="Requests at once in each; default as measured.")
    follow_ups_first: bool = Field(
        True, description="Whether a full generator goes on with episodes that it knows before new ones."
    )
    environment_concurrency: int | None = Field(
        None, ge=1, description="Resets and steps at once that an environment allows; default as measured."
    )
    capacity_groups: int | None = Field(
        None, ge=1, description="Groups that the store holds; default enough."
    )

    episode_timeout_s: float = Field(600.0, gt=0, description="Longest time for an episode.")
    step_timeout_s: float = Field(60.0, gt=0, description="Longest time for one reset or step.")
    group_deadline_s: float | None = Field(
        None, gt=0, description="From the first claim of a group; default twice the episode's."
    )
    timeouts_scored: bool = Field(False, description="Whether an episode that timed out has a reward.")
    max_attempts: int = Field(3, ge=1, description="Tries of a member whose environment fails.")
    rest_s: float = Field(0.25, ge=0, description="Time between two of them.")

    turns: int | None = Field(None, ge=1, le=10_000, description="Model calls of every episode, instead.")
    environment_factor: float = Field(1.0, ge=0, le=1e6, description="Environments take so much longer.")
    generator_factor: float = Field(1.0, ge=0, le=1e6, description="Model calls take so much longer.")
    learner_factor: float = Field(1.0, gt=0, le=1e6, description="Steps of the learner take so much longer.")
    weights_factor: float = Field(1.0, ge=0, le=1e6, description="Weights take so much longer to arrive.")
    straggler_probability: float = Field(
        0.0, ge=0, le=1, description="Share of steps that take longer still."
    )
    straggler_factor: float = Field(8.0, ge=1, le=1e6, description="How many times longer those take.")
    failure_probability: float = Field(0.0, ge=0, lt=1, description="Share of steps that fail.")
    generators_lost: int = Field(0, ge=0, description="Generators that are lost for a while.")
    lost_after_s: float = Field(0.0, ge=0, description="When they are lost.")
    lost_for_s: float = Field(60.0, ge=0, description="How long they stay away.")

    steps: int = Field(200, ge=1, le=1_000_000, description="Batches trained.")
    warmup_steps: int | None = Field(None, ge=0, description="First batches that the figures leave out.")
    seed: int = Field(0, ge=0, description="Seed of everything random.")

    @model_validator(mode="after")
    def _can_run(self) -> Self:
        try:
            self._check()
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return self

    def _check(self) -> None:
        check_updates_per_batch(self.rule, self.updates_per_batch, publish_every=self.publish_every)
        if self.least_members > self.group_size:
            raise ConfigError(
                "min_group_size exceeds the group", got=self.least_members, limit=self.group_size
            )
        if self.groups % self.minibatches:
            raise ConfigError("minibatches hold whole groups", got=self.groups, limit=self.minibatches)
        if self.generators_lost >= self.generators:
            raise ConfigError(
                "without a generator nothing moves",
                got=f"generators_lost={self.generators_lost}",
                limit=f"fewer than generators={self.generators}",
            )
        if self.capacity_groups is not None and self.capacity_groups < self.groups:
            raise ConfigError(
                "the store could never hold a batch",
                got=f"capacity_groups={self.capacity_groups}",
                limit=f"at least groups={self.groups}",
            )
        if self.warmup >= self.steps:
            raise ConfigError(
                "nothing would be left to measure",
                got=f"steps={self.steps}",
                limit=f"more than warmup_steps={self.warmup}",
            )

    @property
    def rule(self) -> StalenessSettings:
        """The staleness rule."""
        return StalenessSettings(max_staleness=self.max_staleness, on_stale=self.on_stale, credit=self.credit)

    @property
    def updates_per_batch(self) -> int:
        """Versions that one batch makes."""
        return self.minibatches * self.epochs

    @property
    def batches_in_flight(self) -> int:
        """The credit."""
        return credit_batches(self.rule, self.updates_per_batch)

    @property
    def episodes_per_batch(self) -> int:
        """Trajectories of a whole batch."""
        return self.groups * self.group_size

    @property
    def places(self) -> int:
        """Episodes that may be alive at once."""
        return self.episodes_in_flight or self.batches_in_flight * self.episodes_per_batch

    @property
    def least_members(self) -> int:
        """Members that suffice once the deadline of a group has passed."""
        return self.min_group_size or min(2, self.group_size)

    @property
    def deadline_s(self) -> float:
        """Longest time from the first claim of a group until it settles or is dropped."""
        return self.group_deadline_s or 2.0 * self.episode_timeout_s

    @property
    def warmup(self) -> int:
        """First batches that the figures leave out: those that began together, and as many again."""
        if self.warmup_steps is not None:
            return self.warmup_steps
        return min(self.steps // 2, 2 * self.batches_in_flight + 2)
