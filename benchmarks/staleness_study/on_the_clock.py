"""Runs on the virtual clock: the product's store, dispatcher, feed and rules decide how old the data is.

One thread. Episodes take as long as their environment's latency settings say; a model call and a learner step
take constant times. Generators and places for episodes are plentiful: the staleness rule alone limits what is
in flight. A turn is sampled by the version that is published when it is asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from typing import Any, Final

from benchmarks.staleness_study.cells import Cell, Timing
from benchmarks.staleness_study.episodes import RUN_ID, Actors
from benchmarks.staleness_study.generation import Engine
from benchmarks.staleness_study.outcomes import Judge, Outcome, make_group
from benchmarks.staleness_study.problems import Problem
from benchmarks.staleness_study.training import Trainer
from forebay.actors.episode import Assignment
from forebay.batching.batch import Batch
from forebay.envs.tasks import TaskStream
from forebay.learner.dispatch import Dispatcher
from forebay.learner.feed import Feed, JournaledBatch
from forebay.staleness import StalenessSettings
from forebay.store import GroupSpec, Slot, StoreSettings, open_store
from forebay.trajectory import PolicyVersion, Task

_TICK_S: Final = 0.1  # between two looks of the dispatcher at the store, as in the product
_LEASE_S: Final = 1e6


class World:
    """A store, a dispatcher and a feed on a virtual clock, and actors that claim whatever there is.

    Args:
        cell: What is run.
        problem: What is played.
        actors: Play it, slowly.
        trainer: Packs batches.
    """

    def __init__(self, cell: Cell, problem: Problem, actors: Actors, trainer: Trainer) -> None:
        self._actors, self._problem, self._seed = actors, problem, cell.seed
        self._stream: TaskStream = problem.stream(cell.seed)
        self._store = open_store(StoreSettings(engine="memory"), RUN_ID, actors.clock)
        self._store.rewind(0)
        rule = StalenessSettings(max_staleness=cell.lag, on_stale=cell.regime)
        groups, steps = problem.config.batching.groups, cell.length.steps
        self._dispatcher = Dispatcher(self._store, 0, self._make_group, rule, groups, 1, steps)

        def pack(groups: Any, now: PolicyVersion, forks: Any, packing: bytes = b"") -> tuple[Batch, ...]:
            """Pack groups whose members are compared among themselves: `packing` says nothing of those."""
            return trainer.pack(groups, now, forks, staleness=rule)

        self._feed = Feed(
            self._store, 0, (), pack, rule, groups, 1, self._dispatcher.repeat, clock=actors.clock
        )
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._running: set[asyncio.Task[None]] = set()
        self._start(self._tick())

    def next(self, version: int) -> JournaledBatch:
        """Return the next batch; virtual time passes until there is one.

        Raises:
            BaseException: Whatever ended an episode or the dispatcher.
        """
        batch = self._feed.next(version, self._stop)
        if batch is None:
            assert self._failure is not None
            raise self._failure
        return batch

    @property
    def counters(self) -> dict[str, int]:
        """The store's."""
        return self._store.stats().counters

    def publish(self, version: int) -> None:
        """Note a published version, as the learner does after every step."""
        self._store.publish(PolicyVersion(0, version), incarnation=0)
        self._store.commit(version, incarnation=0)
        self._dispatcher.wake()

    def close(self) -> None:
        """End every episode, and the dispatcher."""
        self._actors.close()
        self._dispatcher.stop()
        self._store.close()

    async def _tick(self) -> None:
        while True:
            self._dispatcher.top_up()
            self._claim()
            await asyncio.sleep(_TICK_S)

    def _claim(self) -> None:
        version = self._actors.generator.version
        slots = self._store.claim(1_000_000, ttl_s=_LEASE_S, actor="actors", version=version)
        for slot in slots:
            self._start(self._run(slot))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._actors.loop.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        failure = None if task.cancelled() else task.exception()
        if failure is not None:
            self._failure = self._failure or failure
            self._stop.set()

    async def _run(self, slot: Slot) -> None:
        clock = self._actors.clock
        name = f"{slot.group_id}.{slot.member}.{slot.attempt}"
        assignment = Assignment(
            trajectory_id=name,
            episode_id=name,
            run_id=slot.run_id,
            incarnation=slot.incarnation,
            group_id=slot.group_id,
            group_size=slot.group_size,
            member=slot.member,
            attempt=slot.attempt,
            min_version=slot.min_version,
            seed=self._seed,
            asked_s=clock.wall_s(),
        )
        trajectory = await self._actors.runner.run(
            slot.task, assignment, timeout_s=slot.group_deadline_s - clock.wall_s()
        )
        self._store.put(trajectory, slot)

    def _make_group(self, serial: int, posed: Task | str | None, min_version: PolicyVersion) -> GroupSpec:
        task = posed if isinstance(posed, Task) else self._stream.task_at(serial, posed)
        return make_group(self._problem, serial, task, min_version)


def run_on_the_clock(
    cell: Cell, problem: Problem, engine: Engine, trainer: Trainer, timing: Timing
) -> Outcome:
    """Train under `on_stale = cell.regime` and `max_staleness = cell.lag`."""
    actors = Actors(problem, engine, turn_s=timing.turn_s, slow=True)
    idle = Actors(problem, engine, turn_s=0.0, slow=False)
    judge = Judge(problem, idle, cell)
    weights = engine.prepare(problem.params)
    actors.generator.load(PolicyVersion(0, 0), weights)
    world = World(cell, problem, actors, trainer)
    training = trainer.begin()
    ends_s: list[float] = []
    with contextlib.closing(idle), contextlib.closing(world):
        for step in range(cell.length.steps):
            weights = engine.prepare(training.train(world.next(step).updates[0]))
            actors.clock.sleep(timing.step_s)
            actors.generator.load(PolicyVersion(0, step + 1), weights)
            world.publish(step + 1)
            ends_s.append(actors.clock.monotonic_s())
            judge.look(step + 1, weights, ends_s[-1])
        counters = world.counters
    return Outcome(judge.evaluations, training.steps, ends_s, counters)
