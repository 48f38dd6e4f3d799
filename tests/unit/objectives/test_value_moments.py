from __future__ import annotations

import numpy as np
import pytest

from forebay.objectives.value_moments import ValueMoments, moments_of


def test_explained_variance_is_that_of_numpy_whatever_is_added_up() -> None:
    rng = np.random.default_rng(2)
    targets = rng.normal(3.0, 1.0, 200)
    values = targets + rng.normal(0.5, 0.7, 200)
    whole = moments_of(values[:70], targets[:70]).plus(moments_of(values[70:], targets[70:]))
    expected = 1 - np.var(targets - values) / np.var(targets)
    assert whole.explained_variance == pytest.approx(expected, rel=1e-10)
    assert (whole.tokens, whole.value_mean) == (200, pytest.approx(values.mean()))
    assert whole.target_mean == pytest.approx(targets.mean())


def test_a_critic_that_is_wrong_by_a_constant_explains_everything() -> None:
    targets = np.array([0.0, 1.0, 2.0])
    assert moments_of(targets - 5.0, targets).explained_variance == pytest.approx(1.0)
    assert moments_of(-targets, targets).explained_variance == pytest.approx(-3.0)


def test_nothing_to_explain_is_no_figure() -> None:
    assert moments_of(np.array([0.1, 0.2]), np.array([0.3, 0.3])).explained_variance is None
    assert moments_of(np.zeros(2), np.zeros(2)).explained_variance is None
    empty = ValueMoments()
    assert (empty.explained_variance, empty.value_mean, empty.target_mean) == (None, None, None)
