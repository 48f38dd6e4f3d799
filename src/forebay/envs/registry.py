"""From settings to environments: built-in names, importable classes, and their tasks."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from forebay.clock import Clock
from forebay.envs.latency import DelayModel, LatencyEnvironment
from forebay.envs.protocol import Environment, EnvironmentFactory
from forebay.envs.settings import EnvironmentSettings
from forebay.envs.tasks import load_tasks, split_held_out, tasks_fingerprint
from forebay.envs.worker import WorkerPool
from forebay.errors import ConfigError
from forebay.trajectory import Task

BUILT_IN: Final = {"calculator": "forebay.envs.calculator:Calculator"}


class EnvironmentKind(NamedTuple):
    """An environment that is ready to be made: what the actor pool needs of it.

    Args:
        name: What trajectories call it.
        settings: Its limits.
        make: Makes the environment of one episode.
        close: Frees what episodes share, worker processes for instance.
    """

    name: str
    settings: EnvironmentSettings
    make: EnvironmentFactory
    close: Callable[[], Awaitable[None]]


class TaskSets(NamedTuple):
    """The tasks of an environment.

    Args:
        train: Tasks to train on.
        held_out: Tasks to evaluate on, never trained.
        fingerprint: Changes when any task does.
    """

    train: tuple[Task, ...]
    held_out: tuple[Task, ...]
    fingerprint: str


def load_class(entrypoint: str) -> type[Any]:
    """Import the class that an entrypoint names; the working directory is searched too.

    Raises:
        ConfigError: There is no such module or class, or it lacks reset, step or close.
    """
    path = BUILT_IN.get(entrypoint, entrypoint)
    module_name, separator, class_name = path.partition(":")
    if not separator:
        raise ConfigError(
            f"no environment is called {entrypoint!r}",
            limit=", ".join(BUILT_IN),
            remedy="Use a built-in name, or package.module:Class for your own.",
        )
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    try:
        loaded = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"environment {path} cannot be imported: {error}",
            remedy="Run from the directory that holds the module, or install it.",
        ) from error
    missing = [verb for verb in ("reset", "step", "close") if not callable(getattr(loaded, verb, None))]
    if missing or not isinstance(loaded, type):
        raise ConfigError(f"{path} is not an environment class", got=f"no {', '.join(missing) or 'class'}")
    return loaded


def load_environment(settings: EnvironmentSettings, clock: Clock) -> EnvironmentKind:
    """Prepare an environment; unless it blocks, make one to see that its keyword arguments are right.

    Args:
        settings: What it is, and its limits.
        clock: Where artificial delays wait.

    Raises:
        ConfigError: The class cannot be imported or made.
    """
    loaded = load_class(settings.entrypoint)
    make: Callable[[], Environment]
    close: Callable[[], Awaitable[None]]
    if settings.blocking:
        workers = WorkerPool(BUILT_IN.get(settings.entrypoint, settings.entrypoint), settings.kwargs)
        make, close = workers.environment, workers.close
    else:
        make, close = lambda: _make(loaded, settings.kwargs), _nothing_to_close
        make()
    if settings.latency.mean_s or settings.latency.reset_mean_s:
        latency = settings.latency

        def make_slow(episode_seed: int) -> Environment:
            return LatencyEnvironment(make(), DelayModel(latency, episode_seed), clock)

        return EnvironmentKind(settings.label, settings, make_slow, close)
    return EnvironmentKind(settings.label, settings, lambda _: make(), close)


def load_task_sets(settings: EnvironmentSettings) -> TaskSets:
    """Load or generate the tasks of an environment and hold some out.

    Raises:
        ConfigError: There is neither a task file nor a generator, or a file is malformed.
    """
    if settings.tasks:
        tasks = load_tasks(Path(settings.tasks), settings.label)
    else:
        tasks = _generate(settings)
    if settings.holdout_tasks:
        held_out = load_tasks(Path(settings.holdout_tasks), settings.label)
        names = {task.task_id for task in held_out}
        train = tuple(task for task in tasks if task.task_id not in names)
    else:
        train, held_out = split_held_out(tasks, settings.holdout_fraction)
    if not train:
        raise ConfigError(
            "no task is left to train on", got=len(tasks), remedy="Lower environment.NAME.holdout_fraction."
        )
    return TaskSets(train, held_out, tasks_fingerprint((*train, *held_out)))


def _generate(settings: EnvironmentSettings) -> tuple[Task, ...]:
    loaded = load_class(settings.entrypoint)
    generator = getattr(loaded, "generate_tasks", None)
    if generator is None:
        raise ConfigError(
            f"{settings.entrypoint} has no generate_tasks",
            remedy="Set environment.NAME.tasks to a JSONL file, or give the class a static generate_tasks.",
        )
    try:
        entries = list(generator(settings.num_tasks, settings.tasks_seed, **settings.tasks_kwargs))
        return tuple(Task(environment=settings.label, **entry) for entry in entries)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{settings.entrypoint}.generate_tasks failed: {error}") from error


def _make(loaded: type[Any], kwargs: dict[str, Any]) -> Environment:
    try:
        environment: Environment = loaded(**kwargs)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{loaded.__qualname__} refuses its kwargs: {error}") from error
    return environment


async def _nothing_to_close() -> None:
    """Close an environment whose episodes share nothing."""
