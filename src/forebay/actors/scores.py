"""Scores: what rewards of held-out tasks say about a policy, and how sure one may be. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, Literal

import msgspec
import numpy as np

Method = Literal["wilson", "bootstrap", "none"]
Rewards = Mapping[str, Sequence[float]]
"""The rewards of every scored episode, by task."""

_Z95: Final = 1.959963984540054
_NUM_RESAMPLES: Final = 4000
_SEED: Final = 0


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """A mean over tasks with its 95 % confidence interval.

    Args:
        mean: Mean over tasks of the mean over a task's episodes: every task counts the same.
        low: Lower end of the interval; None if it cannot be known.
        high: Upper end.
        method: How the interval was made.
        num_tasks: Tasks with a score.
    """

    mean: float
    low: float | None
    high: float | None
    method: Method
    num_tasks: int


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two policies on the same tasks.

    Args:
        difference: Of the second from the first, task by task.
        num_better: Tasks on which the second has the higher mean.
        num_worse: Tasks on which it has the lower one.
        num_equal: Tasks on which they are equal.
    """

    difference: Estimate
    num_better: int
    num_worse: int
    num_equal: int


def estimate(rewards: Rewards) -> Estimate | None:
    """Return the mean reward with its interval; None if no episode has a score.

    Rewards that are all 0 or 1 get Wilson's score interval, which stays inside [0, 1] and is right for few
    tasks and for shares near its ends. Several episodes of a task are not independent: they count as
    ``n = p (1 - p) / v`` tasks, where v is the variance of the mean over tasks, but as no fewer than the
    tasks and no more than the episodes. Other rewards get a percentile bootstrap over tasks, which stays
    inside what was seen.

    Args:
        rewards: By task.

    References:
        Wilson (1927), Probable inference, the law of succession, and statistical inference.
        Efron and Tibshirani (1993), An Introduction to the Bootstrap, chapter 13.
    """
    means = [sum(values) / len(values) for values in rewards.values() if values]
    if not means:
        return None
    if is_binary(rewards):
        return _binary_estimate(means, sum(len(values) for values in rewards.values()))
    return _bootstrap_estimate(means)


def is_binary(rewards: Rewards) -> bool:
    """Return whether every reward is 0 or 1."""
    return all(value in (0.0, 1.0) for values in rewards.values() for value in values)


def wilson(share: float, count: float) -> tuple[float, float]:
    """Return Wilson's 95 % score interval of a share.

    Args:
        share: Successes over trials.
        count: Trials; need not be whole.

    Example:
        >>> low, high = wilson(0.8, 10)
        >>> f"{low:.4f} {high:.4f}"
        '0.4902 0.9433'
    """
    spread = _Z95**2 / count
    center = (share + spread / 2.0) / (1.0 + spread)
    half = _Z95 / (1.0 + spread) * math.sqrt(share * (1.0 - share) / count + spread / (4.0 * count))
    return max(0.0, center - half), min(1.0, center + half)


def pass_at(rewards: Rewards) -> dict[str, float]:
    """Return pass@k for 1, 2, 4 ... episodes of a task: the chance that one of k succeeds.

    The estimate of a task with c successes in n episodes is ``1 - C(n - c, k) / C(n, k)``, without bias;
    tasks with fewer than k scored episodes are left out.

    Args:
        rewards: By task, each 0 or 1.

    Returns:
        By k as text; empty if rewards are not 0 and 1, or no task has two episodes.

    References:
        Chen et al. (2021), Evaluating large language models trained on code, equation 1.
    """
    most = max((len(values) for values in rewards.values()), default=0)
    if most < 2 or not is_binary(rewards):
        return {}
    shares = {}
    for k in sorted({2**power for power in range(most.bit_length())} | {most}):
        chances = [_chance(len(v), int(sum(v)), k) for v in rewards.values() if len(v) >= k]
        shares[str(k)] = sum(chances) / len(chances)
    return shares


def compare(first: Rewards, second: Rewards) -> Comparison | None:
    """Return how a second policy differs from a first one on the tasks that both have scores for.

    Pairing removes what tasks differ in among themselves, so that the interval is narrower than two
    separate ones suggest. It is a percentile bootstrap over tasks.

    Args:
        first: Rewards of the one, by task.
        second: Rewards of the other.

    Returns:
        None if no task has scores of both.
    """
    common = [task for task, values in first.items() if values and second.get(task)]
    if not common:
        return None
    differences = [_mean(second[task]) - _mean(first[task]) for task in common]
    return Comparison(
        difference=_bootstrap_estimate(differences),
        num_better=sum(value > 0.0 for value in differences),
        num_worse=sum(value < 0.0 for value in differences),
        num_equal=sum(value == 0.0 for value in differences),
    )


def _binary_estimate(means: Sequence[float], num_episodes: int) -> Estimate:
    count, share = len(means), _mean(means)
    variance = sum((value - share) ** 2 for value in means) / max(count - 1, 1) / count
    if variance:
        effective = share * (1.0 - share) / variance
    else:  # all tasks are alike: that says much if episodes differ, and little if all of them agree
        effective = math.inf if 0.0 < share < 1.0 else float(count)
    low, high = wilson(share, min(max(effective, count), num_episodes))
    return Estimate(mean=share, low=low, high=high, method="wilson", num_tasks=count)


def _bootstrap_estimate(values: Sequence[float]) -> Estimate:
    count = len(values)
    if count < 2:
        return Estimate(mean=_mean(values), low=None, high=None, method="none", num_tasks=count)
    chosen = np.random.default_rng(_SEED).integers(count, size=(_NUM_RESAMPLES, count))
    low, high = np.quantile(np.asarray(values)[chosen].mean(axis=1), (0.025, 0.975))
    return Estimate(mean=_mean(values), low=float(low), high=float(high), method="bootstrap", num_tasks=count)


def _chance(num_episodes: int, num_successes: int, k: int) -> float:
    return 1.0 - math.comb(num_episodes - num_successes, k) / math.comb(num_episodes, k)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
