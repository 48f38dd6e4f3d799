"""The configuration of a run: every component's settings, and the checks that need more than one of them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from forebay.actors.settings import ActorSettings
from forebay.batching.settings import BatchingSettings
from forebay.config.source import read_source, validate
from forebay.envs.settings import EnvironmentSettings
from forebay.errors import ConfigError
from forebay.generation.settings import GeneratorSettings
from forebay.launch.settings import LaunchSettings
from forebay.learner.optimizer import OptimizerSettings
from forebay.learner.settings import LearnerSettings
from forebay.learner.supervised_settings import SupervisedSettings
from forebay.models.settings import ComputeSettings, MeshSettings, ModelSettings
from forebay.objectives.settings import ObjectiveSettings
from forebay.staleness import StalenessSettings, check_updates_per_batch
from forebay.store.settings import StoreSettings, check_capacity
from forebay.trajectory import check_name
from forebay.weights.settings import WeightSettings
from forebay.wire import MAX_HEADER_BYTES


_BYTES_PER_TOKEN = 8


class RunSettings(BaseModel):
    """What the run is called, where it lives, and the seed of everything random in it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field("run", description="Name of the run and of its directory.")
    directory: str = Field("runs", description="Where run directories are made.")
    seed: int = Field(0, ge=0, lt=2**31, description="Seed of initial weights, task order and sampling.")

    @field_validator("name")
    @classmethod
    def _safe_name(cls, value: str) -> str:
        return check_name(value, "run.name")

    @property
    def path(self) -> Path:
        """The run directory."""
        return Path(self.directory) / self.name


class RunConfig(BaseModel):
    """Everything that a run depends on; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run: RunSettings = RunSettings()
    model: ModelSettings = ModelSettings()
    environment: dict[str, EnvironmentSettings] = Field(
        {"calculator": EnvironmentSettings()}, min_length=1, description="Environments by name."
    )
    store: StoreSettings = StoreSettings()
    staleness: StalenessSettings = StalenessSettings()
    batching: BatchingSettings = BatchingSettings()
    objective: ObjectiveSettings = ObjectiveSettings()
    optimizer: OptimizerSettings = OptimizerSettings()
    compute: ComputeSettings = ComputeSettings()
    mesh: MeshSettings = MeshSettings()
    learner: LearnerSettings = LearnerSettings()
    supervised: SupervisedSettings = SupervisedSettings()
    generator: GeneratorSettings = GeneratorSettings()
    actors: ActorSettings = ActorSettings()
    weights: WeightSettings = WeightSettings()
    launch: LaunchSettings = LaunchSettings()

    @field_validator("environment")
    @classmethod
    def _environments_are_named(cls, value: dict[str, EnvironmentSettings]) -> dict[str, EnvironmentSettings]:
        return {
            check_name(name, "environment name"): settings.model_copy(update={"name": settings.name or name})
            for name, settings in value.items()
        }

    @property
    def member_bytes(self) -> int:
        """Bytes reserved in the store for one trajectory: a full context of ids and logprobs, and its header."""
        return self.generator.context * _BYTES_PER_TOKEN + MAX_HEADER_BYTES

    @property
    def updates_per_batch(self) -> int:
        """Optimizer steps, and so policy versions, that one batch makes."""
        return self.batching.minibatches * self.batching.epochs

    @model_validator(mode="after")
    def _parts_fit_together(self) -> Self:
        try:
            self.check()
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return self

    def check(self) -> None:
        """Refuse combinations that could never work.

        Raises:
            ConfigError: With the arithmetic and the remedy.
        """
        check_updates_per_batch(self.staleness, self.updates_per_batch)
        check_capacity(
            self.store,
            groups_per_batch=self.batching.groups,
            batches_in_flight=self.staleness.batches_in_flight,
            member_bytes=self.member_bytes,
            group_size=self.batching.group_size,
            checkpoint_every=self.learner.steps if self.learner.keep_consumed else self.learner.checkpoint_every,
            checkpoints_kept=1 if self.learner.keep_consumed else self.learner.keep_checkpoints,
        )
        if self.updates_per_batch > 1 and self.objective.loss == "decoupled_ppo" and self.objective.proximal == "current":
            raise ConfigError(
                f"{self.updates_per_batch} updates per batch need the proximal policy of the first one",
                got='objective.proximal="current"',
                remedy='Set objective.proximal="recomputed".',
            )
        if self.generator.context > self.batching.max_length and self.batching.oversize == "error":
            raise ConfigError(
                "an episode can grow longer than a row of the learner",
                got=f"generator.context={self.generator.context}",
                limit=f"batching.max_length={self.batching.max_length}",
                remedy="Raise batching.max_length, or set batching.oversize to drop or truncate.",
            )
        if self.store.engine == "memory":
            raise ConfigError(
                "the memory store lives in one process, but a run has several",
                got='store.engine="memory"',
                remedy='Set store.engine="lmdb".',
            )


def load_config(path: Path | None, overrides: Iterable[str] = ()) -> RunConfig:
    """Load, merge and check the configuration of a run.

    Args:
        path: TOML file; None for the defaults.
        overrides: `section.key=value` items, the last word.

    Raises:
        ConfigError: With file and line of the first fault.
    """
    return validate(RunConfig, read_source(path, overrides))
