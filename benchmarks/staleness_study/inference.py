"""What paired seeds say: differences, their intervals, and whether a reward is non-inferior."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from scipy.special import stdtrit

Verdict = Literal["non-inferior", "inferior", "undecided", "too few seeds"]
_LEVEL = 0.95


class Mean(NamedTuple):
    """A mean over seeds with its two-sided 95 % interval.

    Attributes:
        mean: The mean.
        low: Lower end; -inf with fewer than two seeds.
        high: Upper end.
        count: Seeds.
    """

    mean: float
    low: float
    high: float
    count: int


class Difference(NamedTuple):
    """How a treatment compares with the baseline, seed by seed.

    Attributes:
        mean: Mean of treatment - baseline over the seeds that both have.
        low: One-sided 95 % lower bound of it.
        high: One-sided 95 % upper bound of it.
        count: Seeds.
        verdict: `non-inferior` if low lies above -margin; `inferior` if high lies below it; else `undecided`.
    """

    mean: float
    low: float
    high: float
    count: int
    verdict: Verdict


def mean_of(values: Sequence[float]) -> Mean:
    """Return a mean with its two-sided 95 % Student interval.

    Example:
        >>> mean_of([0.5, 0.7])._replace(low=0.0, high=0.0)
        Mean(mean=0.6, low=0.0, high=0.0, count=2)
    """
    half = _half_width(values, (1.0 + _LEVEL) / 2.0)
    mean = statistics.fmean(values)
    return Mean(mean, mean - half, mean + half, len(values))


def compare(treatment: Mapping[int, float], baseline: Mapping[int, float], margin: float) -> Difference:
    """Judge non-inferiority by a paired, one-sided Student interval.

    Args:
        treatment: Reward by seed.
        baseline: Reward by seed, of runs with the same tasks and sampling seeds.
        margin: How much less still counts as equal, in units of reward; fixed beforehand.

    References:
        Piaggio et al. 2012, Reporting of noninferiority and equivalence randomized trials (CONSORT).
    """
    differences = [treatment[seed] - baseline[seed] for seed in sorted(set(treatment) & set(baseline))]
    if len(differences) < 2:
        mean = differences[0] if differences else math.nan
        return Difference(mean, -math.inf, math.inf, len(differences), "too few seeds")
    mean, half = statistics.fmean(differences), _half_width(differences, _LEVEL)
    verdict: Verdict = "undecided"
    if mean - half > -margin:
        verdict = "non-inferior"
    elif mean + half < -margin:
        verdict = "inferior"
    return Difference(mean, mean - half, mean + half, len(differences), verdict)


def _half_width(values: Sequence[float], probability: float) -> float:
    count = len(values)
    if count < 2:
        return math.inf
    return float(stdtrit(count - 1, probability)) * statistics.stdev(values) / math.sqrt(count)
