from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from forebay.objectives.surrogate import PolicyTokens
from forebay.objectives.turn_ppo import turn_ids, turn_log_ratio

SEGMENTS = jnp.array([[1, 1, 1, 1, 1, 2, 2, 2, 0], [1, 1, 2, 2, 2, 2, 0, 3, 3]], jnp.int32)
MASK = jnp.array([[0, 1, 1, 0, 1, 1, 0, 1, 0], [1, 1, 1, 0, 0, 1, 0, 1, 1]], bool)


def test_a_turn_is_a_run_of_fresh_tokens_within_a_sequence() -> None:
    np.testing.assert_array_equal(
        turn_ids(MASK, SEGMENTS), [[0, 1, 1, 0, 2, 3, 0, 4, 0], [1, 1, 2, 0, 0, 3, 0, 4, 4]]
    )


def test_the_highest_turn_number_fits_the_row() -> None:
    alternating = jnp.array([[True, True, True]])
    np.testing.assert_array_equal(turn_ids(alternating, jnp.array([[1, 2, 3]], jnp.int32)), [[1, 2, 3]])


def test_a_turn_shares_its_geometric_mean_ratio() -> None:
    log_ratios = jnp.array(
        [[9.0, 0.1, 0.3, 9.0, 0.5, -0.2, 9.0, 0.7, 9.0], [0.4, 0.6, 1.0, 9, 9, 2, 9, 3, 5]]
    )
    tokens = PolicyTokens(log_ratios, log_ratios, log_ratios, log_ratios, MASK, SEGMENTS)
    shared = turn_log_ratio(log_ratios, tokens)
    np.testing.assert_allclose(shared[0, MASK[0]], [0.2, 0.2, 0.5, -0.2, 0.7], rtol=1e-5)
    np.testing.assert_allclose(shared[1, MASK[1]], [0.5, 0.5, 1.0, 2.0, 4.0, 4.0], rtol=1e-5)
