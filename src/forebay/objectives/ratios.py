"""Ratios between two policies, kept as logs and clamped there, so that nothing overflows.

Legend: B rows, T tokens.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Shaped

from forebay.objectives.shapes import same_shape

# exp(20) = 4.9e8 and its square are far inside float32, and no ratio beyond it means anything.
LOG_RATIO_LIMIT_NATS = 20.0


def log_ratio(new_logprobs: Float[Array, "B T"], old_logprobs: Float[Array, "B T"]) -> Float[Array, "B T"]:
    """Return `log(new / old)` per token, clamped to +-20 nats; beyond the clamp no gradient flows.

    Args:
        new_logprobs: [B, T] float32, nats.
        old_logprobs: [B, T] float32, nats.

    Returns:
        [B, T] float32, nats.
    """
    same_shape(new_logprobs=new_logprobs, old_logprobs=old_logprobs)
    return jnp.clip(new_logprobs - old_logprobs, -LOG_RATIO_LIMIT_NATS, LOG_RATIO_LIMIT_NATS)


def is_clamped(new_logprobs: Float[Array, "B T"], old_logprobs: Float[Array, "B T"]) -> Bool[Array, "B T"]:
    """Return where `log_ratio` of the same arguments had to be clamped.

    Args:
        new_logprobs: [B, T] float32, nats.
        old_logprobs: [B, T] float32, nats.

    Returns:
        [B, T] bool.
    """
    same_shape(new_logprobs=new_logprobs, old_logprobs=old_logprobs)
    return jnp.abs(new_logprobs - old_logprobs) > LOG_RATIO_LIMIT_NATS


def segment_sums(
    values: Float[Array, "B T"], mask: Bool[Array, "B T"], segment_ids: Int[Array, "B T"]
) -> Float[Array, "B S"]:
    """Sum the selected values of each packed sequence.

    Args:
        values: [B, T] float32; not looked at outside the mask.
        mask: [B, T] bool, the tokens to sum over.
        segment_ids: [B, T] int32; 0 at padding, sequences of a row numbered 1..n.

    Returns:
        [B, T + 1] float32, indexed by segment id: a row of T tokens has at most T sequences.
    """
    same_shape(values=values, mask=mask, segment_ids=segment_ids)
    num_segments = values.shape[1] + 1
    sum_row = jax.vmap(lambda row, ids: jax.ops.segment_sum(row, ids, num_segments=num_segments))
    return sum_row(jnp.where(mask, values, 0.0), segment_ids)


def to_tokens(per_segment: Shaped[Array, "B S"], segment_ids: Int[Array, "B T"]) -> Shaped[Array, "B T"]:
    """Give each token the value of its own sequence.

    Args:
        per_segment: [B, S], indexed by segment id.
        segment_ids: [B, T] int32 below S.

    Returns:
        [B, T], of the type of `per_segment`.
    """
    return jnp.take_along_axis(per_segment, segment_ids, axis=1)


def geometric_log_ratio(
    log_ratios: Float[Array, "B T"], mask: Bool[Array, "B T"], segment_ids: Int[Array, "B T"]
) -> Float[Array, "B S"]:
    """Return the log of each sequence's geometric mean ratio: the mean of its log-ratios.

    `log (prod_t r_t)^(1/n) = (1/n) sum_t log r_t`, n fresh tokens. Unlike the product it neither
    vanishes nor explodes with length.

    Args:
        log_ratios: [B, T] float32, nats.
        mask: [B, T] bool, fresh tokens.
        segment_ids: [B, T] int32; 0 at padding, sequences of a row numbered 1..n.

    Returns:
        [B, T + 1] float32, nats, indexed by segment id; 0 for a sequence without fresh tokens.

    References:
        Zheng et al. 2025, Group Sequence Policy Optimization, equation 7, https://arxiv.org/abs/2507.18071.
    """
    num_tokens = segment_sums(jnp.ones_like(log_ratios), mask, segment_ids)
    return segment_sums(log_ratios, mask, segment_ids) / jnp.maximum(num_tokens, 1.0)


def sequence_log_product(
    log_ratios: Float[Array, "B T"], mask: Bool[Array, "B T"], segment_ids: Int[Array, "B T"]
) -> Float[Array, "B S"]:
    """Return the log of each sequence's product of ratios, clamped to +-20 nats as a token's ratio is.

    The exact weight of a whole sequence, and of little use for a long one: it vanishes or explodes with
    length.

    Args:
        log_ratios: [B, T] float32, nats.
        mask: [B, T] bool, fresh tokens.
        segment_ids: [B, T] int32; 0 at padding, sequences of a row numbered 1..n.

    Returns:
        [B, T + 1] float32, nats, indexed by segment id; 0 for a sequence without fresh tokens.
    """
    product = segment_sums(log_ratios, mask, segment_ids)
    return jnp.clip(product, -LOG_RATIO_LIMIT_NATS, LOG_RATIO_LIMIT_NATS)
