"""A-3PO: the proximal policy interpolated instead of computed. Legend: B rows, T tokens."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from forebay.objectives.shapes import same_shape


def interpolated_logprobs(
    logprobs: Float[Array, "B T"], behavior_logprobs: Float[Array, "B T"], staleness: Int[Array, "B T"]
) -> Float[Array, "B T"]:
    """Guess the logprobs of the policy one version ago from the one that acted and the current one.

    `alpha behavior + (1 - alpha) current`, `alpha = 1 / d` for a token that is d >= 1 versions stale, and 0
    for a fresh one: the policy is taken to have moved at a steady pace in log space. No second forward pass
    is needed, and a token is held the closer to the current policy the older it is.

    Args:
        logprobs: [B, T] float32, nats, under the policy being trained.
        behavior_logprobs: [B, T] float32, nats, finite.
        staleness: [B, T] int32, versions between the sampling of a token and this update.

    Returns:
        [B, T] float32, nats; carries no gradient.

    References:
        Li et al. 2025, A-3PO: Accelerating Asynchronous LLM Training with Staleness-aware Proximal Policy
        Approximation, https://arxiv.org/abs/2512.06547; the same line through both policies as AReaL's
        `prox_logp_method = "loglinear"`.
    """
    same_shape(logprobs=logprobs, behavior_logprobs=behavior_logprobs, staleness=staleness)
    age = jnp.maximum(staleness, 1).astype(logprobs.dtype)
    alpha = jnp.where(staleness > 0, 1.0 / age, 0.0)
    current = jax.lax.stop_gradient(logprobs)
    return current + alpha * (jax.lax.stop_gradient(behavior_logprobs) - current)
