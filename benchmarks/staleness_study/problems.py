"""The problems of the study: configuration, warm start, tasks, environments that run in this process."""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import xxhash

from benchmarks.staleness_study.virtual_time import VirtualClock
from forebay.chat import Chat
from forebay.cli.runs import resolve_model
from forebay.config import RunConfig, load_config
from forebay.envs.latency import DelayModel, LatencyEnvironment
from forebay.envs.protocol import Action, Environment, Observation, Outcome
from forebay.envs.registry import EnvironmentKind, load_class, load_task_sets
from forebay.envs.settings import EnvironmentSettings
from forebay.envs.tasks import TaskStream, WeightedTasks
from forebay.models.checkpoint_io import load_model
from forebay.models.config import ModelConfig
from forebay.models.params import Params
from forebay.trajectory import Task

HERE: Final = Path(__file__).parent
WARM_STARTS: Final = HERE.parent / "data" / "staleness"
NAMES: Final = ("calculator", "frozenlake")


class Problem(NamedTuple):
    """One problem, ready to be trained.

    Attributes:
        name: What results call it.
        config: Its configuration; the seed in it is not used.
        model: The shape of its model.
        chat: Its tokenizer.
        params: The warm start, NumPy.
        train: Tasks that are trained.
        held_out: Tasks that are evaluated.
        fingerprint: Changes with the configuration and the warm start.
    """

    name: str
    config: RunConfig
    model: ModelConfig
    chat: Chat
    params: Params
    train: tuple[Task, ...]
    held_out: tuple[Task, ...]
    fingerprint: str

    @property
    def environment(self) -> EnvironmentSettings:
        """Its only environment."""
        return next(iter(self.config.environment.values()))

    def stream(self, seed: int) -> TaskStream:
        """Return the endless stream of training tasks of one seed."""
        return TaskStream([WeightedTasks(self.train)], seed)

    def kind(self, clock: VirtualClock, *, slow: bool) -> EnvironmentKind:
        """Return its environment, in this process whether or not it blocks; slow by its latency settings."""
        settings = self.environment
        loaded = load_class(settings.entrypoint)
        idle: list[Any] = []

        def make(seed: int) -> Environment:
            made = idle.pop() if idle else loaded(**settings.kwargs)
            environment: Environment = _InProcess(made, idle)
            if not slow:
                return environment
            return LatencyEnvironment(environment, DelayModel(settings.latency, seed), clock)

        return EnvironmentKind(settings.label, settings, make, _nothing)


class _InProcess:
    """An environment whose calls return at once, used again by the next episode.

    Args:
        environment: The real one; its methods may be plain or asynchronous.
        idle: Where it waits for its next episode.
    """

    def __init__(self, environment: Any, idle: list[Any]) -> None:
        self._environment = environment
        self._idle = idle

    async def reset(self, task: Task) -> Observation:
        answer = self._environment.reset(task)
        return answer if isinstance(answer, Observation) else await answer

    async def step(self, action: Action) -> Outcome:
        answer = self._environment.step(action)
        return answer if isinstance(answer, Outcome) else await answer

    async def close(self) -> None:
        self._idle.append(self._environment)


async def _nothing() -> None:
    """Close what episodes share: nothing."""


@functools.cache
def load_problem(name: str) -> Problem:
    """Load a problem by its name, with its warm start.

    Raises:
        ConfigError: Its configuration is not valid.
        ModelError: Its warm start is missing.
    """
    path = HERE / f"{name}.toml"
    config = load_config(path)
    model, chat = resolve_model(config)
    warm = WARM_STARTS / f"warm-{name}"
    params = load_model(warm, num_real_tokens=chat.vocabulary)[1]
    digest = xxhash.xxh3_64((warm / "model.safetensors").read_bytes())
    # What it says, not how it is written: comments may change.
    digest.update(msgspec.json.encode(tomllib.loads(path.read_text()), order="sorted"))
    tasks = load_task_sets(next(iter(config.environment.values())))
    return Problem(name, config, model, chat, params, tasks.train, tasks.held_out, digest.hexdigest())
