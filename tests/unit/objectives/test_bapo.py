from __future__ import annotations

import numpy as np
import pytest

from forebay.objectives.bapo import BalanceRange, balanced_bounds

WITHIN = BalanceRange(low=0.6, low_end=0.8, high=1.2, high_end=2.0, step=0.05)


def bounds(ratios: list[float], advantages: list[float], target: float) -> tuple[float, float]:
    return balanced_bounds(np.array(ratios), np.array(advantages), within=WITHIN, target=target)


def test_a_balanced_update_keeps_the_first_bounds() -> None:
    assert bounds([1.0, 1.0], [1.0, -1.0], 1.0) == (0.6, 1.2)
    assert bounds([3.0], [1.0], 5.0) == (0.6, 1.2)


def test_the_upper_bound_rises_just_until_the_target_is_met() -> None:
    # The bad token counts 1.49, the good one up to its bound.
    low, high = bounds([5.0, 1.49], [1.0, -1.0], 1.0)
    assert (low, high) == (pytest.approx(0.8), pytest.approx(1.5))


def test_out_of_reach_both_end_as_high_as_they_may() -> None:
    assert bounds([1.0, 1.0], [1.0, -3.0], 1.0) == (0.8, 2.0)
    assert bounds([1.0], [-1.0], 1.0) == (0.8, 2.0)


def test_a_bad_token_counts_at_least_as_much_as_its_bound() -> None:
    # 0.8 of the bad token, however unlikely it has become: and twice that is what the good one is to reach.
    assert bounds([5.0, 0.1], [1.0, -1.01], 2.0) == (pytest.approx(0.8), pytest.approx(1.65))
