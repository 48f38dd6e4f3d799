"""REINFORCE with a truncated importance weight. Legend: B rows, T tokens."""

from __future__ import annotations

import jax.numpy as jnp

from forebay.objectives.corrections import truncated_weight
from forebay.objectives.ratios import log_ratio
from forebay.objectives.surrogate import PolicyTokens, SurrogateTerms


def reinforce(tokens: PolicyTokens, *, cap: float | None) -> SurrogateTerms:
    """Raise the log-likelihood of tokens by their advantage.

    `-min(w, cap) A log p`, `w = current / behavior`. The weight carries no gradient, so a
    capped token still learns.

    Args:
        tokens: The batch's tokens.
        cap: Upper bound of w; None for none.

    Returns:
        The terms; the ratio is the weight before its cap.

    References:
        Williams 1992, Simple statistical gradient-following algorithms, equation 4;
        Espeholt et al. 2018, IMPALA, section 4.2 (weight truncated at rho), https://arxiv.org/abs/1802.01561.
    """
    log_weights = log_ratio(tokens.logprobs, tokens.behavior_logprobs)
    weight, capped = truncated_weight(log_weights, cap)
    return SurrogateTerms(
        loss=-weight * tokens.advantages * tokens.logprobs,
        ratio=jnp.exp(log_weights),
        weight=weight,
        clipped=jnp.zeros_like(capped),
        capped=capped,
    )
