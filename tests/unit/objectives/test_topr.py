from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from forebay.objectives.surrogate import PolicyTokens
from forebay.objectives.topr import topr

# Sequences with products of ratios 0.25, 4, 0.25 and 4; the first two are bad, the others good.
LOG_RATIOS = jnp.log(jnp.array([[0.5, 0.5, 2.0, 2.0, 0.25, 1.0, 4.0, 1.0]]))
SEGMENTS = jnp.array([[1, 1, 2, 2, 3, 3, 4, 4]], jnp.int32)
ADVANTAGES = jnp.array([[-1.0] * 4 + [1.0] * 4])
BEHAVIOR = jnp.full((1, 8), -3.0)


def loss(logprobs: jax.Array):
    tokens = PolicyTokens(logprobs, logprobs, BEHAVIOR, ADVANTAGES, jnp.ones((1, 8), bool), SEGMENTS)
    terms = topr(tokens)
    return jnp.sum(terms.loss), terms


def test_good_sequences_count_fully_and_bad_ones_by_their_likelihood() -> None:
    slope, terms = jax.grad(loss, has_aux=True)(BEHAVIOR + LOG_RATIOS)
    np.testing.assert_allclose(terms.weight, [[0.25, 0.25, 1, 1, 1, 1, 1, 1]], rtol=1e-5)
    np.testing.assert_allclose(slope, -terms.weight * ADVANTAGES, rtol=1e-6)
    np.testing.assert_array_equal(terms.capped, [[False, False, True, True, False, False, False, False]])
    np.testing.assert_allclose(terms.ratio[0, ::2], [0.25, 4, 0.25, 4], rtol=1e-5)


def test_a_long_bad_answer_that_became_unlikely_stops_pushing() -> None:
    far = jnp.full((1, 8), -200.0)
    slope, terms = jax.grad(loss, has_aux=True)(far)
    assert np.isfinite(slope).all()
    np.testing.assert_allclose(slope[0, :4], 0.0, atol=1e-8)
    assert np.isfinite(terms.loss).all()
