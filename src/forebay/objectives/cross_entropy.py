"""Cross-entropy, for a supervised warm start with the same learner. Legend: B rows, T tokens."""

from __future__ import annotations

import jax.numpy as jnp

from forebay.objectives.surrogate import PolicyTokens, SurrogateTerms


def cross_entropy(tokens: PolicyTokens) -> SurrogateTerms:
    """Return each token's negative log-likelihood, `-log p`; advantages and other policies play no part.

    Args:
        tokens: The batch's tokens.

    Returns:
        The terms; ratio and weight are 1.

    References:
        Bishop 2006, Pattern Recognition and Machine Learning, section 1.2.5.
    """
    ones = jnp.ones_like(tokens.logprobs)
    nowhere = jnp.zeros_like(tokens.mask)
    return SurrogateTerms(loss=-tokens.logprobs, ratio=ones, weight=ones, clipped=nowhere, capped=nowhere)
