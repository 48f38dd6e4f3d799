"""GSPO's ratio: one per sequence, the geometric mean of its tokens'. Legend: B rows, T tokens."""

from __future__ import annotations

import jax
from jaxtyping import Array, Bool, Float, Int

from forebay.objectives.ratios import geometric_log_ratio, to_tokens
from forebay.objectives.shapes import same_shape
from forebay.objectives.surrogate import PolicyTokens


def sequence_log_ratio(log_ratios: Float[Array, "B T"], tokens: PolicyTokens) -> Float[Array, "B T"]:
    """Give every token the log of its sequence's ratio, so that a clip takes or leaves the whole sequence.

    `s = (prod_t r_t)^(1/n)` over the n fresh tokens. With PPO's clip and `reduction = "sequence"` this is
    GSPO; the paper's bounds are 3e-4 and 4e-4, as a mean over a sequence moves much less than one token.

    Args:
        log_ratios: [B, T] float32, nats, already clamped.
        tokens: The batch's tokens.

    Returns:
        [B, T] float32, nats. The value is the sequence's, the gradient each token's own.

    References:
        Zheng et al. 2025, Group Sequence Policy Optimization, equation 7, and section 4.3 (GSPO-token, whose
        gradient this is; the same as GSPO's where the tokens of a sequence share an advantage),
        https://arxiv.org/abs/2507.18071.
    """
    return mean_log_ratio(log_ratios, tokens.mask, tokens.segment_ids)


def mean_log_ratio(
    log_ratios: Float[Array, "B T"], mask: Bool[Array, "B T"], part_ids: Int[Array, "B T"]
) -> Float[Array, "B T"]:
    """Replace log-ratios by their mean over each part of a row; a token's gradient stays its own.

    Args:
        log_ratios: [B, T] float32, nats, already clamped.
        mask: [B, T] bool, fresh tokens.
        part_ids: [B, T] int32 at most T; equal at the tokens that share a ratio.

    Returns:
        [B, T] float32, nats.
    """
    same_shape(log_ratios=log_ratios, mask=mask, part_ids=part_ids)
    mean = to_tokens(geometric_log_ratio(log_ratios, mask, part_ids), part_ids)
    return jax.lax.stop_gradient(mean) + (log_ratios - jax.lax.stop_gradient(log_ratios))
