"""VCPO's learning rate: smaller where few samples carry the step."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from forebay.objectives.inputs import LossSums


def ess_scale(sums: LossSums) -> Float[Array, ""]:
    """Return what a step's learning rate is multiplied with: the root of its effective share of sequences.

    `sqrt(ESS / B)`, `ESS = (sum w)^2 / sum w^2` over the B sequences of the step, w the untruncated product
    of a sequence's ratios `current / behavior`. On fresh data all weights are 1 and so is the scale.

    Args:
        sums: Of a whole step, float32 scalars.

    Returns:
        Scalar float32, at most 1; 1 for a step without sequences.

    References:
        Huang et al. 2026, Stable Asynchrony: Variance-Controlled Off-Policy RL for LLMs, equation 5 (the
        square root, relative to fresh data, whose share is 1), https://arxiv.org/abs/2602.17616.
    """
    whole = sums.sequences * sums.sequence_weight_sq_sum
    share = sums.sequence_weight_sum**2 / jnp.where(whole > 0, whole, 1.0)
    # Rounding can lift equal weights above 1.
    return jnp.where(whole > 0, jnp.sqrt(jnp.minimum(share, 1.0)), 1.0)
