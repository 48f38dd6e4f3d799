"""The body of `forebay play`: who plays, on which task, and one episode of it."""

from __future__ import annotations

import asyncio
import difflib
import functools
import os
import random
import secrets
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from forebay.actors.boundary import FaultBoundary
from forebay.actors.episode import Assignment, EpisodeRunner
from forebay.chat import Chat
from forebay.cli.acting import client_settings
from forebay.cli.asking import Watch, generator_of, wait_for_generator
from forebay.cli.person import Lines, PersonGenerator, PersonLeftError
from forebay.cli.runs import Run, builtin_or_path, join_run, resolve_model
from forebay.cli.transcript import Listener, WatchedEnvironment, WatchedGenerator
from forebay.cli.versions import Weights, serving
from forebay.clock import SystemClock
from forebay.config import RunConfig, load_config
from forebay.envs.latency import LatencySettings
from forebay.envs.registry import EnvironmentKind, load_environment, load_task_sets
from forebay.errors import ConfigError
from forebay.generation.pool import connect
from forebay.generation.protocol import Generator
from forebay.trajectory import PolicyVersion, Task, Trajectory

# A person may think for as long as they like.
_PERSON_TIMEOUT_S = 1e7
_MAX_SUGGESTED_FROM = 5000


class Player(NamedTuple):
    """Who plays.

    Attributes:
        name: What a transcript calls them.
        chat: Their tokenizer and template.
        weights: The run whose weights play; None for a person.
    """

    name: str
    chat: Chat
    weights: Run | None


class Wanted(NamedTuple):
    """What the command line asks for.

    Attributes:
        target: A configuration or a run directory.
        checkpoint: A model that plays.
        run: A run whose newest weights play.
        person: Whether a person plays.
    """

    target: Path
    checkpoint: str | None
    run: Path | None
    person: bool


@contextmanager
def seated(wanted: Wanted) -> Iterator[tuple[RunConfig, Player]]:
    """Find out who plays by which configuration; what had to be made for that goes away at the end.

    Raises:
        ConfigError: Nobody or several are named, or what is named cannot play.
    """
    if sum((wanted.checkpoint is not None, wanted.run is not None, wanted.person)) > 1:
        raise ConfigError("more than one player", limit="one of --checkpoint, --run and --person")
    own = join_run(wanted.target) if wanted.target.is_dir() else None
    config = own.config if own else load_config(wanted.target)
    if wanted.checkpoint is not None:
        source = builtin_or_path(wanted.checkpoint)
        with serving(config, source, functools.partial(_given_weights, source)) as run:
            yield config, Player(wanted.checkpoint, run.chat, run)
    elif wanted.run is not None or (own is not None and not wanted.person):
        other = join_run(wanted.run) if wanted.run is not None else own
        assert other is not None
        yield config, Player(str(other.layout.path), other.chat, other)
    else:
        yield config, Player("person", own.chat if own else resolve_model(config)[1], None)


def choose_task(config: RunConfig, task_id: str | None, seed: int) -> Task:
    """Return a task by name, or a held-out one by chance.

    Args:
        config: Names the environments.
        task_id: The task; None to draw one.
        seed: Seed of the choice and of the task's own randomness.

    Raises:
        ConfigError: There is no such task.
    """
    sets = [load_task_sets(settings) for settings in config.environment.values()]
    held_out = [task for each in sets for task in each.held_out]
    tasks = [task for each in sets for task in each.train]
    if task_id is None:
        task = random.Random(seed).choice(held_out or tasks)
        return msgspec.structs.replace(task, seed=seed)
    for task in (*held_out, *tasks):
        if task.task_id == task_id:
            return msgspec.structs.replace(task, seed=seed)
    known = [task.task_id for task in (*held_out, *tasks)[:_MAX_SUGGESTED_FROM]]
    near = difflib.get_close_matches(task_id, known, 1) or known[:1]
    raise ConfigError(f"no task is called {task_id!r}", remedy=f"There is {near[0]}, for instance.")


