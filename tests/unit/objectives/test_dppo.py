from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from forebay.objectives.dppo import dppo
from forebay.objectives.surrogate import PolicyTokens

# Probabilities: a rare token ten times likelier, a likely one .2 likelier, the same two moved down.
CURRENT = jnp.log(jnp.array([[0.01, 0.9, 0.001, 0.7]]))
BEHAVIOR = jnp.log(jnp.array([[0.001, 0.7, 0.01, 0.9]]))


def terms_of(advantage: float, logprobs: jax.Array = CURRENT, cap: float | None = 20.0):
    advantages = jnp.full((1, 4), advantage)
    mask, segments = jnp.ones((1, 4), bool), jnp.ones((1, 4), jnp.int32)
    tokens = PolicyTokens(logprobs, logprobs, BEHAVIOR, advantages, mask, segments)
    return dppo(tokens, tv_limit=0.15, cap=cap)


def test_a_rare_token_is_not_held_back_and_a_likely_one_is() -> None:
    np.testing.assert_array_equal(terms_of(1.0).clipped, [[False, True, False, False]])
    np.testing.assert_array_equal(terms_of(-1.0).clipped, [[False, False, False, True]])
    assert not terms_of(0.0).clipped.any()


def test_the_gradient_is_the_weight_where_it_may_move() -> None:
    slope = jax.grad(lambda logprobs: jnp.sum(terms_of(1.0, logprobs).loss))(CURRENT)
    np.testing.assert_allclose(slope, [[-10.0, 0.0, -0.1, -0.7 / 0.9]], rtol=1e-5)


def test_the_weight_is_capped_and_counted() -> None:
    terms = terms_of(1.0, cap=2.0)
    np.testing.assert_allclose(terms.weight[0, 0], 2.0, rtol=1e-6)
    np.testing.assert_array_equal(terms.capped, [[True, False, False, False]])
