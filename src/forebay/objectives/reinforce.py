"""REINFORCE with a truncated importance weight. Legend: B rows, T tokens."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from forebay.objectives.ratios import log_ratio
from forebay.objectives.surrogate import Correction, PolicyTokens, SurrogateTerms


def reinforce(tokens: PolicyTokens, *, correction: Correction) -> SurrogateTerms:
    """Raise the log-likelihood of tokens by their advantage.

    `-min(w, cap) A log p`, `w = current / behavior`. The weight carries no gradient, so a
    capped token still learns.

    Args:
        tokens: The batch's tokens.
        correction: Returns w, capped, of each token or of its sequence; the current policy stands for the
            proximal one.

    Returns:
        The terms; the ratio is the weight before its cap.

    References:
        Williams 1992, Simple statistical gradient-following algorithms, equation 4;
        Espeholt et al. 2018, IMPALA, section 4.2 (weight truncated at rho), https://arxiv.org/abs/1802.01561.
    """
    log_weights = log_ratio(tokens.logprobs, tokens.behavior_logprobs)
    weight, capped = correction(tokens._replace(proximal_logprobs=jax.lax.stop_gradient(tokens.logprobs)))
    return SurrogateTerms(
        loss=-weight * tokens.advantages * tokens.logprobs,
        ratio=jnp.exp(log_weights),
        weight=weight,
        clipped=jnp.zeros_like(capped),
        capped=capped,
    )
