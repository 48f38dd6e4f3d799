"""Times of one pinned thread, and ratios of what took turns in the same run.

A shared machine is not equally fast from one minute to the next. What is compared therefore takes turns, and
the ratio is taken within a round, before any median. CPU time stands beside the time on the wall: on one
pinned thread they differ by what other processes took of the core.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

_CONFIDENCE = 0.95


class Timed(NamedTuple):
    """How long something took.

    Attributes:
        wall_s: On the wall.
        cpu_s: Of all threads of this process.
    """

    wall_s: float
    cpu_s: float


class Spread(NamedTuple):
    """The median of some figures, and the two of them that hold the true one.

    Attributes:
        median: Of all.
        low: The figure that the true median is not below, with `confidence`.
        high: The figure that it is not above.
        count: How many there are.
        confidence: That both hold; below 0.95 where there are too few for more.
    """

    median: float
    low: float
    high: float
    count: int
    confidence: float


def timed(work: Callable[[], Any]) -> Timed:
    """Do something, which returns when it is done, and time it."""
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    work()
    return Timed(time.perf_counter() - began_s, time.process_time() - began_cpu_s)


def spread(values: Sequence[float]) -> Spread:
    """Return the median and the order statistics that hold the true median with 95 % confidence.

    The number of values below the true median is binomial, whatever their distribution: no figure is thrown
    away, and a few outliers move the bounds by no more than their number.

    Raises:
        ValueError: There is no value.

    References:
        Conover 1999, Practical nonparametric statistics, section 3.2 (quantiles by order statistics).

    Example:
        >>> spread([3.0, 1.0, 2.0])
        Spread(median=2.0, low=1.0, high=3.0, count=3, confidence=0.75)
    """
    if not values:
        raise ValueError("no value to take the median of")
    ordered, count = sorted(values), len(values)
    rank = 0
    while rank + 1 < (count + 1) // 2 and _inside(count, rank + 1) >= _CONFIDENCE:
        rank += 1
    return Spread(
        statistics.median(ordered), ordered[rank], ordered[count - 1 - rank], count, _inside(count, rank)
    )


def _inside(count: int, rank: int) -> float:
    """Return how likely the true median lies between the order statistics `rank` from either end."""
    return 1 - 2 * sum(math.comb(count, below) for below in range(rank + 1)) / 2**count


def in_turns(works: dict[str, Callable[[], Timed]], num_rounds: int) -> dict[str, list[Timed]]:
    """Let each work take its turn in every round; every other round goes the other way.

    Args:
        works: By name; each says how long it took.
        num_rounds: Rounds.
    """
    taken: dict[str, list[Timed]] = {name: [] for name in works}
    for number in range(num_rounds):
        for name in list(works)[:: 1 if number % 2 == 0 else -1]:
            taken[name].append(works[name]())
    return taken


def ratios(above: Sequence[Timed], below: Sequence[Timed]) -> dict[str, Spread]:
    """Return the ratio of the times of two works, round by round, on the wall and in CPU time."""
    pairs = list(zip(above, below, strict=True))
    return {
        "wall": spread([one.wall_s / other.wall_s for one, other in pairs]),
        "cpu": spread([one.cpu_s / other.cpu_s for one, other in pairs]),
    }
