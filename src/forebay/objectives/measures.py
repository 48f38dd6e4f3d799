"""What is counted while the loss is computed. Legend: B rows, T tokens."""

from __future__ import annotations

import math

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from forebay.objectives.inputs import LossSums
from forebay.objectives.kl import k3
from forebay.objectives.ratios import (
    LOG_RATIO_LIMIT_NATS,
    geometric_log_ratio,
    is_clamped,
    log_ratio,
    segment_sums,
    sequence_log_product,
)
from forebay.objectives.surrogate import PolicyTokens, SurrogateTerms

# One token that became a thousand times likelier must not outweigh a batch.
_LOG_GAIN_CAP = math.log(5.0)


def measure(
    loss: Float[Array, ""],
    tokens: PolicyTokens,
    terms: SurrogateTerms,
    kept: Bool[Array, "B T"],
    missing: Bool[Array, "B T"],
    entropy: Float[Array, "B T"],
) -> LossSums:
    """Sum a step's diagnostics over fresh tokens and over sequences that have one.

    Args:
        loss: Scalar float32, the contribution to the batch's loss.
        tokens: The batch's tokens.
        terms: What the surrogate returned for them.
        kept: [B, T] bool, fresh tokens that were not rejected.
        missing: [B, T] bool, fresh tokens without a behavior logprob.
        entropy: [B, T] float32, nats.

    Returns:
        The sums.
    """
    mask = tokens.mask
    off_policy = log_ratio(tokens.logprobs, tokens.behavior_logprobs)
    weight = jnp.where(kept, terms.weight, 0.0)
    fresh_counts = segment_sums(jnp.ones_like(off_policy), mask, tokens.segment_ids)
    product = jnp.exp(sequence_log_product(off_policy, mask, tokens.segment_ids))
    sequence_weight = jnp.where(fresh_counts > 0, product, 0.0)
    kept_counts = segment_sums(jnp.ones_like(off_policy), kept, tokens.segment_ids)
    return LossSums(
        loss=loss,
        tokens=_count(mask),
        real_tokens=_count(tokens.segment_ids > 0),
        sequences=_count(fresh_counts > 0),
        rejected_tokens=_count(mask & ~kept),
        rejected_sequences=_count((fresh_counts > 0) & (kept_counts == 0)),
        clipped_tokens=_count(kept & terms.clipped),
        capped_tokens=_count(kept & terms.capped),
        clamped_tokens=_count(mask & _any_clamped(tokens)),
        clamped_sequences=_count(_any_product_clamped(tokens)),
        missing_tokens=_count(missing),
        ratio_sum=_total(terms.ratio, mask),
        weight_sum=jnp.sum(weight),
        weight_sq_sum=jnp.sum(weight**2),
        k3_sum=_total(jnp.expm1(off_policy) - off_policy, mask),
        abs_logprob_diff_sum=_total(jnp.abs(tokens.logprobs - tokens.behavior_logprobs), mask),
        entropy_sum=_total(entropy, mask),
        log_product_sum=_total(off_policy, mask),
        log_geometric_sum=jnp.sum(geometric_log_ratio(off_policy, mask, tokens.segment_ids)),
        sequence_weight_sum=jnp.sum(sequence_weight),
        sequence_weight_sq_sum=jnp.sum(sequence_weight**2),
        reference_k3_sum=_reference_k3_sum(tokens),
        gain_sum=_total(jnp.expm1(jnp.minimum(off_policy, _LOG_GAIN_CAP)) * tokens.advantages, mask),
        value_loss=jnp.zeros((), jnp.float32),
    )


def _reference_k3_sum(tokens: PolicyTokens) -> Float[Array, ""]:
    if tokens.reference_logprobs is None:
        return jnp.zeros((), jnp.float32)
    return _total(k3(tokens.logprobs, tokens.reference_logprobs), tokens.mask)


def _any_clamped(tokens: PolicyTokens) -> Bool[Array, "B T"]:
    clamped = (
        is_clamped(tokens.logprobs, tokens.behavior_logprobs)
        | is_clamped(tokens.proximal_logprobs, tokens.behavior_logprobs)
        | is_clamped(tokens.logprobs, tokens.proximal_logprobs)
    )
    if tokens.reference_logprobs is None:
        return clamped
    return clamped | is_clamped(tokens.logprobs, tokens.reference_logprobs)


def _any_product_clamped(tokens: PolicyTokens) -> Bool[Array, "B S"]:
    products = [
        segment_sums(log_ratio(policy, tokens.behavior_logprobs), tokens.mask, tokens.segment_ids)
        for policy in (tokens.logprobs, tokens.proximal_logprobs)
    ]
    return (jnp.abs(products[0]) > LOG_RATIO_LIMIT_NATS) | (jnp.abs(products[1]) > LOG_RATIO_LIMIT_NATS)


def _count(where: Bool[Array, "B N"]) -> Float[Array, ""]:
    return jnp.sum(where, dtype=jnp.float32)


def _total(values: Float[Array, "B T"], mask: Bool[Array, "B T"]) -> Float[Array, ""]:
    return jnp.sum(jnp.where(mask, values, 0.0))
