"""What one batch was like: the part of a line of metrics that follows from the batch alone; without JAX.

*Fresh tokens* of a trajectory are those of its sampled tokens that are trained; with several epochs each
counts once per epoch.
"""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from forebay.batching.batch import Batch
from forebay.learner.feed import JournaledBatch
from forebay.objectives.value_moments import ValueMoments
from forebay.telemetry.metrics import Value
from forebay.telemetry.percentiles import latency_values, length_values
from forebay.telemetry.rates import mean_over_episodes
from forebay.trajectory import Trajectory


class TrainedTrajectory(NamedTuple):
    """A trajectory of a batch, and how many of its tokens are trained."""

    trajectory: Trajectory
    fresh_tokens: int


def trained_trajectories(batch: JournaledBatch) -> list[TrainedTrajectory]:
    """Return every trajectory of a batch once, in order, with its fresh tokens over all updates."""
    fresh_tokens: Counter[str] = Counter()
    members = {group.spec.group_id: group.trajectories for group in batch.groups}
    for update in batch.updates:
        trajectories = [t for group_id in update.group_ids for t in members[group_id]]
        counts = update.stats.fresh_tokens_by_trajectory
        for trajectory, count in zip(trajectories, counts, strict=True):
            fresh_tokens[trajectory.trajectory_id] += count
    return [
        TrainedTrajectory(trajectory, fresh_tokens[trajectory.trajectory_id])
        for group in batch.groups
        for trajectory in group.trajectories
    ]


def batch_values(batch: JournaledBatch, trained: Sequence[TrainedTrajectory]) -> dict[str, Value]:
    """Return the values that describe a batch.

    Args:
        batch: What was trained.
        trained: Its trajectories, with their fresh tokens.
    """
    trajectories = [trajectory for trajectory, _ in trained]
    return {
        **_counts_of(batch, len(trained)),
        **_histogram("fresh_tokens.staleness", [u.stats.staleness_histogram for u in batch.updates]),
        **_histogram("action_tokens.turn", [u.stats.action_tokens_by_turn for u in batch.updates]),
        **_histogram("fresh_tokens.turn", [u.stats.fresh_tokens_by_turn for u in batch.updates]),
        **{f"environment.{name}": value for name, value in _episode_metrics(trajectories).items()},
        **{f"finish.{name}": n for name, n in sorted(Counter(t.finish for t in trajectories).items())},
        **length_values("lengths.trained", [count for _, count in trained if count]),
        **length_values("lengths.accepted", [t.num_action_tokens for t in trajectories]),
        **environment_values(trajectories),
        **fresh_values(trained),
        **{f"short_groups.{name}": count for name, count in sorted(batch.short.items())},
        **critic_values(batch.updates),
    }


def critic_values(updates: Iterable[Batch]) -> dict[str, Value]:
    """Return how good the critic was before the batch's first update; nothing without one.

    Args:
        updates: As they were trained: judged by the critic, but for empty ones.
    """
    judged = [update.value_moments for update in updates if update.value_moments is not None]
    if not judged:
        return {}
    moments = functools.reduce(ValueMoments.plus, judged)
    return {
        "value.mean": moments.value_mean,
        "value.target_mean": moments.target_mean,
        "value.explained_variance": moments.explained_variance,
    }


def fresh_values(trained: Iterable[TrainedTrajectory]) -> dict[str, float]:
    """Return how much of an environment's turns is trained, and its share of that: `fresh_...ENVIRONMENT`.

    Trained tokens are divided by turns, so that a rule that masks the first turns of slow episodes shows, and
    an environment of long episodes does not seem favored.

    Args:
        trained: Trajectories with their fresh tokens.
    """
    tokens: Counter[str] = Counter()
    turns: Counter[str] = Counter()
    episodes: Counter[str] = Counter()
    for trajectory, fresh_tokens in trained:
        tokens[trajectory.environment] += fresh_tokens
        turns[trajectory.environment] += len(trajectory.steps)
        episodes[trajectory.environment] += 1
    per_turn = {name: tokens[name] / turns[name] for name in sorted(turns) if turns[name]}
    weighed = {name: value * episodes[name] for name, value in per_turn.items()}
    total = sum(weighed.values())
    shares = {f"fresh_share.{name}": value / total for name, value in weighed.items()} if total else {}
    if len(shares) < 2:
        shares = {}
    return {f"fresh_tokens_per_turn.{name}": value for name, value in per_turn.items()} | shares


def environment_values(trajectories: Sequence[Trajectory]) -> dict[str, Value]:
    """Return what the episodes of each environment were like: counts, reward and latencies, by its name."""
    by_environment: defaultdict[str, list[Trajectory]] = defaultdict(list)
    for trajectory in trajectories:
        by_environment[trajectory.environment].append(trajectory)
    values: dict[str, Value] = {}
    for name, mine in sorted(by_environment.items()):
        rewards = [t.reward for t in mine if t.reward is not None]
        values[f"trajectories.{name}"] = len(mine)
        values[f"reward.{name}"] = sum(rewards) / len(rewards) if rewards else None
        steps_s = [step.environment_s for t in mine for step in t.steps]
        values |= latency_values(f"latency.{name}.step_s", steps_s)
        episodes_s = [max(0.0, t.finished_s - t.started_s) for t in mine]
        values |= latency_values(f"latency.{name}.episode_s", episodes_s)
    return values


def _counts_of(batch: JournaledBatch, num_trajectories: int) -> dict[str, Value]:
    first = batch.updates[0].stats
    by_reason: Counter[str] = Counter()
    for update in batch.updates:
        by_reason.update(update.stats.masked_tokens)
    return {
        "trajectories": num_trajectories,
        "groups": " ".join(batch.entry.group_ids),
        "fresh_tokens": sum(update.counts.tokens for update in batch.updates),
        "masked_tokens": sum(by_reason.values()),
        **{f"masked.{reason}": count for reason, count in by_reason.items()},
        "staleness_max": max(update.stats.staleness_max for update in batch.updates),
        "fill": first.fill,
        "real_tokens": first.real_tokens,
        "padded_tokens": first.padded_tokens,
        "discarded": first.discarded,
        "unscored": first.unscored,
        "truncated": first.truncated,
        "branches": sum(update.stats.branches for update in batch.updates),
        "zero_spread_groups": sum(update.stats.zero_spread_groups for update in batch.updates),
        "too_long": sum(len(update.stats.too_long) for update in batch.updates),
    }


def _histogram(name: str, histograms: Sequence[Sequence[int]]) -> dict[str, Value]:
    """Return the sum of histograms, one value per bin: `NAME.BIN`."""
    totals: Counter[int] = Counter()
    for histogram in histograms:
        totals.update(dict(enumerate(histogram)))
    return {f"{name}.{index}": count for index, count in sorted(totals.items())}


def _episode_metrics(trajectories: Sequence[Trajectory]) -> Mapping[str, float]:
    means = mean_over_episodes([dict(trajectory.metrics) for trajectory in trajectories])
    means["turns"] = sum(len(t.steps) for t in trajectories) / max(len(trajectories), 1)
    means["tokens"] = sum(t.num_action_tokens for t in trajectories) / max(len(trajectories), 1)
    return means