def play_episode(
    config: RunConfig, player: Player, task: Task, seed: int, tell: Listener, prompt: Callable[[], None]
) -> Trajectory | None:
    """Play one episode.

    Args:
        config: Limits and sampling.
        player: Who plays.
        task: What is posed.
        seed: Seed of the sampling.
        tell: Hears what happens.
        prompt: Called when a person is to answer.

    Returns:
        The episode; None if the person left before its end.

    Raises:
        PeerFailedError: No generator could be started.
        ForebayError: The episode failed.
    """
    if player.weights is None:
        return asyncio.run(_play(config, player, task, seed, tell, lambda: _person(config, player, prompt)))
    with generator_of(player.weights, None) as (addresses, watch):
        run = player.weights
        return asyncio.run(_play(config, player, task, seed, tell, lambda: _model(run, addresses, watch)))


async def _play(
    config: RunConfig,
    player: Player,
    task: Task,
    seed: int,
    tell: Listener,
    open_generator: Callable[[], Awaitable[Generator]],
) -> Trajectory | None:
    async with _environment(config, task, tell, person=player.weights is None) as kind:
        generator = await open_generator()
        try:
            info = await generator.info()
            runner = EpisodeRunner(
                generator=WatchedGenerator(generator, player.chat, tell),
                info=msgspec.structs.replace(info, context=min(info.context, config.generator.context)),
                chat=player.chat,
                environments={task.environment: kind},
                sampling=config.actors.sampling,
                max_turn_tokens=config.actors.max_turn_tokens,
                clock=SystemClock(),
                boundary=FaultBoundary(config.actors.cancel_grace_s),
            )
            try:
                return await runner.run(task, _assignment(info.version, seed))
            except PersonLeftError:
                return None
            finally:
                await runner.close()
        finally:
            await generator.close()


@asynccontextmanager
async def _environment(
    config: RunConfig, task: Task, tell: Listener, *, person: bool
) -> AsyncIterator[EnvironmentKind]:
    settings = next(s for s in config.environment.values() if s.label == task.environment)
    # Artificial delays are for training: nobody wants to watch them.
    kind = load_environment(settings.model_copy(update={"latency": LatencySettings()}), SystemClock())
    try:
        await kind.open()
        if person:
            patient = settings.model_copy(update={"episode_timeout_s": _PERSON_TIMEOUT_S})
            kind = kind._replace(settings=patient)
        make = kind.make
        yield kind._replace(make=lambda episode_seed: WatchedEnvironment(make(episode_seed), tell))
    finally:
        await kind.close()


async def _person(config: RunConfig, player: Player, prompt: Callable[[], None]) -> Generator:
    lines = Lines(sys.stdin.fileno())

    async def ask() -> str | None:
        prompt()
        return await lines.next()

    return PersonGenerator(player.chat, config.generator.context, ask)


async def _model(run: Run, addresses: list[str], watch: Watch) -> Generator:
    generator = connect(addresses, client_settings(run))
    await wait_for_generator(generator, watch, run.config.actors.peer_patience_s)
    return generator


def _assignment(version: PolicyVersion, seed: int) -> Assignment:
    # The name is new each time: a generator may still hold the cache of an episode of the same name.
    name = f"play-{os.getpid()}-{secrets.token_hex(4)}"
    return Assignment(
        trajectory_id=name,
        episode_id=name,
        run_id="play",
        group_id="play",
        min_version=version,
        seed=seed,
        asked_s=SystemClock().wall_s(),
    )


def _given_weights(source: Path, run: Run) -> Weights:
    from forebay.models.checkpoint_io import load_model
    from forebay.models.hf import to_hf_tensors

    _, params = load_model(source, num_real_tokens=run.chat.vocabulary)
    return Weights(PolicyVersion(0, 0), to_hf_tensors(params, run.model))
