from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from forebay.objectives.ratios import geometric_log_ratio, is_clamped, log_ratio, segment_sums, to_tokens

VALUES = jnp.array([[1.0, 2.0, 4.0, 8.0, jnp.nan], [16.0, jnp.nan, 32.0, 64.0, 128.0]])
MASK = jnp.array([[True, True, True, True, False], [True, False, True, True, True]])
# Padding may stand before, between or after sequences.
SEGMENTS = jnp.array([[1, 1, 2, 2, 0], [1, 0, 3, 3, 2]], dtype=jnp.int32)


def test_log_ratio_is_clamped_with_its_gradient_and_counted() -> None:
    new, old = jnp.array([[-1.0, -1.0, -100.0]]), jnp.array([[-1.5, -100.0, -1.0]])
    np.testing.assert_array_equal(log_ratio(new, old), [[0.5, 20.0, -20.0]])
    slope = jax.grad(lambda x: jnp.sum(log_ratio(x, old)))(new)
    np.testing.assert_array_equal(slope, [[1.0, 0.0, 0.0]])
    np.testing.assert_array_equal(is_clamped(new, old), [[False, True, True]])


def test_log_ratio_of_a_policy_to_itself_is_zero_with_slope_one() -> None:
    new = jnp.array([[-0.1, -2.0]])
    value, slope = jax.value_and_grad(lambda x: jnp.sum(log_ratio(x, jax.lax.stop_gradient(x))))(new)
    assert value == 0.0
    np.testing.assert_array_equal(slope, [[1.0, 1.0]])


def test_segment_sums_do_not_mix_rows_or_look_outside_the_mask() -> None:
    sums = segment_sums(VALUES, MASK, SEGMENTS)
    np.testing.assert_array_equal(sums, [[0, 3, 12, 0, 0, 0], [0, 16, 128, 96, 0, 0]])
    np.testing.assert_array_equal(to_tokens(sums, SEGMENTS), [[3, 3, 12, 12, 0], [16, 0, 96, 96, 128]])


def test_geometric_log_ratio_is_a_mean_over_fresh_tokens() -> None:
    mean = geometric_log_ratio(VALUES, MASK, SEGMENTS)
    np.testing.assert_array_equal(mean, [[0, 1.5, 6, 0, 0, 0], [0, 16, 128, 48, 0, 0]])
