"""A histogram of latencies: bounded memory, known error, mergeable between processes."""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

# Neighboring bucket borders differ by 2 %, so that a percentile is within 1 % of the exact one.
_GROWTH_LOG = math.log(1.02)
_SMALLEST = 1e-6
_LARGEST = 1e9


class HistogramSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a histogram, in the unit of its values; zeros if it is empty."""

    count: int
    mean: float
    p50: float
    p95: float
    p99: float
    max: float


class Histogram(msgspec.Struct, kw_only=True):
    """Counts values in buckets of logarithmic width; values outside 1e-6 .. 1e9 count as the nearest border.

    Percentiles are within 1 % of the exact ones; count, mean, least and largest are exact. It travels as
    JSON or MessagePack as it is.

    Example:
        >>> latencies_s = Histogram()
        >>> for latency_s in (0.1, 0.2, 10.0):
        ...     latencies_s.add(latency_s)
        >>> latencies_s.summary().max
        10.0
    """

    counts: dict[int, int] = {}
    count: int = 0
    total: float = 0.0
    smallest: float = 0.0
    largest: float = 0.0

    def add(self, value: float) -> None:
        """Count one value.

        Raises:
            ValueError: The value is negative or not finite.
        """
        if not 0 <= value < math.inf:
            raise ValueError(f"a latency must be finite and at least 0 (got {value})")
        clipped = min(max(value, _SMALLEST), _LARGEST)
        bucket = math.floor(math.log(clipped) / _GROWTH_LOG)
        self.counts[bucket] = self.counts.get(bucket, 0) + 1
        self.smallest = min(self.smallest, value) if self.count else value
        self.count += 1
        self.total += value
        self.largest = max(self.largest, value)

    def percentile(self, fraction: float) -> float:
        """Return the value that `fraction` (0 to 1) of the values do not exceed; 0 if there is none."""
        rank = max(1, math.ceil(fraction * self.count))
        seen = 0
        for bucket in sorted(self.counts):
            seen += self.counts[bucket]
            if seen >= rank:
                middle = math.exp((bucket + 0.5) * _GROWTH_LOG)
                return min(max(middle, self.smallest), self.largest)
        return 0.0

    def summary(self) -> HistogramSummary:
        """Return count, mean, percentiles and largest value."""
        return HistogramSummary(
            count=self.count,
            mean=self.total / self.count if self.count else 0.0,
            p50=self.percentile(0.5),
            p95=self.percentile(0.95),
            p99=self.percentile(0.99),
            max=self.largest,
        )


def merge(histograms: Iterable[Histogram]) -> Histogram:
    """Return the histogram of all values of all histograms."""
    merged = Histogram()
    filled = [histogram for histogram in histograms if histogram.count]
    for histogram in filled:
        for bucket, count in histogram.counts.items():
            merged.counts[bucket] = merged.counts.get(bucket, 0) + count
        merged.count += histogram.count
        merged.total += histogram.total
        merged.largest = max(merged.largest, histogram.largest)
    merged.smallest = min((histogram.smallest for histogram in filled), default=0.0)
    return merged
