"""Held-out evaluation: episodes of tasks that are never trained, scored and averaged."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from forebay.actors.episode import Assignment, EpisodeRunner
from forebay.actors.scores import Method, estimate, pass_at
from forebay.errors import EnvironmentFailure, GenerationError, ModelError, RecordError
from forebay.trajectory import PolicyVersion, Task, Trajectory

_MAX_CAUSE_LENGTH = 300


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """What the episodes of some tasks came to.

    Args:
        num_tasks: Tasks posed.
        num_episodes: Episodes begun.
        num_failed: Episodes that failed or could not be scored; they are in no mean.
        reward: Mean over tasks of the mean reward of a task's scored episodes; None if there is none.
        reward_low: Lower end of its 95 % confidence interval; None if it cannot be known.
        reward_high: Upper end.
        method: How the interval was made; see `forebay.actors.scores.estimate`.
        pass_at: pass@k by k, if rewards are 0 and 1 and tasks have several episodes.
        turns: Mean model calls per episode.
        tokens: Mean sampled tokens per episode.
    """

    num_tasks: int
    num_episodes: int
    num_failed: int
    reward: float | None
    reward_low: float | None
    reward_high: float | None
    method: Method
    pass_at: dict[str, float]
    turns: float
    tokens: float


class EvaluationReport(msgspec.Struct, frozen=True, kw_only=True):
    """What an evaluation found.

    Args:
        version: The newest version that sampled a token; in-flight updates may have begun with an older one.
        oldest_version: The oldest version that sampled a token.
        score: Of all tasks.
        environments: Of the tasks of each environment.
        causes: Why episodes failed or have no reward, and how many.
        rewards: The rewards of every task's scored episodes, by `environment/task_id`.
    """

    version: PolicyVersion
    oldest_version: PolicyVersion
    score: Score
    environments: dict[str, Score]
    causes: dict[str, int]
    rewards: dict[str, tuple[float, ...]]


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """An episode of an evaluation that has ended.

    Args:
        task: What it was about.
        trajectory: Its record; None if it failed.
        cause: Why it failed; empty if it did not.
    """

    task: Task
    trajectory: Trajectory | None
    cause: str = ""


async def evaluate(
    runner: EpisodeRunner,
    tasks: Sequence[Task],
    *,
    run_id: str,
    seed: int,
    min_version: PolicyVersion,
    concurrency: int,
    num_samples: int = 1,
    on_ended: Callable[[int], None] = lambda num_ended: None,
) -> EvaluationReport:
    """Run some episodes for each task.

    Consumes: tasks. Waits for: a free place, then the episode, which has its own deadlines. Produces: a
        report.

    Args:
        runner: Runs episodes.
        tasks: What to pose.
        run_id: The run whose weights are evaluated.
        seed: Seed of the sampling.
        min_version: No token may be sampled by an older version.
        concurrency: Most episodes at once.
        num_samples: Episodes of each task.
        on_ended: Called with the number of episodes that have ended, after each.
    """
    places = asyncio.Semaphore(concurrency)
    num_ended = 0

    async def one(index: int, sample: int) -> Ended:
        nonlocal num_ended
        name = f"eval-{min_version.incarnation}-{min_version.version}-{index}"
        assignment = Assignment(
            trajectory_id=f"{name}-{sample}",
            episode_id=f"{name}-{sample}",
            run_id=run_id,
            group_id=name,
            group_size=num_samples,
            member=sample,
            min_version=min_version,
            seed=seed,
            asked_s=runner.clock.wall_s(),
        )
        async with places:
            ended = await _run_one(runner, tasks[index], assignment)
        num_ended += 1
        on_ended(num_ended)
        return ended

    pairs = [(index, sample) for index in range(len(tasks)) for sample in range(num_samples)]
    return summarize_evaluation(await asyncio.gather(*(one(*pair) for pair in pairs)), min_version)


def summarize_evaluation(episodes: Sequence[Ended], asked: PolicyVersion) -> EvaluationReport:
    """Return mean rewards with their confidence intervals, and what the episodes cost.

    Args:
        episodes: All that were begun.
        asked: The version asked for; reported if nothing was sampled.
    """
    trajectories = [ended.trajectory for ended in episodes if ended.trajectory is not None]
    spans = [span.version for t in trajectories for s in t.sequences for span in s.version_spans]
    environments = dict.fromkeys(ended.task.environment for ended in episodes)
    return EvaluationReport(
        version=max(spans, default=asked),
        oldest_version=min(spans, default=asked),
        score=_score(episodes),
        environments={
            name: _score([ended for ended in episodes if ended.task.environment == name])
            for name in environments
        },
        causes=dict(Counter(map(_cause, episodes)) - Counter({"": len(episodes)})),
        rewards={task: tuple(values) for task, values in _rewards(episodes).items()},
    )


async def _run_one(runner: EpisodeRunner, task: Task, assignment: Assignment) -> Ended:
    try:
        return Ended(task=task, trajectory=await runner.run(task, assignment))
    except (EnvironmentFailure, GenerationError, ModelError, RecordError) as error:
        cause = f"{task.environment}: {error}".splitlines()[0][:_MAX_CAUSE_LENGTH]
        return Ended(task=task, trajectory=None, cause=cause)


def _score(episodes: Sequence[Ended]) -> Score:
    trajectories = [ended.trajectory for ended in episodes if ended.trajectory is not None]
    rewards = _rewards(episodes)
    found = estimate(rewards)
    count = max(len(trajectories), 1)
    return Score(
        num_tasks=len(rewards),
        num_episodes=len(episodes),
        num_failed=len(episodes) - sum(map(len, rewards.values())),
        reward=found.mean if found else None,
        reward_low=found.low if found else None,
        reward_high=found.high if found else None,
        method=found.method if found else "none",
        pass_at=pass_at(rewards),
        turns=sum(len(t.steps) for t in trajectories) / count,
        tokens=sum(t.num_action_tokens for t in trajectories) / count,
    )


def _rewards(episodes: Sequence[Ended]) -> dict[str, list[float]]:
    """Return the rewards of scored episodes by task; a task without any is there with none."""
    rewards: dict[str, list[float]] = {}
    for ended in episodes:
        values = rewards.setdefault(f"{ended.task.environment}/{ended.task.task_id}", [])
        if ended.trajectory is not None and ended.trajectory.reward is not None:
            values.append(ended.trajectory.reward)
    return rewards


def _cause(ended: Ended) -> str:
    """Return why an episode is in no mean; nothing if it is in one."""
    if ended.trajectory is None:
        return ended.cause
    if ended.trajectory.reward is not None:
        return ""
    turns = len(ended.trajectory.steps)
    return f"{ended.task.environment}: no reward, ended by {ended.trajectory.finish} after {turns} turns"
