from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from forebay.objectives.gspo import mean_log_ratio, sequence_log_ratio
from forebay.objectives.ppo import ppo_clip
from forebay.objectives.surrogate import PolicyTokens

SEGMENTS = jnp.array([[1, 1, 1, 2, 2, 0]], jnp.int32)
MASK = jnp.array([[True, False, True, True, True, False]])
LOGPROBS = jnp.array([[-1.0, 0.0, -2.0, -0.5, -1.5, 0.0]])
BEHAVIOR = jnp.array([[-1.4, 0.0, -1.8, -0.6, -1.8, 0.0]])
ADVANTAGES = jnp.array([[2.0, 0.0, 2.0, -1.0, -1.0, 0.0]])


def tokens_of(logprobs: jax.Array) -> PolicyTokens:
    return PolicyTokens(logprobs, logprobs, BEHAVIOR, ADVANTAGES, MASK, SEGMENTS)


def test_a_sequence_shares_its_geometric_mean_ratio() -> None:
    tokens = tokens_of(LOGPROBS)
    log_ratios = sequence_log_ratio(LOGPROBS - BEHAVIOR, tokens)
    np.testing.assert_allclose(log_ratios[0, MASK[0]], [0.1, 0.1, 0.2, 0.2], rtol=1e-5)


def test_the_gradient_is_that_of_the_sequence_objective() -> None:
    """For advantages shared by a sequence, equation 7 differentiated as it stands gives the same."""

    def as_printed(logprobs: jax.Array) -> jax.Array:
        gaps = logprobs - BEHAVIOR
        first = jnp.exp((gaps[0, 0] + gaps[0, 2]) / 2)
        second = jnp.exp((gaps[0, 3] + gaps[0, 4]) / 2)
        return -(first * 2.0 + second * -1.0)

    def as_built(logprobs: jax.Array) -> jax.Array:
        terms = ppo_clip(tokens_of(logprobs), clip_low=0.5, clip_high=0.5, level=sequence_log_ratio)
        return jnp.sum(jnp.where(MASK, terms.loss, 0.0) / 2)

    np.testing.assert_allclose(as_built(LOGPROBS), as_printed(LOGPROBS), rtol=1e-6)
    np.testing.assert_allclose(jax.grad(as_built)(LOGPROBS), jax.grad(as_printed)(LOGPROBS), rtol=1e-5)


def test_a_clip_takes_a_whole_sequence() -> None:
    terms = ppo_clip(tokens_of(LOGPROBS), clip_low=0.01, clip_high=0.01, level=sequence_log_ratio)
    np.testing.assert_array_equal(terms.clipped[0, MASK[0]], [True, True, False, False])


def test_a_clamped_token_passes_no_gradient_and_its_neighbors_do() -> None:
    clamped = jnp.array([[20.0, 0.0, 0.2, 0.0, 0.0, 0.0]])

    def total(free: jax.Array) -> jax.Array:
        values = jnp.clip(clamped + free, -20.0, 20.0)
        return jnp.sum(jnp.where(MASK, mean_log_ratio(values, MASK, SEGMENTS), 0.0))

    slope = jax.grad(total)(jnp.array([[1.0, 0.0, 0.0, 0.0, 0.0, 0.0]]))
    np.testing.assert_array_equal(slope[0, MASK[0]], [0.0, 1.0, 1.0, 1.0])
