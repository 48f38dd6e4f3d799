"""The arithmetic of an audit: rates with intervals, heavy tails, and the knee."""

from __future__ import annotations

import math
import random
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal, Protocol, TypeVar

import msgspec

from forebay.planner.distribution import TAIL_SHARE, sampled

KneeKind = Literal["scales", "bends", "saturates", "instant", "unknown"]
TOLERANCE: Final = 0.1
_MIN_SLICES, _MAX_SLICES = 4, 10
_RESAMPLES: Final = 500
# Student's t for a two-sided 95 % interval, by degrees of freedom, 1 to 9.
_STUDENT: Final = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


class Estimate(msgspec.Struct, frozen=True):
    """A number and its 95 % interval.

    Args:
        value: The number.
        low: Lower end.
        high: Upper end.
    """

    value: float
    low: float
    high: float


class Timed(Protocol):
    """Something that began and ended, in seconds since its level began."""

    @property
    def began_s(self) -> float:
        """When it began."""
        ...

    @property
    def ended_s(self) -> float:
        """When it ended."""
        ...


TimedT = TypeVar("TimedT", bound=Timed)


class Tail(msgspec.Struct, frozen=True, kw_only=True):
    """How heavy an upper tail is: `P(X > x)` falls like `x ** -index`.

    Args:
        index: The tail index; at 2 or less the variance is infinite, at 1 or less the mean is.
        low: Lower end of its 95 % interval.
        high: Upper end.
        num_samples: Samples in all.
        num_tail: Largest samples that were used.
    """

    index: float
    low: float
    high: float
    num_samples: int
    num_tail: int


class Knee(msgspec.Struct, frozen=True, kw_only=True):
    """Where more concurrency only adds latency.

    Args:
        kind: `scales`: throughput grew with concurrency up to the highest level. `bends`: it still grew
            there, but by clearly less than in proportion. `saturates`: it stopped growing below. `instant`:
            the environment is too fast to tell. `unknown`: there is one level, or nothing was answered.
        concurrency: Least level within 10 % of the best throughput.
        certainty: Share of resamples that put it at the same level.
        saturation: Episodes that would give the best throughput if none disturbed another.
        efficiency: Throughput per episode at the highest level, relative to the lowest.
    """

    kind: KneeKind
    concurrency: int
    certainty: float
    saturation: float
    efficiency: Estimate


def slice_rates(
    calls: Sequence[TimedT], window_s: float, weight: Callable[[TimedT], float] = lambda _: 1.0
) -> list[float]:
    """Return answers per second in equal slices of a window, without its first slice, the run-in.

    A call counts in proportion to the part of its time that lies in a slice, so that the edges of a slice
    make no difference: with always one call in flight, of mean duration `m`, the expected rate is `1/m`. A
    slice is no shorter than a mean call where four or more fit, so that neighbors are nearly independent.

    Args:
        calls: Answered calls.
        window_s: Length of the window in seconds.
        weight: What a call counts, for instance its tokens.

    Returns:
        4 to 10 rates; none for an empty window.

    Example:
        >>> from forebay.planner.audit_records import Call
        >>> slice_rates([Call("step", float(i), i + 1.0, True) for i in range(20)], 10.0)[:3]
        [1.0, 1.0, 1.0]
    """
    if window_s <= 0.0:
        return []
    mean_s = statistics.fmean(call.ended_s - call.began_s for call in calls) if calls else 0.0
    wanted = int(window_s / mean_s) - 1 if mean_s else _MAX_SLICES
    num_slices = min(_MAX_SLICES, max(_MIN_SLICES, wanted)) + 1
    slice_s = window_s / num_slices
    counts = [0.0] * num_slices
    for call in calls:
        first = max(0, int(call.began_s / slice_s))
        for i in range(first, min(num_slices, int(call.ended_s / slice_s) + 1)):
            counts[i] += weight(call) * _part_within(call, i * slice_s, (i + 1) * slice_s)
    return [count / slice_s for count in counts[1:]]


