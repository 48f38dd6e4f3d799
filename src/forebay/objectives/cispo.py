"""CISPO: clip the weight, not the update. Legend: B rows, T tokens."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from forebay.objectives.ratios import log_ratio
from forebay.objectives.surrogate import PolicyTokens, SurrogateTerms


def cispo(tokens: PolicyTokens, *, clip_low: float, clip_high: float) -> SurrogateTerms:
    """Raise the log-likelihood of every token by its advantage, weighed by a clipped importance weight.

    `-clip(w, 1 - clip_low, 1 + clip_high) A log p`, `w = current / behavior`. The weight carries no gradient:
    a token outside the bounds still learns, which PPO's clip would forbid it.

    Args:
        tokens: The batch's tokens.
        clip_low: How far below 1 the weight may fall; 1 for no lower bound, as in the paper.
        clip_high: How far above 1 the weight may rise.

    Returns:
        The terms; the ratio is the weight before its bounds, `capped` where they applied.

    References:
        MiniMax 2025, MiniMax-M1: Scaling Test-Time Compute Efficiently with Lightning Attention, equations 4
        and 5, https://arxiv.org/abs/2506.13585.
    """
    log_weights = jax.lax.stop_gradient(log_ratio(tokens.logprobs, tokens.behavior_logprobs))
    lowest = math.log1p(-clip_low) if clip_low < 1 else -math.inf
    bounded = jnp.clip(log_weights, lowest, math.log1p(clip_high))
    weight = jnp.exp(bounded)
    return SurrogateTerms(
        loss=-weight * tokens.advantages * tokens.logprobs,
        ratio=jnp.exp(log_weights),
        weight=weight,
        clipped=jnp.zeros_like(tokens.mask),
        capped=bounded != log_weights,
    )
