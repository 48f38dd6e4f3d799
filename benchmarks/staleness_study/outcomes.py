"""What a run leaves behind, and the judge that evaluates every run on the same held-out tasks."""

from __future__ import annotations

from typing import NamedTuple

from benchmarks.staleness_study.cells import Cell
from benchmarks.staleness_study.episodes import Actors
from benchmarks.staleness_study.problems import Problem
from benchmarks.staleness_study.training import Step
from forebay.models.params import Params
from forebay.store.protocol import GroupSpec
from forebay.trajectory import PolicyVersion, Task


class Evaluation(NamedTuple):
    """Held-out reward of one version.

    Attributes:
        version: The version.
        reward: Mean over tasks.
        tasks: How many.
        clock_s: Virtual seconds from the start to its publication; None without a virtual clock.
    """

    version: int
    reward: float
    tasks: int
    clock_s: float | None = None


class Outcome(NamedTuple):
    """What a run came to.

    Attributes:
        evaluations: In order.
        steps: Every optimizer step.
        ends_s: Virtual seconds at the end of every step; empty without a virtual clock.
        counters: Counters of the store; empty without one.
    """

    evaluations: list[Evaluation]
    steps: list[Step]
    ends_s: list[float]
    counters: dict[str, int]


class Judge:
    """Evaluates versions on held-out tasks: the same ones, with the same sampling seeds, in paired runs.

    Args:
        problem: Gives the tasks.
        actors: Play them, without delays.
        cell: Says when, how many, and by which seed.
    """

    def __init__(self, problem: Problem, actors: Actors, cell: Cell) -> None:
        self._scale = cell.length
        self._tasks = problem.held_out
        self._actors = actors
        self._seed = cell.seed
        self.evaluations: list[Evaluation] = []

    def look(self, version: int, weights: Params, clock_s: float | None = None) -> None:
        """Evaluate a version, if it is one of those to be evaluated."""
        if version not in self._scale.evaluations:
            return
        number, size = self._scale.evaluations.index(version), self._scale.tasks
        tasks = [self._tasks[(number * size + i) % len(self._tasks)] for i in range(size)]
        self._actors.generator.load(PolicyVersion(0, version), weights)
        score = self._actors.evaluate(tasks, seed=1_000_003 * (self._seed + 1) + number).score
        # An episode without a reward would be left out of the mean; these problems always give one.
        self.evaluations.append(Evaluation(version, score.reward or 0.0, score.num_tasks, clock_s))


def make_group(problem: Problem, serial: int, task: Task, min_version: PolicyVersion) -> GroupSpec:
    """Return a group as the product's dispatcher makes it."""
    batching = problem.config.batching
    return GroupSpec(
        group_id=f"g{serial:08d}",
        serial=serial,
        task=task,
        group_size=batching.group_size,
        min_group_size=batching.min_group_size,
        min_version=min_version,
        deadline_s=2.0 * problem.environment.episode_timeout_s,
        member_bytes=problem.config.member_bytes,
    )
