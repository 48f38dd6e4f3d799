from __future__ import annotations

import math

import numpy as np
import pytest

from forebay.errors import RecordError
from forebay.objectives.vtrace import vtrace

TWO = np.array([2])


def test_what_the_policy_would_hardly_do_now_teaches_its_value_nothing() -> None:
    log_ratios = np.array([-40.0, -40.0])
    credit = vtrace(log_ratios, np.array([0.0, 1.0]), np.array([0.25, 0.5]), np.zeros(1), TWO)
    np.testing.assert_allclose(credit.targets, [0.25, 0.5], atol=1e-15)
    # The advantage of the last token is what it gained: that it is unlikely now is the loss's weight.
    np.testing.assert_allclose(credit.advantages, [0.25, 0.5], atol=1e-15)


def test_the_caps_bound_what_became_likelier() -> None:
    given = (np.full(2, math.log(3.0)), np.array([0.0, 1.0]), np.zeros(2), np.zeros(1), TWO)
    np.testing.assert_allclose(vtrace(*given, rho_cap=1.0, c_cap=1.0).targets, [1.0, 1.0])
    np.testing.assert_allclose(vtrace(*given, rho_cap=2.0, c_cap=1.0).targets, [2.0, 2.0])
    np.testing.assert_allclose(vtrace(*given, rho_cap=2.0, c_cap=1.5).targets, [3.0, 2.0])
    np.testing.assert_allclose(vtrace(*given, rho_cap=math.inf, c_cap=math.inf).targets, [9.0, 3.0])


def test_arrays_of_other_episodes_are_refused() -> None:
    with pytest.raises(RecordError, match="log_ratios must hold one value per token"):
        vtrace(np.zeros(1), np.zeros(2), np.zeros(2), np.zeros(1), TWO)
