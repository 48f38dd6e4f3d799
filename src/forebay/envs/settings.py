"""Settings of an environment: what it is, its tasks, its limits."""

from __future__ import annotations

import re
from typing import Any, Final, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from forebay.envs.latency import LatencySettings
from forebay.envs.rewards import RewardMode, RewardRule

ENTRYPOINT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class EnvironmentSettings(BaseModel):
    """What an agent acts in."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    entrypoint: str = Field(
        "calculator", description="A built-in environment, or an importable class as package.module:Class."
    )
    name: str = Field(
        "", description="What trajectories and reports call it; empty takes it from entrypoint."
    )
    weight: float = Field(1.0, gt=0, description="Share of the task stream, relative to other environments.")
    kwargs: dict[str, Any] = Field({}, description="Keyword arguments of the class.")
    blocking: bool = Field(
        False,
        description="Run each live episode in a worker process, for code that is not asynchronous; "
        "classes that say `blocking = True` always do.",
    )
    start_timeout_s: float = Field(
        300.0, gt=0, description="Longest time for the imports of worker processes."
    )
    latency: LatencySettings = Field(
        LatencySettings(), description="Artificial delays, for tests and the demo."
    )
    reward: str = Field(
        "", description="Reward function as package.module:function; empty leaves it to the environment."
    )
    reward_mode: RewardMode = Field(
        "replace", description="Whether it replaces the environment's own rewards or adds to them."
    )
    reward_timeout_s: float = Field(10.0, gt=0, description="Longest time for one call of it.")
    reward_on_failure: float | None = Field(
        None,
        allow_inf_nan=False,
        description="Reward when it hangs, crashes or raises; unset, the attempt fails and is tried again.",
    )
    reward_processes: int = Field(
        4, ge=1, le=256, description="Calls of a plain function at once, each in a process."
    )
    max_turns: int = Field(32, ge=1, description="Model calls after which an episode is truncated.")
    step_timeout_s: float = Field(60.0, gt=0, description="Longest time for one reset or step.")
    episode_timeout_s: float = Field(600.0, gt=0, description="Longest time for an episode.")
    tasks: str = Field("", description="JSONL file of tasks; empty lets the environment generate them.")
    num_tasks: int = Field(2000, ge=1, le=10_000_000, description="Tasks to generate if there is no file.")
    tasks_seed: int = Field(0, ge=0, description="Seed of the generated tasks.")
    tasks_kwargs: dict[str, Any] = Field({}, description="Keyword arguments of the task generator.")
    holdout_fraction: float = Field(0.1, ge=0, lt=1, description="Share of the tasks that is never trained.")
    holdout_tasks: str = Field("", description="JSONL file of held-out tasks, instead of a share.")

    @field_validator("entrypoint")
    @classmethod
    def _known_shape(cls, value: str) -> str:
        if not (ENTRYPOINT.fullmatch(value) or _NAME.fullmatch(value)):
            raise ValueError(f"entrypoint must be a name or package.module:Class, got {value[:128]!r}")
        return value

    @field_validator("reward")
    @classmethod
    def _importable(cls, value: str) -> str:
        if value and not ENTRYPOINT.fullmatch(value):
            raise ValueError(f"reward must be package.module:function, got {value[:128]!r}")
        return value

    @field_validator("name")
    @classmethod
    def _safe_name(cls, value: str) -> str:
        if value and not _NAME.fullmatch(value):
            raise ValueError(f"name must be at most 64 letters, digits or ._-, got {value[:128]!r}")
        return value

    @model_validator(mode="after")
    def _timeouts_fit(self) -> Self:
        if self.step_timeout_s > self.episode_timeout_s:
            raise ValueError(
                f"step_timeout_s={self.step_timeout_s} exceeds episode_timeout_s={self.episode_timeout_s}: "
                f"a step could never time out. Lower step_timeout_s or raise episode_timeout_s."
            )
        if self.reward and self.reward_timeout_s > self.step_timeout_s:
            raise ValueError(
                f"reward_timeout_s={self.reward_timeout_s} exceeds step_timeout_s={self.step_timeout_s}: "
                f"the step that ends an episode waits for its reward. Lower reward_timeout_s or raise "
                f"step_timeout_s."
            )
        return self

    @property
    def reward_rule(self) -> RewardRule | None:
        """What the reward function does, if there is one."""
        if not self.reward:
            return None
        return RewardRule(
            function=self.reward,
            mode=self.reward_mode,
            timeout_s=self.reward_timeout_s,
            on_failure=self.reward_on_failure,
            processes=self.reward_processes,
            max_turns=self.max_turns,
        )

    @property
    def label(self) -> str:
        """The environment's name in trajectories and reports."""
        return self.name or self.entrypoint.rpartition(":")[2]
