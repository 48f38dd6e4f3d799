"""Runs with a controlled lag: the batch of a step was sampled by the weights of so many steps before."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from benchmarks.staleness_study.cells import Cell
from benchmarks.staleness_study.episodes import RUN_ID, Actors
from benchmarks.staleness_study.generation import Engine, LazyGenerator
from benchmarks.staleness_study.outcomes import Judge, Outcome, make_group
from benchmarks.staleness_study.problems import Problem
from benchmarks.staleness_study.training import Trainer
from forebay.actors.episode import Assignment
from forebay.envs.tasks import TaskStream
from forebay.models.params import Params
from forebay.staleness import StalenessSettings
from forebay.store.protocol import GroupSpec, TakenGroup
from forebay.trajectory import PolicyVersion


def run_controlled(cell: Cell, problem: Problem, engine: Engine, trainer: Trainer) -> Outcome:
    """Train with tokens that are exactly `cell.lag` versions old, once there are so many versions.

    Under `spread` that holds for the first turn of an episode; each later turn is sampled by the next
    version, up to the newest, as if weights were updated in flight.
    """
    actors = Actors(problem, engine, turn_s=0.0, slow=False)
    judge = Judge(problem, actors, cell)
    stream = problem.stream(cell.seed)
    weights = {0: engine.prepare(problem.params)}
    training = trainer.begin()
    rule = StalenessSettings(max_staleness=cell.lag)
    with contextlib.closing(actors):
        for step in range(cell.length.steps):
            born = max(0, step - cell.lag)
            actors.generator.load(PolicyVersion(0, born), weights[born])
            if cell.regime == "spread":
                actors.generator.after_answer = _next_version(actors.generator, weights, step)
            groups = _play_batch(problem, actors, stream, cell.seed, step)
            actors.generator.after_answer = None
            batch, *_ = trainer.pack(groups, PolicyVersion(0, step), (), staleness=rule)
            weights[step + 1] = engine.prepare(training.train(batch))
            judge.look(step + 1, weights[step + 1])
            weights = {version: kept for version, kept in weights.items() if version > step - cell.lag}
    return Outcome(judge.evaluations, training.steps, [], {})


def _play_batch(
    problem: Problem, actors: Actors, stream: TaskStream, seed: int, step: int
) -> tuple[TakenGroup, ...]:
    """Run the episodes of one batch; tasks and seeds depend on the step alone, so that runs can be paired."""
    size, version = problem.config.batching.groups, actors.generator.version
    serials = range(step * size, (step + 1) * size)
    specs = [make_group(problem, serial, stream.task_at(serial), version) for serial in serials]
    pairs = [
        (spec.task, _assignment(spec, member, seed)) for spec in specs for member in range(spec.group_size)
    ]
    trajectories = iter(actors.play(pairs))
    return tuple(
        TakenGroup(spec=spec, trajectories=tuple(next(trajectories) for _ in range(spec.group_size)))
        for spec in specs
    )


def _assignment(spec: GroupSpec, member: int, seed: int) -> Assignment:
    name = f"{spec.group_id}.{member}"
    return Assignment(
        trajectory_id=name,
        episode_id=name,
        run_id=RUN_ID,
        group_id=spec.group_id,
        group_size=spec.group_size,
        member=member,
        min_version=spec.min_version,
        seed=seed,
        asked_s=0.0,
    )


def _next_version(generator: LazyGenerator, weights: dict[int, Params], newest: int) -> Callable[[], None]:
    """Return what loads the next version, up to the newest."""

    def load() -> None:
        version = min(generator.version.version + 1, newest)
        generator.load(PolicyVersion(0, version), weights[version])

    return load
