"""How good a critic's values were, as sums that add over the parts of a batch. No array library is needed."""

from __future__ import annotations

from typing import NamedTuple

from forebay.objectives.episodes import FloatArray


class ValueMoments(NamedTuple):
    """Float64 sums over trained tokens, of values before an update and of what they should have been.

    Attributes:
        tokens: How many.
        value_sum: Values.
        target_sum: Targets.
        target_sq_sum: Their squares.
        error_sum: Targets less values.
        error_sq_sum: Their squares.
    """

    tokens: int = 0
    value_sum: float = 0.0
    target_sum: float = 0.0
    target_sq_sum: float = 0.0
    error_sum: float = 0.0
    error_sq_sum: float = 0.0

    def plus(self, other: ValueMoments) -> ValueMoments:
        """Return the sums over both parts."""
        tokens, *sums = (mine + its for mine, its in zip(self, other, strict=True))
        return ValueMoments(int(tokens), *sums)

    @property
    def value_mean(self) -> float | None:
        """Mean value; None without tokens."""
        return self.value_sum / self.tokens if self.tokens else None

    @property
    def target_mean(self) -> float | None:
        """Mean target; None without tokens."""
        return self.target_sum / self.tokens if self.tokens else None

    @property
    def explained_variance(self) -> float | None:
        """`1 - var(target - value) / var(target)`: 1 for a perfect critic, 0 for one that knows the mean.

        Below 0 it is worse than a constant. None where the targets do not vary.
        """
        if not self.tokens:
            return None
        spread = _variance(self.tokens, self.target_sum, self.target_sq_sum)
        # Sums of squares of float64 leave a residue where all targets are equal.
        if spread <= 1e-12 * max(self.target_sq_sum / self.tokens, 1e-300):
            return None
        return 1.0 - _variance(self.tokens, self.error_sum, self.error_sq_sum) / spread


def moments_of(values: FloatArray, targets: FloatArray) -> ValueMoments:
    """Sum the values and targets of some tokens.

    Args:
        values: [F] float64, before the update.
        targets: [F] float64.

    Example:
        >>> import numpy as np
        >>> moments_of(np.array([0.5, 0.5]), np.array([1.0, 0.0])).explained_variance
        0.0
    """
    errors = targets - values
    return ValueMoments(
        len(values),
        float(values.sum()),
        float(targets.sum()),
        float((targets**2).sum()),
        float(errors.sum()),
        float((errors**2).sum()),
    )


def _variance(count: int, total: float, square_total: float) -> float:
    return max(square_total / count - (total / count) ** 2, 0.0)
