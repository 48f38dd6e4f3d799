from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from forebay.errors import RecordError
from forebay.objectives import LossInputs, ObjectiveSettings
from forebay.objectives.a3po import interpolated_logprobs
from forebay.objectives.build import build_objective

CURRENT, BEHAVIOR = jnp.array([[-1.0, -1.0, -1.0, -1.0]]), jnp.array([[-2.0, -2.0, -2.0, -3.0]])
STALENESS = jnp.array([[0, 1, 2, 4]], jnp.int32)


def test_one_version_back_on_the_line_between_the_two_policies() -> None:
    guessed = interpolated_logprobs(CURRENT, BEHAVIOR, STALENESS)
    np.testing.assert_allclose(guessed, [[-1.0, -2.0, -1.5, -1.5]], rtol=1e-6)


def test_it_carries_no_gradient() -> None:
    slope = jax.grad(lambda x: jnp.sum(interpolated_logprobs(x, BEHAVIOR, STALENESS)))(CURRENT)
    np.testing.assert_array_equal(slope, [[0.0] * 4])


def test_it_is_areals_interpolation_by_versions() -> None:
    """AReaL: alpha = (v_proximal - v_behavior) / (v_current - v_behavior), with v_proximal one back."""
    current, behavior = 7, 3
    alpha = (current - 1 - behavior) / (current - behavior)
    expected = -2.5 + alpha * (-0.5 - -2.5)
    guessed = interpolated_logprobs(
        jnp.array([[-0.5]]), jnp.array([[-2.5]]), jnp.array([[current - behavior]], jnp.int32)
    )
    np.testing.assert_allclose(guessed, [[expected]], rtol=1e-6)


def test_a_token_without_a_behavior_logprob_keeps_ratio_and_weight_one() -> None:
    objective = build_objective(ObjectiveSettings(preset="decoupled", proximal="interpolated"))
    lost = jnp.array([[jnp.nan, -2.0, -2.0, -3.0]])
    inputs = LossInputs(
        jnp.array([[True, False, False, False]]),
        jnp.ones((1, 4)),
        lost,
        lost,
        jnp.ones((1, 4), jnp.int32),
        staleness=jnp.full((1, 4), 3, jnp.int32),
    )
    loss, sums = objective(CURRENT, jnp.zeros((1, 4)), inputs, jnp.float32(1))
    assert (float(loss), float(sums.weight_sum), float(sums.ratio_sum)) == (-1.0, 1.0, 1.0)
    assert float(sums.missing_tokens) == 1.0


def test_staleness_must_be_there() -> None:
    objective = build_objective(ObjectiveSettings(preset="decoupled", proximal="interpolated"))
    inputs = LossInputs(jnp.ones((1, 4), bool), CURRENT, BEHAVIOR, BEHAVIOR, jnp.ones((1, 4), jnp.int32))
    with pytest.raises(RecordError, match="needs each token's staleness"):
        objective(CURRENT, jnp.zeros((1, 4)), inputs, jnp.float32(1))
