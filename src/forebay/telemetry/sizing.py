"""The arithmetic of a busy learner: how many episodes, how much staleness, how large a group.

Words: B episodes a batch; L + W the learner's own time per batch, everything but waiting for data; E[T] the
mean time of an episode. A learner that never waits takes ``lambda = B / (L + W)`` episodes a second; by
Little's law ``N* = lambda * E[T]`` of them must be in flight; a group that takes ``T_group`` is older than
``T_group / (L + W)`` batches when it is trained, half a batch more on average.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Final

_P95_SCORE: Final = NormalDist().inv_cdf(0.95)
_MAX_GROUP_SIZE: Final = 64


def episodes_needed(episodes_per_batch: float, cycle_s: float, episode_s: float) -> int:
    """Return ``N* = lambda * E[T]``, the episodes in flight that keep a learner busy.

    Args:
        episodes_per_batch: B.
        cycle_s: L + W.
        episode_s: E[T].

    Example:
        >>> episodes_needed(64, 4.0, 5.9)
        95
    """
    return math.ceil(episodes_per_batch / cycle_s * episode_s)


def staleness_needed(group_s: float, cycle_s: float, updates_per_batch: int = 1) -> int:
    """Return ``S_min``, the staleness at which a group that takes `group_s` is still trained in time.

    Args:
        group_s: Time of a group.
        cycle_s: L + W, per batch.
        updates_per_batch: Versions per batch.

    Example:
        >>> staleness_needed(23.0, 2.0)
        12
    """
    return math.ceil(updates_per_batch * (group_s / cycle_s + 0.5))


def slowest_of(count: int, p50_s: float, p95_s: float) -> float:
    """Return about how long the slowest of `count` episodes takes.

    It is the quantile ``count / (count + 1)`` of the lognormal distribution with this median and p95.

    Example:
        >>> round(slowest_of(19, 2.0, 6.0), 3)  # 19 / 20 is p95 itself
        6.0
    """
    score = NormalDist().inv_cdf(count / (count + 1))
    return p50_s * math.exp(math.log(max(p95_s, p50_s) / p50_s) * score / _P95_SCORE)


def group_size_needed(success: float) -> int | None:
    """Return the least group size at which half the groups have unequal rewards, for a reward of 0 or 1.

    Args:
        success: Share of episodes that succeed, alike for all tasks.

    Returns:
        The least G with ``p ** G + (1 - p) ** G <= 1/2``; None if there is none up to 64.

    Example:
        >>> group_size_needed(0.05)
        14
    """
    sizes = range(2, _MAX_GROUP_SIZE + 1)
    return next((size for size in sizes if success**size + (1 - success) ** size <= 0.5), None)