def _part_within(call: Timed, low_s: float, high_s: float) -> float:
    overlap_s = min(call.ended_s, high_s) - max(call.began_s, low_s)
    duration_s = call.ended_s - call.began_s
    return max(0.0, overlap_s) / duration_s if duration_s > 0.0 else 1.0


def mean_estimate(values: Sequence[float]) -> Estimate:
    """Return a mean with Student's 95 % interval; infinitely wide for fewer than two values.

    Args:
        values: Independent measurements, 10 at most.

    Example:
        >>> mean_estimate([1.0, 3.0])
        Estimate(value=2.0, low=-10.706, high=14.706)
    """
    mean = statistics.fmean(values) if values else 0.0
    if len(values) < 2:
        return Estimate(mean, -math.inf, math.inf)
    half = _STUDENT[len(values) - 2] * statistics.stdev(values) / math.sqrt(len(values))
    return Estimate(mean, mean - half, mean + half)


def tail_index(values: Sequence[float]) -> Tail | None:
    """Estimate the tail index of samples, with its standard error `index / sqrt(num_tail)`.

    Args:
        values: Samples in any order.

    Returns:
        The estimate; None for too few samples, or if the largest are all equal.

    References:
        Hill, "A simple general approach to inference about the tail of a distribution", 1975.
    """
    index = sampled(values, limit=len(values)).tail_index() if values else None
    if index is None:
        return None
    num_tail = int(len(values) * TAIL_SHARE)
    half = 1.96 * index / math.sqrt(num_tail)
    return Tail(
        index=index,
        low=max(0.0, index - half),
        high=index + half,
        num_samples=len(values),
        num_tail=num_tail,
    )


def find_knee(rates: Mapping[int, Sequence[float]], seed: int = 0) -> Knee:
    """Find where throughput stops rising with concurrency.

    The knee is the least level whose mean rate is within 10 % of the best. Slices are resampled with
    replacement, level by level, to see how often it would be found there, and for the interval of the
    efficiency; it counts as less than 1 only if the interval ends below 0.9.

    Args:
        rates: Throughput in slices of time, by episodes at a time.
        seed: Seed of the resampling.

    References:
        Efron and Tibshirani, An Introduction to the Bootstrap, 1993. Saturation: Denning and Buzen, The
        operational analysis of queueing network models, 1978.
    """
    levels = sorted(level for level, slices in rates.items() if slices)
    means = {level: statistics.fmean(rates[level]) for level in levels}
    if not levels or max(means.values()) <= 0.0:
        return Knee(
            kind="unknown", concurrency=0, certainty=0.0, saturation=0.0, efficiency=Estimate(0.0, 0.0, 0.0)
        )
    rng = random.Random(seed)
    places: Counter[int] = Counter()
    efficiencies = []
    for _ in range(_RESAMPLES):
        drawn = {level: statistics.fmean(rng.choices(rates[level], k=len(rates[level]))) for level in levels}
        places[_knee_of(drawn)] += 1
        efficiencies.append(_efficiency(drawn))
    efficiencies.sort()
    knee = _knee_of(means)
    low, high = efficiencies[int(0.025 * _RESAMPLES)], efficiencies[int(0.975 * _RESAMPLES)]
    alone = means[levels[0]] / levels[0]
    return Knee(
        kind=_kind_of(levels, knee, high),
        concurrency=knee,
        certainty=places[knee] / _RESAMPLES,
        saturation=max(means.values()) / alone if alone > 0.0 else float(knee),
        efficiency=Estimate(_efficiency(means), low, high),
    )


def _knee_of(means: Mapping[int, float]) -> int:
    best = max(means.values())
    return min(level for level, mean in means.items() if mean >= (1.0 - TOLERANCE) * best)


def _efficiency(means: Mapping[int, float]) -> float:
    low, high = min(means), max(means)
    alone = means[low] / low
    return means[high] / high / alone if alone > 0.0 else 1.0


def _kind_of(levels: Sequence[int], knee: int, highest_efficiency: float) -> KneeKind:
    if len(levels) < 2:
        return "unknown"
    if knee < levels[-1]:
        return "saturates"
    return "bends" if highest_efficiency < 1.0 - TOLERANCE else "scales"
