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
    environment: EnvironmentSettings = EnvironmentSettings()
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
