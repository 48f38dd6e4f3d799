"""The configuration of a run: every component's settings, and the checks that need more than one of them."""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from forebay.actors.settings import ActorSettings
from forebay.batching.settings import BatchingSettings
from forebay.config.source import ConfigSource, describe, read_source, validate
from forebay.envs.settings import EnvironmentSettings
from forebay.errors import ConfigError, RecordError
from forebay.generation.settings import GeneratorSettings
from forebay.launch.settings import LaunchSettings
from forebay.learner.division import Division, divide
from forebay.learner.optimizer import OptimizerSettings
from forebay.learner.reference_settings import ReferenceSettings
from forebay.learner.settings import LearnerSettings, check_processes
from forebay.learner.supervised_settings import SupervisedSettings
from forebay.models.settings import ComputeSettings, LoraSettings, MeshSettings, ModelSettings
from forebay.objectives.checks import check_group_size
from forebay.objectives.settings import ObjectiveSettings
from forebay.objectives.value_settings import ValueSettings
from forebay.staleness import StalenessSettings, check_updates_per_batch
from forebay.store.settings import StoreSettings, check_capacity
from forebay.telemetry.settings import TelemetrySettings
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
        return _checked_name(value, "run.name")

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
        {"calculator": EnvironmentSettings(name="calculator")},
        min_length=1,
        description="Environments by name.",
    )
    store: StoreSettings = StoreSettings()
    staleness: StalenessSettings = StalenessSettings()
    batching: BatchingSettings = BatchingSettings()
    objective: ObjectiveSettings = ObjectiveSettings()
    value: ValueSettings = ValueSettings()
    reference: ReferenceSettings = ReferenceSettings()
    optimizer: OptimizerSettings = OptimizerSettings()
    compute: ComputeSettings = ComputeSettings()
    mesh: MeshSettings = MeshSettings()
    learner: LearnerSettings = LearnerSettings()
    supervised: SupervisedSettings = SupervisedSettings()
    generator: GeneratorSettings = GeneratorSettings()
    actors: ActorSettings = ActorSettings()
    weights: WeightSettings = WeightSettings()
    launch: LaunchSettings = LaunchSettings()
    telemetry: TelemetrySettings = TelemetrySettings()

    @field_validator("environment")
    @classmethod
    def _environments_are_named(cls, value: dict[str, EnvironmentSettings]) -> dict[str, EnvironmentSettings]:
        return {
            _checked_name(name, "the name of an environment"): settings.model_copy(
                update={"name": settings.name or name}
            )
            for name, settings in value.items()
        }

    @property
    def member_bytes(self) -> int:
        """Bytes reserved in the store for a trajectory: a full context of ids and logprobs, and a header."""
        return self.generator.context * _BYTES_PER_TOKEN + MAX_HEADER_BYTES

    @property
    def updates_per_batch(self) -> int:
        """Optimizer steps, and so policy versions, that one batch makes."""
        return self.batching.updates_per_batch

    @property
    def separate_adapters(self) -> LoraSettings | None:
        """The adapters that versions are published as; None where whole weights are."""
        return self.model.adapters if self.weights.adapters == "separate" else None

    @property
    def division(self) -> Division:
        """In how many groups of the store the episodes of a task are dispatched."""
        return divide(self.objective, self.batching)

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
        check_updates_per_batch(
            self.staleness, self.updates_per_batch, publish_every=self.learner.publish_every
        )
        self._check_capacity()
        self.objective.check_updates_per_batch(self.updates_per_batch)
        check_processes(self.mesh.num_devices, self.learner.processes)
        check_group_size(
            self.objective,
            group_size=self.batching.group_size,
            min_group_size=self.batching.min_group_size,
        )
        self.value.check_used(self.objective.advantage, has_critic=self.objective.has_critic)
        if self.objective.kl_coef:
            self.reference.check_penalty(self.updates_per_batch)
        self._check_adapters()
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
        for name, environment in self.environment.items():
            if not _is_finite([environment.kwargs, environment.tasks_kwargs]):
                raise ConfigError(
                    f"environment.{name}.kwargs and tasks_kwargs are kept as JSON: it has no inf and no nan",
                    remedy="Use a large number, or a string that the environment understands.",
                )
        if self.generator.token_env is None and not _is_loopback(self.generator.host):
            raise ConfigError(
                "generator.host is open to the network and there is no token",
                got=self.generator.host,
                limit="127.0.0.1",
                remedy="Set generator.token_env to an environment variable that holds one.",
            )

    def _check_adapters(self) -> None:
        if self.model.adapters is None:
            if self.weights.adapters == "separate":
                raise ConfigError(
                    "there are no adapters to publish: the whole model is trained",
                    got='weights.adapters="separate" without model.lora.rank',
                    remedy="Set model.lora.rank, or remove weights.adapters.",
                )
            return
        if self.objective.kl_coef:
            self.reference.check_adapters()

    def _check_capacity(self) -> None:
        keeps_all = self.learner.keep_consumed
        check_capacity(
            self.store,
            groups_per_batch=self.division.groups(self.batching),
            batches_in_flight=self.staleness.batches_in_flight,
            member_bytes=self.member_bytes,
            group_size=self.division.size,
            checkpoint_every=self.learner.steps if keeps_all else self.learner.checkpoint_every,
            checkpoints_kept=1 if keeps_all else self.learner.keep_checkpoints,
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


def stored_config(tree: Mapping[str, Any], path: Path) -> RunConfig:
    """Read a configuration back that a run directory keeps.

    Args:
        tree: What `json_tree` gave.
        path: The file that it comes from; named in the error.

    Raises:
        ConfigError: It does not fit this version of forebay.
    """
    try:
        return RunConfig.model_validate(tree)
    except ValidationError as error:
        source = ConfigSource(tree=dict(tree), origins={}, path=path)
        raise ConfigError(
            f"the configuration kept in {describe(error, RunConfig, source)}",
            remedy="Use the version of forebay that made the run; manifest.json names it.",
        ) from None


def _checked_name(value: str, what: str) -> str:
    try:
        return check_name(value, what)
    except RecordError as error:
        raise ValueError(str(error)) from None


def _is_finite(value: Any) -> bool:
    if isinstance(value, dict | list | tuple):
        return all(map(_is_finite, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, float) or math.isfinite(value)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
