"""Means per episode: a mean over episodes divides by their number, whether or not each reports the metric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def mean_over_episodes(metrics: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each metric over all episodes; an episode that lacks a metric counts as 0.

    Args:
        metrics: One mapping per episode, not per turn or row.

    Example:
        >>> mean_over_episodes([{"flagged": 1.0}, {}, {}, {}])
        {'flagged': 0.25}
    """
    names = sorted({name for episode in metrics for name in episode})
    return {name: sum(episode.get(name, 0.0) for episode in metrics) / len(metrics) for name in names}
