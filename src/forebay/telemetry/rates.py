"""Rates per interval and means per episode: the two figures that are most often computed wrongly.

A rate is what happened since the last reading divided by the time since then, never a total over the
last step's time. A mean over episodes divides by the number of episodes, whatever their number of turns
and whether or not an episode reports the metric at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from forebay.clock import Clock


class RateMeter:
    """Events per second since the last reading.

    Padding is not work: count it in a meter of its own, under another name.

    Args:
        clock: Source of time.

    Example:
        >>> from forebay.clock import ManualClock
        >>> clock = ManualClock()
        >>> tokens = RateMeter(clock)
        >>> tokens.add(1000); clock.advance(2.0); tokens.read()
        500.0
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since_s = clock.monotonic_s()
        self._count = 0.0
        self._total = 0.0

    @property
    def total(self) -> float:
        """Events since the meter was made."""
        return self._total

    def add(self, count: float) -> None:
        """Count events."""
        self._count += count
        self._total += count

    def read(self) -> float | None:
        """Return events per second since the last reading and begin anew; None if no time has passed."""
        now_s = self._clock.monotonic_s()
        duration_s = now_s - self._since_s
        if duration_s <= 0:
            return None
        rate = self._count / duration_s
        self._since_s, self._count = now_s, 0.0
        return rate


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


def mean_reward(rewards: Sequence[float | None]) -> float | None:
    """Return the mean reward of the episodes that could be scored; None if there is none.

    Unlike a metric that an episode does not report, a missing reward is not 0.

    Args:
        rewards: One per episode; None where it could not be scored.

    Example:
        >>> mean_reward([1.0, None, 0.0])
        0.5
    """
    scored = [reward for reward in rewards if reward is not None]
    return sum(scored) / len(scored) if scored else None
