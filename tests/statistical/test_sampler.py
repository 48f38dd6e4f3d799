"""The sampler draws from the distribution whose logprobs it reports."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from forebay.generation.sampler import sample

NUM_DRAWS = 40_000
LOGITS = np.array([2.0, 1.0, 0.0, -1.0, 0.5, -2.5, 1.5, -np.inf], np.float32)
# The 0.999 quantiles of chi-square with 1 to 6 degrees of freedom (NIST/SEMATECH handbook, table 1.3.6.7.4).
QUANTILE_999 = {1: 10.828, 2: 13.816, 3: 16.266, 4: 18.467, 5: 20.515, 6: 22.458}


@pytest.mark.parametrize(
    ("temperature", "top_p", "top_k", "kept"),
    [
        (1.0, 1.0, 0, [0, 1, 2, 3, 4, 5, 6]),
        (0.6, 1.0, 0, [0, 1, 2, 3, 4, 5, 6]),
        (1.5, 1.0, 0, [0, 1, 2, 3, 4, 5, 6]),
        (1.0, 1.0, 3, [0, 6, 1]),
        (0.6, 0.9, 0, [0, 6, 1]),
    ],
)
def test_draws_fit_the_distribution(temperature: float, top_p: float, top_k: int, kept: list[int]) -> None:
    weights = np.zeros(len(LOGITS))
    weights[kept] = np.exp(LOGITS[kept].astype(np.float64) / temperature)
    expected = weights / weights.sum()

    draw = jax.jit(sample)
    rows = jnp.tile(LOGITS, (NUM_DRAWS, 1))
    # Half of the randomness comes from the seed and half from the position, as in use.
    seeds = jnp.stack(
        [jnp.zeros(NUM_DRAWS, jnp.uint32), jnp.arange(NUM_DRAWS, dtype=jnp.uint32) // 200], axis=1
    )
    tokens, logprobs = draw(
        rows,
        seeds,
        jnp.arange(NUM_DRAWS) % 200,
        jnp.full(NUM_DRAWS, temperature, jnp.float32),
        jnp.full(NUM_DRAWS, top_p, jnp.float32),
        jnp.full(NUM_DRAWS, top_k, jnp.int32),
    )
    counts = np.bincount(np.asarray(tokens), minlength=len(LOGITS))
    assert counts[expected == 0].sum() == 0
    np.testing.assert_allclose(np.exp(logprobs), expected[np.asarray(tokens)], rtol=1e-5)
    wanted = NUM_DRAWS * expected[kept]
    statistic = float(((counts[kept] - wanted) ** 2 / wanted).sum())
    assert statistic < QUANTILE_999[len(kept) - 1]


def test_chi_square_would_notice_a_wrong_temperature() -> None:
    """The test has power: draws at 0.65 do not pass for draws at 0.6."""
    kept = np.isfinite(LOGITS)
    right, wrong = (np.exp(LOGITS[kept].astype(np.float64) / t) for t in (0.6, 0.65))
    right, wrong = right / right.sum(), wrong / wrong.sum()
    assert NUM_DRAWS * float(((wrong - right) ** 2 / right).sum()) > 3 * QUANTILE_999[6]
