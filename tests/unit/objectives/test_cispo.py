from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from forebay.objectives.cispo import cispo
from forebay.objectives.surrogate import PolicyTokens

RATIOS = jnp.array([[0.1, 0.9, 1.5, 8.0]])
BEHAVIOR = jnp.array([[-2.0, -1.0, -1.5, -4.0]])


@pytest.mark.parametrize(
    ("clip_low", "weights", "capped"),
    [
        (0.2, [0.8, 0.9, 1.5, 5.0], [True, False, False, True]),
        (1.0, [0.1, 0.9, 1.5, 5.0], [False] * 3 + [True]),
    ],
)
def test_the_weight_is_bounded_and_every_token_still_learns(
    clip_low: float, weights: list[float], capped: list[bool]
) -> None:
    def total(logprobs: jax.Array):
        ones, mask = jnp.ones((1, 4)), jnp.ones((1, 4), bool)
        tokens = PolicyTokens(logprobs, logprobs, BEHAVIOR, 2 * ones, mask, mask.astype(jnp.int32))
        terms = cispo(tokens, clip_low=clip_low, clip_high=4.0)
        return jnp.sum(terms.loss), terms

    slope, terms = jax.grad(total, has_aux=True)(BEHAVIOR + jnp.log(RATIOS))
    np.testing.assert_allclose(terms.weight, [weights], rtol=1e-5)
    np.testing.assert_allclose(slope, [[-2 * weight for weight in weights]], rtol=1e-5)
    np.testing.assert_array_equal(terms.capped, [capped])
    np.testing.assert_allclose(terms.ratio, RATIOS, rtol=1e-5)
    assert not terms.clipped.any()
