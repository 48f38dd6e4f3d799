from __future__ import annotations

import math

import numpy as np
import pytest

from forebay.objectives.m2po import second_moment_bound


def test_within_the_limit_there_is_no_bound() -> None:
    assert second_moment_bound(np.array([0.1, -0.1, 0.3]), np.ones(3), limit=0.05) == math.inf
    assert second_moment_bound(np.zeros(0), np.zeros(0), limit=0.05) == math.inf


def test_only_tokens_that_a_clip_could_stop_count() -> None:
    moved = np.array([0.1, 0.2, -3.0, 5.0, 4.0])
    advantages = np.array([1.0, 1.0, 1.0, -1.0, 0.0])
    assert second_moment_bound(moved, advantages, limit=0.03) == math.inf
    # .01 + min(.04, t) = .02 over two tokens.
    assert second_moment_bound(moved, advantages, limit=0.01) == pytest.approx(0.1)
    assert second_moment_bound(-moved, -advantages, limit=0.01) == pytest.approx(0.1)


@pytest.mark.parametrize("limit", [1e-4, 0.004, 0.04, 0.4])
def test_cut_at_the_bound_the_mean_square_is_the_limit(limit: float) -> None:
    moved = np.abs(np.random.default_rng(3).standard_normal(501))
    bound = second_moment_bound(moved, np.ones(501), limit=limit)
    assert np.mean(np.minimum(moved, bound) ** 2) == pytest.approx(limit)


def test_an_outlier_narrows_the_bound_for_itself_alone() -> None:
    moved = np.array([0.05] * 99 + [8.0])
    bound = second_moment_bound(moved, np.ones(100), limit=0.04)
    assert 0.05 < bound < 8.0
    assert bound == pytest.approx(math.sqrt(4.0 - 99 * 0.05**2))
