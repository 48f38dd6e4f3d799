"""Episodes of one problem in virtual time: the product's episode code, seeds and records."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from benchmarks.staleness_study.generation import Engine, LazyGenerator
from benchmarks.staleness_study.problems import Problem
from benchmarks.staleness_study.virtual_time import VirtualClock, VirtualLoop
from forebay.actors.boundary import FaultBoundary
from forebay.actors.episode import Assignment, EpisodeRunner
from forebay.actors.evaluation import EvaluationReport, evaluate
from forebay.generation.protocol import GeneratorInfo
from forebay.generation.run import model_fingerprint
from forebay.trajectory import PolicyVersion, Sampling, Task, Trajectory

RUN_ID: Final = "study"


class Actors:
    """A loop on virtual time with a generator and an episode runner in it.

    Args:
        problem: What is played.
        engine: What samples.
        turn_s: Virtual seconds of a model call.
        slow: Whether the environment takes the time that its latency settings say.
    """

    def __init__(self, problem: Problem, engine: Engine, *, turn_s: float, slow: bool) -> None:
        self.generator = LazyGenerator(engine, turn_s)
        self.loop = VirtualLoop(self.generator.answer_if_needed)
        self.clock = VirtualClock(self.loop)
        settings = problem.config.generator
        info = GeneratorInfo(
            version=PolicyVersion(0, 0),
            context=settings.context,
            vocabulary=problem.model.num_real_tokens,
            model=model_fingerprint(problem.model),
            slots=settings.slots,
        )
        self.runner = EpisodeRunner(
            generator=self.generator,
            info=info,
            chat=problem.chat,
            environments={problem.environment.label: problem.kind(self.clock, slow=slow)},
            sampling=Sampling(),
            max_turn_tokens=problem.config.actors.max_turn_tokens,
            clock=self.clock,
            boundary=FaultBoundary(1.0),
        )

    def play(self, pairs: Sequence[tuple[Task, Assignment]]) -> list[Trajectory]:
        """Run episodes side by side, to their ends."""

        async def all_of_them() -> list[Trajectory]:
            return await asyncio.gather(*(self.runner.run(task, wanted) for task, wanted in pairs))

        try:
            return self.loop.run_until_complete(all_of_them())
        finally:
            self.loop.run_until_complete(self.runner.close())

    def evaluate(self, tasks: Sequence[Task], seed: int) -> EvaluationReport:
        """Evaluate the weights that are loaded, one episode a task."""
        playing = evaluate(
            self.runner,
            tasks,
            run_id=RUN_ID,
            seed=seed,
            min_version=PolicyVersion(0, 0),
            concurrency=len(tasks),
        )
        try:
            return self.loop.run_until_complete(playing)
        finally:
            self.loop.run_until_complete(self.runner.close())

    def close(self) -> None:
        """Cancel whatever still runs, and close the loop."""
        self.loop.run_until_complete(_cancel_others())
        self.loop.run_until_complete(self.runner.close())
        self.loop.run_until_complete(_cancel_others())
        self.loop.close()


async def _cancel_others() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
