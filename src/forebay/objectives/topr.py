"""TOPR: imitate what went well, and weigh what went badly. Legend: B rows, T tokens."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from forebay.objectives.ratios import log_ratio, sequence_log_product, to_tokens
from forebay.objectives.surrogate import PolicyTokens, SurrogateTerms


def topr(tokens: PolicyTokens) -> SurrogateTerms:
    """Raise the log-likelihood of good sequences fully, lower that of bad ones by how likely they still are.

    `-w A log p`, without a gradient through w: 1 where A >= 0, else `min(prod_t current / behavior, 1)` over
    the fresh tokens of the sequence. A bad sequence that the policy has already left is not pushed further
    away, which is what makes off-policy REINFORCE diverge; a good one is learned however unlikely it is.

    Args:
        tokens: The batch's tokens.

    Returns:
        The terms; the ratio is the sequence's product of ratios, `capped` where A < 0 and it exceeds 1.

    References:
        Le Roux et al. 2025, Tapered Off-Policy REINFORCE (the canonical TOPR, its truncation [0, 1] for
        negative and none for positive examples), https://arxiv.org/abs/2503.14286.
    """
    log_ratios = jax.lax.stop_gradient(log_ratio(tokens.logprobs, tokens.behavior_logprobs))
    product = to_tokens(sequence_log_product(log_ratios, tokens.mask, tokens.segment_ids), tokens.segment_ids)
    bad = tokens.advantages < 0
    weight = jnp.where(bad, jnp.exp(jnp.minimum(product, 0.0)), 1.0)
    return SurrogateTerms(
        loss=-weight * tokens.advantages * tokens.logprobs,
        ratio=jnp.exp(product),
        weight=weight,
        clipped=jnp.zeros_like(bad),
        capped=bad & (product > 0),
    )
