"""Decoupled PPO: one policy for the clip, another for the correction. Legend: B rows, T tokens."""

from __future__ import annotations

import jax.numpy as jnp

from forebay.objectives.ppo import clipped_surrogate
from forebay.objectives.ratios import log_ratio
from forebay.objectives.surrogate import Correction, PolicyTokens, RatioLevel, SurrogateTerms, per_token


def decoupled_ppo(
    tokens: PolicyTokens,
    *,
    clip_low: float,
    clip_high: float,
    correction: Correction,
    dual_clip: float | None = None,
    level: RatioLevel = per_token,
) -> SurrogateTerms:
    """Weigh PPO's clipped surrogate by how much likelier the proximal policy was to sample the token.

    `-min(w, cap) min(r A, clip(r) A)`, `r = exp(current - proximal)` carries the gradient,
    `w = exp(proximal - behavior)` does not. The trust region is then around a recent policy, however
    stale the data is.

    Args:
        tokens: The batch's tokens.
        clip_low: Lower clip width of r.
        clip_high: Upper clip width of r.
        correction: Returns w, capped, of each token or of its sequence.
        dual_clip: Bound of r where the advantage is negative; None for none.
        level: What shares r: each token, turn or sequence.

    Returns:
        The terms.

    References:
        Hilton et al. 2021, Batch size-invariance for policy optimization, equation 2,
        https://arxiv.org/abs/2110.00641; Fu et al. 2025, AReaL, equation 5,
        https://arxiv.org/abs/2505.24298.
    """
    ratio = jnp.exp(level(log_ratio(tokens.logprobs, tokens.proximal_logprobs), tokens))
    weight, capped = correction(tokens)
    loss, clipped = clipped_surrogate(
        ratio, tokens.advantages, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip
    )
    return SurrogateTerms(loss=weight * loss, ratio=ratio, weight=weight, clipped=clipped, capped=capped)
