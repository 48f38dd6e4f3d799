"""Exact percentiles of a few numbers, under the names that metrics files use."""

from __future__ import annotations

import math
from collections.abc import Sequence

_FRACTIONS = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


def percentile(values: Sequence[float], fraction: float) -> float:
    """Return the least value that `fraction` (0 to 1) of the values do not exceed: the nearest rank.

    Args:
        values: In any order, at least one.
        fraction: 0 to 1.

    Example:
        >>> percentile([3.0, 1.0, 2.0, 4.0], 0.5)
        2.0
    """
    return _nearest_rank(sorted(values), fraction)


def latency_values(name: str, values: Sequence[float]) -> dict[str, float]:
    """Return `NAME.p50`, `.p95`, `.p99` and `.max` of latencies; nothing if there are none."""
    return _percentiles(name, values) | {f"{name}.max": max(values)} if values else {}


def length_values(name: str, values: Sequence[float]) -> dict[str, float]:
    """Return `NAME.p50`, `.p95`, `.p99` and `.mean` of lengths; nothing if there are none."""
    return _percentiles(name, values) | {f"{name}.mean": sum(values) / len(values)} if values else {}


def _percentiles(name: str, values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {f"{name}.{label}": _nearest_rank(ordered, fraction) for label, fraction in _FRACTIONS.items()}


def _nearest_rank(ordered: Sequence[float], fraction: float) -> float:
    return ordered[max(1, math.ceil(fraction * len(ordered))) - 1]
