"""From settings to environments: built-in names, importable classes, and their tasks."""

from __future__ import annotations

import difflib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from forebay.clock import Clock
from forebay.envs.importing import import_named
from forebay.envs.latency import DelayModel, LatencyEnvironment, LatencySettings
from forebay.envs.protocol import Environment, EnvironmentFactory
from forebay.envs.rewards import RewardEnvironment, RewardRule, load_grader
from forebay.envs.settings import EnvironmentSettings
from forebay.envs.tasks import load_tasks, split_held_out, tasks_fingerprint
from forebay.envs.worker import WorkerPool
from forebay.errors import ConfigError, EnvironmentFailure
from forebay.trajectory import Task

BUILT_IN: Final = {
    "calculator": "forebay.envs.calculator:Calculator",
    "gymnasium": "forebay.envs.adapters.gymnasium_text:GymnasiumText",
    "reasoning-gym": "forebay.envs.adapters.reasoning:Reasoning",
    "textarena": "forebay.envs.adapters.textarena_game:TextArenaGame",
}


async def _nothing_to_do() -> None:
    """Open or close an environment whose episodes share nothing."""


class EnvironmentKind(NamedTuple):
    """An environment that is ready to be made: what the actor pool needs of it.

    Args:
        name: What trajectories call it.
        settings: Its limits.
        make: Makes the environment of one episode.
        close: Frees what episodes share, worker processes for instance.
        open: Makes what episodes share, so that the first one need not wait for it.
    """

    name: str
    settings: EnvironmentSettings
    make: EnvironmentFactory
    close: Callable[[], Awaitable[None]]
    open: Callable[[], Awaitable[None]] = _nothing_to_do


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
    if ":" not in path:
        near = difflib.get_close_matches(entrypoint, BUILT_IN, 1)
        raise ConfigError(
            f"no environment is called {entrypoint!r}",
            limit=", ".join(BUILT_IN),
            remedy=f"Did you mean {near[0]!r}?" if near else "For your own, write package.module:Class.",
        )
    loaded = import_named(path, "environment")
    missing = [verb for verb in ("reset", "step", "close") if not callable(getattr(loaded, verb, None))]
    if missing or not isinstance(loaded, type):
        raise ConfigError(f"{path} is not an environment class", got=f"no {', '.join(missing) or 'class'}")
    return loaded


def load_environment(settings: EnvironmentSettings, clock: Clock) -> EnvironmentKind:
    """Prepare an environment; unless it blocks, make one to see that its keyword arguments are right.

    It blocks if its settings or its class say so.

    Args:
        settings: What it is, and its limits.
        clock: Where artificial delays wait.

    Raises:
        ConfigError: The class cannot be imported or made.
    """
    loaded = load_class(settings.entrypoint)
    if settings.blocking or getattr(loaded, "blocking", False):
        kind = _in_workers(settings, loaded)
    else:
        _make(loaded, settings.kwargs)
        kind = EnvironmentKind(
            settings.label, settings, lambda _: _make(loaded, settings.kwargs), _nothing_to_do
        )
    if settings.latency.mean_s or settings.latency.reset_mean_s:
        kind = _slowed(kind, settings.latency, clock)
    rule = settings.reward_rule
    return kind if rule is None else _judged(kind, rule)


async def try_environment(kind: EnvironmentKind) -> None:
    """Make what an environment's episodes share, and an instance if it blocks; then let go of it.

    Raises:
        ConfigError: That fails; the message says why.
    """
    try:
        await kind.open()
    except EnvironmentFailure as error:
        raise ConfigError(f"environment {kind.name} cannot be made: {error}") from error
    finally:
        await kind.close()


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


def _in_workers(settings: EnvironmentSettings, loaded: type[Any]) -> EnvironmentKind:
    workers = WorkerPool(
        BUILT_IN.get(settings.entrypoint, settings.entrypoint),
        settings.kwargs,
        shared=getattr(loaded, "fork_safe", True),
        start_timeout_s=settings.start_timeout_s,
    )
    return EnvironmentKind(
        settings.label, settings, lambda _: workers.environment(), workers.close, workers.check
    )


def _slowed(kind: EnvironmentKind, latency: LatencySettings, clock: Clock) -> EnvironmentKind:
    def make(episode_seed: int) -> Environment:
        return LatencyEnvironment(kind.make(episode_seed), DelayModel(latency, episode_seed), clock)

    return kind._replace(make=make)


def _judged(kind: EnvironmentKind, rule: RewardRule) -> EnvironmentKind:
    grader = load_grader(rule)

    async def open_both() -> None:
        await kind.open()
        await grader.open()

    async def close_both() -> None:
        await grader.close()
        await kind.close()

    def make(episode_seed: int) -> Environment:
        return RewardEnvironment(kind.make(episode_seed), grader, rule)

    return kind._replace(make=make, close=close_both, open=open_both)
