"""Held-out evaluation: episodes of tasks that are never trained, scored and averaged."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

import msgspec

from forebay.actors.episode import Assignment, EpisodeRunner
from forebay.errors import EnvironmentFailure, GenerationError, ModelError, RecordError
from forebay.trajectory import PolicyVersion, Task, Trajectory

_Z95 = 1.959963984540054


class EvaluationReport(msgspec.Struct, frozen=True, kw_only=True):
    """What an evaluation found.

    Args:
        version: The newest version that sampled a token; in-flight updates may have begun with an older one.
        oldest_version: The oldest version that sampled a token.
        num_tasks: Tasks posed.
        num_failed: Episodes that failed or could not be scored; they are in no mean.
        reward: Mean reward of the scored episodes; None if there is none.
        reward_low: Lower end of its 95 % confidence interval (normal approximation).
        reward_high: Upper end.
        turns: Mean model calls per episode.
        tokens: Mean sampled tokens per episode.
    """

    version: PolicyVersion
    oldest_version: PolicyVersion
    num_tasks: int
    num_failed: int
    reward: float | None
    reward_low: float | None
    reward_high: float | None
    turns: float
    tokens: float


async def evaluate(
    runner: EpisodeRunner,
    tasks: Sequence[Task],
    *,
    run_id: str,
    seed: int,
    min_version: PolicyVersion,
    concurrency: int,
) -> EvaluationReport:
    """Run one episode for each task.

    Consumes: tasks. Waits for: a free place, then the episode, which has its own deadlines. Produces: a
        report.

    Args:
        runner: Runs episodes.
        tasks: What to pose.
        run_id: The run whose weights are evaluated.
        seed: Seed of the sampling.
        min_version: No token may be sampled by an older version.
        concurrency: Most episodes at once.
    """
    places = asyncio.Semaphore(concurrency)

    async def one(index: int, task: Task) -> Trajectory | None:
        name = f"eval-{min_version.incarnation}-{min_version.version}-{index}"
        assignment = Assignment(
            trajectory_id=name,
            episode_id=name,
            run_id=run_id,
            group_id=name,
            min_version=min_version,
            seed=seed,
            asked_s=runner.clock.wall_s(),
        )
        async with places:
            try:
                return await runner.run(task, assignment)
            except (EnvironmentFailure, GenerationError, ModelError, RecordError):
                return None

    results = await asyncio.gather(*(one(index, task) for index, task in enumerate(tasks)))
    return summarize_evaluation([result for result in results if result is not None], len(tasks), min_version)


def summarize_evaluation(
    trajectories: Sequence[Trajectory], num_tasks: int, asked: PolicyVersion
) -> EvaluationReport:
    """Return the mean reward with its confidence interval, and what the episodes cost.

    Args:
        trajectories: Episodes that ended.
        num_tasks: Episodes begun.
        asked: The version asked for; reported if nothing was sampled.
    """
    rewards = [t.reward for t in trajectories if t.reward is not None]
    spans = [span.version for t in trajectories for s in t.sequences for span in s.version_spans]
    count = max(len(trajectories), 1)
    mean, half_width = _interval(rewards)
    return EvaluationReport(
        version=max(spans, default=asked),
        oldest_version=min(spans, default=asked),
        num_tasks=num_tasks,
        num_failed=num_tasks - len(rewards),
        reward=mean,
        reward_low=None if mean is None else mean - half_width,
        reward_high=None if mean is None else mean + half_width,
        turns=sum(len(t.steps) for t in trajectories) / count,
        tokens=sum(t.num_action_tokens for t in trajectories) / count,
    )


def _interval(values: Sequence[float]) -> tuple[float | None, float]:
    if not values:
        return None, 0.0
    mean = sum(values) / len(values)
    variance = sum((value - mean) ** 2 for value in values) / max(len(values) - 1, 1)
    return mean, _Z95 * math.sqrt(variance / len(values))
