"""A rehearsal: a run's own episodes, played by its model without artificial delays: what do they ask?"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

from forebay.actors.boundary import FaultBoundary
from forebay.actors.episode import Assignment, EpisodeRunner
from forebay.chat import Chat
from forebay.clock import Clock
from forebay.config import RunConfig
from forebay.envs.foreign import attempt
from forebay.envs.latency import LatencySettings
from forebay.envs.registry import EnvironmentKind, load_environment, load_task_sets
from forebay.errors import EnvironmentFailure, ForebayError, GenerationError, ModelError, RecordError
from forebay.generation.protocol import Generator, GeneratorInfo
from forebay.planner.profile_records import Traffic
from forebay.planner.traffic import Conversation, Recorder, traffic_of
from forebay.trajectory import Task, Trajectory

_WANTED_EPISODES: Final = 32
_MOST_AT_ONCE: Final = 64
_CANCEL_S: Final = 10.0
# As long as a generator may take to start.
_OPEN_S: Final = 600.0
_CLOSE_S: Final = 15.0


class Rehearsal(NamedTuple):
    """What episodes asked.

    Attributes:
        conversations: Their requests, episode by episode.
        traffic: The same in numbers, by environment.
        failed: Why episodes failed, most frequent first.
    """

    conversations: tuple[Conversation, ...]
    traffic: dict[str, Traffic]
    failed: tuple[str, ...]


async def rehearse(
    config: RunConfig, chat: Chat, generator: Generator, info: GeneratorInfo, limit_s: float, clock: Clock
) -> Rehearsal:
    """Play a few groups of every environment.

    Consumes: tasks. Waits for: environments and the generator. Unblocked by: their answers and deadlines, and
        `limit_s`. Produces: what the episodes that ended had asked.

    Args:
        config: Environments, group size, sampling and limits.
        chat: Tokenizer and template.
        generator: Who answers.
        info: Its limits.
        limit_s: Longest time; what has not ended by then is left out.
        clock: Wall clock of the records.

    Raises:
        ConfigError: An environment cannot be made, or has no tasks.
        EnvironmentFailure: One cannot be opened.
    """
    recorder = Recorder(generator)
    without_delays = {
        name: settings.model_copy(update={"latency": LatencySettings()})
        for name, settings in config.environment.items()
    }
    kinds = {name: load_environment(settings, clock) for name, settings in without_delays.items()}
    runner = EpisodeRunner(
        generator=recorder,
        info=info,
        chat=chat,
        environments=kinds,
        sampling=config.actors.sampling,
        max_turn_tokens=config.actors.max_turn_tokens,
        clock=clock,
        boundary=FaultBoundary(config.actors.cancel_grace_s),
        max_kv_staleness=config.staleness.max_staleness,
    )
    played: dict[str, Trajectory] = {}
    failed: Counter[str] = Counter()
    async with opened(kinds):
        await _play(runner, _episodes(config, kinds, clock), info.slots, limit_s, played, failed)
    reasons = tuple(reason for reason, _ in failed.most_common())
    return Rehearsal(recorder.conversations(list(played)), traffic_of(played, recorder), reasons)


@asynccontextmanager
async def opened(
    kinds: Mapping[str, EnvironmentKind], *, open_s: float = _OPEN_S, close_s: float = _CLOSE_S
) -> AsyncIterator[None]:
    """Open environments, and close every one of them in the end, whatever the others do.

    Args:
        kinds: By name.
        open_s: Longest time to open one.
        close_s: Longest time to close one; it is left then.

    Raises:
        EnvironmentFailure: One cannot be opened.
    """
    try:
        for name, kind in kinds.items():
            await _open(name, kind, open_s)
        yield
    finally:
        for kind in kinds.values():
            await attempt(kind.close, timeout_s=close_s, name="close")


async def _open(name: str, kind: EnvironmentKind, limit_s: float) -> None:
    opening = await attempt(kind.open, timeout_s=limit_s, name="open")
    if opening.timed_out:
        raise EnvironmentFailure(f"environment {name} does not open", limit=f"{limit_s:g} s")
    if isinstance(opening.error, ForebayError):
        raise opening.error
    if opening.error is not None:
        raise EnvironmentFailure(f"environment {name} does not open: {opening.reason}")


def _episodes(
    config: RunConfig, kinds: dict[str, EnvironmentKind], clock: Clock
) -> list[tuple[Task, Assignment]]:
    size = config.batching.group_size
    groups = max(1, math.ceil(_WANTED_EPISODES / size / len(kinds)))
    found = []
    for name, kind in kinds.items():
        tasks = load_task_sets(kind.settings).train
        for index, task in enumerate(tasks[number % len(tasks)] for number in range(groups)):
            for member in range(size):
                episode = f"rehearsal-{name}-{index}-{member}"
                assignment = Assignment(
                    trajectory_id=episode,
                    episode_id=episode,
                    run_id="audit",
                    group_id=f"rehearsal-{name}-{index}",
                    group_size=size,
                    member=member,
                    seed=config.run.seed,
                    asked_s=clock.wall_s(),
                )
                found.append((task, assignment))
    return found


async def _play(
    runner: EpisodeRunner,
    episodes: list[tuple[Task, Assignment]],
    slots: int,
    limit_s: float,
    played: dict[str, Trajectory],
    failed: Counter[str],
) -> None:
    places = asyncio.Semaphore(min(slots or _MOST_AT_ONCE, _MOST_AT_ONCE))

    async def one(task: Task, assignment: Assignment) -> None:
        async with places:
            try:
                played[assignment.episode_id] = await runner.run(task, assignment)
            except (EnvironmentFailure, GenerationError, ModelError, RecordError) as error:
                failed[f"{task.environment}: {error}".splitlines()[0]] += 1

    running = [asyncio.create_task(one(*episode)) for episode in episodes]
    try:
        await asyncio.wait(running, timeout=limit_s)
    finally:
        for task in running:
            task.cancel()
        await asyncio.wait(running, timeout=_CANCEL_S)
        await runner.close()
