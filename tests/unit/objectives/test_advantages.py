from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.objectives.advantages import group_mean, group_mean_std, leave_one_out

REWARDS = st.lists(st.none() | st.floats(-1e3, 1e3) | st.just(math.nan), min_size=1, max_size=12)


@given(REWARDS)
def test_every_estimator_is_finite_and_zero_where_unscored(rewards: list[float | None]) -> None:
    for estimator in (group_mean, group_mean_std, leave_one_out):
        result = estimator(rewards)
        assert result.advantages.dtype == np.float64
        assert np.isfinite(result.advantages).all()
        assert (result.advantages[~result.scored] == 0).all()


@given(REWARDS, st.randoms(use_true_random=False))
def test_order_of_members_does_not_matter(rewards: list[float | None], random: object) -> None:
    order = list(range(len(rewards)))
    random.shuffle(order)  # type: ignore[attr-defined]
    shuffled = group_mean([rewards[i] for i in order]).advantages
    np.testing.assert_allclose(shuffled, group_mean(rewards).advantages[order], rtol=1e-5, atol=1e-4)


def test_group_with_one_scored_member_teaches_nothing() -> None:
    result = leave_one_out([None, 3.0, math.nan])
    assert result.advantages.tolist() == [0.0, 0.0, 0.0]
    assert result.scored.tolist() == [False, True, False]
    assert result.zero_spread


def test_group_without_any_score_is_not_counted_as_equal() -> None:
    result = group_mean([None, None])
    assert result.scored.tolist() == [False, False]
    assert not result.zero_spread
    assert math.isnan(result.reward_mean)


def test_differences_far_below_float32_still_count() -> None:
    result = group_mean([1e6, 1e6 + 1e-3])
    np.testing.assert_allclose(result.advantages, [-5e-4, 5e-4], rtol=1e-6)


def test_rewards_must_be_numbers() -> None:
    with pytest.raises(ValueError, match="could not convert"):
        group_mean(["high", 0.0])  # type: ignore[list-item]
