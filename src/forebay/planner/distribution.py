"""What was measured many times: the values themselves, or as many that stand for them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from forebay.errors import ConfigError

MAX_VALUES: Final = 1000
TAIL_SHARE: Final = 0.05
_LEAST_TAIL: Final = 10


class Distribution(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Measured values, each as likely as any other.

    Args:
        num_samples: How many were measured.
        mean: Their mean.
        values: Ascending. The samples themselves if there are `num_samples`; else the means of equally many
            neighbors, so that the mean is kept.
    """

    num_samples: int
    mean: float
    values: tuple[float, ...]

    @property
    def max(self) -> float:
        """The largest value that is kept."""
        return self.values[-1]

    @property
    def deviation(self) -> float:
        """The standard deviation of the values."""
        return math.sqrt(math.fsum((value - self.mean) ** 2 for value in self.values) / len(self.values))

    def quantile(self, fraction: float) -> float:
        """Return the least value that `fraction` (0 to 1) of the values do not exceed.

        Example:
            >>> sampled([4.0, 1.0, 2.0, 3.0]).quantile(0.5)
            2.0
        """
        return self.values[max(1, math.ceil(fraction * len(self.values))) - 1]

    def fastest(self, number: int) -> float:
        """Return the mean of the smallest of so many draws, each value as likely as any other.

        Example:
            >>> sampled([0.0, 1.0]).fastest(2)
            0.25
        """
        count = len(self.values)
        return math.fsum(
            value * (((count - index) / count) ** number - ((count - index - 1) / count) ** number)
            for index, value in enumerate(self.values)
        )

    def tail_index(self) -> float | None:
        """Return Hill's estimate of the tail index over the largest twentieth; None for too few values.

        At 2 or less the variance does not exist, at 1 or less not even the mean: a larger sample has a larger
        one, without end.

        References:
            Hill, "A simple general approach to inference about the tail of a distribution", 1975.
        """
        count = int(len(self.values) * TAIL_SHARE)
        if count < _LEAST_TAIL or self.values[-count - 1] <= 0.0:
            return None
        threshold = self.values[-count - 1]
        mean_log = math.fsum(math.log(value / threshold) for value in self.values[-count:]) / count
        return 1.0 / mean_log if mean_log > 0.0 else None

    def scaled(self, factor: float) -> Distribution:
        """Return the distribution of the values times a factor."""
        return Distribution(
            num_samples=self.num_samples,
            mean=self.mean * factor,
            values=tuple(value * factor for value in self.values),
        )


def sampled(values: Iterable[float], limit: int = MAX_VALUES) -> Distribution:
    """Return the distribution of measured values.

    Args:
        values: In any order, at least one, finite.
        limit: The most values to keep.

    Raises:
        ConfigError: There is none, or one is not a finite number of at least 0.

    Example:
        >>> sampled([3.0, 1.0, 2.0, 6.0], limit=2)
        Distribution(num_samples=4, mean=3.0, values=(1.5, 4.5))
    """
    ordered = sorted(values)
    if not ordered:
        raise ConfigError("nothing was measured", got="0 samples", limit="at least 1")
    if not all(math.isfinite(value) and value >= 0.0 for value in ordered):
        raise ConfigError("a measured value is not a finite number of at least 0", got=ordered[-1])
    mean = math.fsum(ordered) / len(ordered)
    return Distribution(num_samples=len(ordered), mean=mean, values=_condensed(ordered, limit))


def constant(value: float) -> Distribution:
    """Return the distribution of a time that is always the same."""
    return sampled([value])


def pooled(parts: Sequence[Distribution]) -> Distribution:
    """Return the distribution of several measurements of the same thing, each by its number of samples.

    Example:
        >>> pooled([sampled([1.0, 3.0]), sampled([5.0])])
        Distribution(num_samples=3, mean=3.0, values=(1.0, 3.0, 5.0))
    """
    num_samples = sum(part.num_samples for part in parts)
    mean = math.fsum(part.mean * part.num_samples for part in parts) / num_samples
    if all(part.num_samples == len(part.values) for part in parts):
        ordered = sorted(value for part in parts for value in part.values)
        return Distribution(num_samples=num_samples, mean=mean, values=_condensed(ordered, MAX_VALUES))
    repeated = sorted(
        part.values[index * len(part.values) // part.num_samples]
        for part in parts
        for index in range(part.num_samples)
    )
    return Distribution(num_samples=num_samples, mean=mean, values=_condensed(repeated, MAX_VALUES))


def check_distribution(found: Distribution, where: str) -> None:
    """Refuse what no measurement can have given.

    Args:
        found: As it was read.
        where: What it is called in its file.

    Raises:
        ConfigError: It has no samples, or a number that cannot be.
    """
    if found.num_samples < 1 or not 1 <= len(found.values) <= found.num_samples:
        raise ConfigError(
            f"{where} has {len(found.values)} values of {found.num_samples} samples",
            limit="1 to num_samples values",
            remedy="Measure it again, or leave the part out.",
        )
    if not (math.isfinite(found.mean) and all(map(math.isfinite, found.values))):
        raise ConfigError(f"{where} has a mean or a value that is not finite", got=found.mean)
    if found.values[0] < 0.0 or list(found.values) != sorted(found.values):
        raise ConfigError(f"{where}.values are not ascending numbers of at least 0")
    actual = math.fsum(found.values) / len(found.values)
    if not math.isclose(found.mean, actual, rel_tol=0.02, abs_tol=1e-9):
        raise ConfigError(
            f"{where}.mean is not the mean of its values", got=found.mean, limit=f"{actual:.6g} within 2 %"
        )


def _condensed(ordered: Sequence[float], limit: int) -> tuple[float, ...]:
    """Return at most so many values, each the mean of an equal share of the ordered ones.

    A sample at the border of two shares counts in both, by its parts: the mean of the values stays the mean.
    """
    if len(ordered) <= limit:
        return tuple(ordered)
    width = len(ordered) / limit
    values: list[float] = []
    for part in range(limit):
        low, high = part * width, (part + 1) * width
        inside = range(int(low), min(len(ordered), math.ceil(high)))
        total = math.fsum(ordered[i] * (min(i + 1.0, high) - max(float(i), low)) for i in inside)
        # Rounding must not make a share less than the one before.
        values.append(max(total / width, values[-1]) if values else total / width)
    return tuple(values)
