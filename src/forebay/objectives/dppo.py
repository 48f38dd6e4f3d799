"""DPPO: a trust region in probability, not in ratio. Legend: B rows, T tokens."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from forebay.objectives.corrections import truncated_weight
from forebay.objectives.ratios import log_ratio
from forebay.objectives.surrogate import PolicyTokens, SurrogateTerms


def dppo(tokens: PolicyTokens, *, tv_limit: float, cap: float | None) -> SurrogateTerms:
    """Train a token until its probability has moved by `tv_limit` the way its advantage pushes it.

    `-M min(w, cap) A log p`, `w = current / behavior` without gradient; M is 0 where A > 0 and
    `p - p_behavior > tv_limit`, or A < 0 and `p_behavior - p > tv_limit`, else 1. The difference is the total
    variation between the two policies seen as "this token or another" (Binary-TV). A ratio's bounds hold
    rare tokens back, whose ratio swings, and let likely ones go, whose probability moves far.

    Args:
        tokens: The batch's tokens.
        tv_limit: How far the probability may move, between 0 and 1.
        cap: Upper bound of w; None for none. The authors found small bounds to hurt and keep 20.

    Returns:
        The terms; the ratio is w before its cap, `clipped` where M is 0.

    References:
        Qi et al. 2026, Rethinking the Trust Region in LLM Reinforcement Learning (DPPO-Binary-TV),
        https://arxiv.org/abs/2602.04879.
    """
    log_weights = log_ratio(tokens.logprobs, tokens.behavior_logprobs)
    weight, capped = truncated_weight(log_weights, cap)
    moved = jax.lax.stop_gradient(jnp.exp(tokens.logprobs) - jnp.exp(tokens.behavior_logprobs))
    upward, downward = tokens.advantages > 0, tokens.advantages < 0
    beyond = (upward & (moved > tv_limit)) | (downward & (moved < -tv_limit))
    loss = -weight * tokens.advantages * tokens.logprobs
    return SurrogateTerms(
        loss=jnp.where(beyond, 0.0, loss),
        ratio=jax.lax.stop_gradient(jnp.exp(log_weights)),
        weight=weight,
        clipped=beyond,
        capped=capped,
    )
