from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from forebay.objectives.corrections import geometric_rejection, icepop, truncated_weight
from forebay.objectives.surrogate import PolicyTokens


def tokens_with_weights(weights: list[float], mask: list[bool], segments: list[int]) -> PolicyTokens:
    behavior = -jnp.log(jnp.array([weights], dtype=jnp.float32))
    zeros = jnp.zeros_like(behavior)
    return PolicyTokens(zeros, zeros, behavior, zeros, jnp.array([mask]), jnp.array([segments], jnp.int32))


def test_truncated_weight_caps_in_log_space_without_gradient() -> None:
    log_weights = jnp.log(jnp.array([[0.25, 1.0, 2.5]]))
    weights, capped = truncated_weight(log_weights, 2.0)
    np.testing.assert_allclose(weights, [[0.25, 1.0, 2.0]], rtol=1e-6)
    np.testing.assert_array_equal(capped, [[False, False, True]])
    slope = jax.grad(lambda x: jnp.sum(truncated_weight(x, 2.0)[0]))(log_weights)
    np.testing.assert_array_equal(slope, [[0.0, 0.0, 0.0]])


@pytest.mark.parametrize("cap", [None, math.inf])
def test_truncated_weight_without_a_cap(cap: float | None) -> None:
    weights, capped = truncated_weight(jnp.log(jnp.array([[30.0]])), cap)
    assert weights[0, 0] == pytest.approx(30.0)
    assert not capped[0, 0]


def test_geometric_rejection_takes_whole_sequences_by_their_mean() -> None:
    # Means: sqrt(4 * 0.25) = 1, sqrt(4 * 2) = 2.83, and 0.25 over its only fresh token.
    tokens = tokens_with_weights([4.0, 0.25, 4.0, 2.0, 0.25, 100.0], [True] * 5 + [False], [1, 1, 2, 2, 3, 3])
    kept = geometric_rejection(tokens, low=0.5, high=2.0)
    np.testing.assert_array_equal(kept, [[True, True, False, False, False, False]])
    np.testing.assert_array_equal(geometric_rejection(tokens, low=0.0, high=2.0)[0, 4:], [True, True])
    np.testing.assert_array_equal(geometric_rejection(tokens, low=0.5, high=None)[0, 2:4], [True, True])


def test_icepop_takes_single_tokens() -> None:
    tokens = tokens_with_weights([0.4, 0.6, 4.9, 5.1], [True] * 4, [1] * 4)
    np.testing.assert_array_equal(icepop(tokens, low=0.5, high=5.0), [[False, True, True, False]])
    np.testing.assert_array_equal(icepop(tokens, low=None, high=math.inf), [[True] * 4])
