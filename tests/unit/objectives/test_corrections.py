from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from forebay.objectives.corrections import (
    geometric_rejection,
    icepop,
    sequence_mis,
    sequence_tis,
    token_mis,
    token_tis,
    truncated_weight,
    uncorrected,
)
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


# Products: 1, 8 and, over its only fresh token, 0.25.
THREE = tokens_with_weights([4.0, 0.25, 4.0, 2.0, 0.25, 100.0], [True] * 5 + [False], [1, 1, 2, 2, 3, 3])


def test_truncated_importance_sampling_by_token_and_by_sequence() -> None:
    weights, capped = token_tis(THREE, cap=3.0)
    np.testing.assert_allclose(weights[0, :5], [3.0, 0.25, 3.0, 2.0, 0.25], rtol=1e-6)
    np.testing.assert_array_equal(capped[0, :5], [True, False, True, False, False])
    weights, capped = sequence_tis(THREE, cap=3.0)
    np.testing.assert_allclose(weights[0, :5], [1.0, 1.0, 3.0, 3.0, 0.25], rtol=1e-6)
    np.testing.assert_array_equal(capped[0, :5], [False, False, True, True, False])
    np.testing.assert_array_equal(uncorrected(THREE)[0], [[1.0] * 6])


def test_masked_importance_sampling_by_token_and_by_sequence() -> None:
    np.testing.assert_array_equal(token_mis(THREE, cap=3.0)[0, :5], [False, True, False, True, True])
    np.testing.assert_array_equal(sequence_mis(THREE, cap=3.0)[0, :5], [True, True, False, False, True])
    assert sequence_mis(THREE, cap=None)[0, :5].all()


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_c30_the_product_of_a_long_sequence_neither_overflows_nor_becomes_nan(sign: float) -> None:
    length = 9000
    tokens = tokens_with_weights([0.98**sign] * length, [True] * length, [1] * length)
    weights, capped = sequence_tis(tokens, cap=2.0)
    assert float(weights[0, 0]) == pytest.approx(math.exp(-20) if sign > 0 else 2.0, rel=1e-5)
    assert bool(capped.all()) is (sign < 0)
    unbounded, _ = sequence_tis(tokens, cap=None)
    assert float(unbounded[0, 0]) == pytest.approx(math.exp(-20 * sign), rel=1e-5)
    assert bool(sequence_mis(tokens, cap=2.0).all()) is (sign > 0)
