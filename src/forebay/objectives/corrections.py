"""Corrections for data that another policy sampled: weigh it, cap the weight, or reject what is too far away.

All of them look at `w = proximal / behavior`, decided on logs. TIS, truncated importance sampling, caps a
weight; MIS, masked importance sampling, rejects what exceeds the cap. Legend: B rows, T tokens.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from forebay.objectives.ratios import geometric_log_ratio, log_ratio, sequence_log_product, to_tokens
from forebay.objectives.surrogate import PolicyTokens


def truncated_weight(
    log_weights: Float[Array, "B T"], cap: float | None
) -> tuple[Float[Array, "B T"], Bool[Array, "B T"]]:
    """Cap a token's importance weight, trading a bounded bias for bounded variance: `min(w, cap)`.

    Args:
        log_weights: [B, T] float32, nats, already clamped.
        cap: Upper bound of the weight; None for no bound.

    Returns:
        [B, T] float32 weights that carry no gradient, and [B, T] bool where the cap applied.

    References:
        Ionides 2008, Truncated Importance Sampling; Espeholt et al. 2018, IMPALA, equation 1,
        https://arxiv.org/abs/1802.01561; Yao et al. 2025, Your Efficient RL Framework Secretly Brings
        You Off-Policy RL Training (token level, cap 2), https://fengyao.notion.site/off-policy-rl.
    """
    log_weights = jax.lax.stop_gradient(log_weights)
    if cap is None:
        return jnp.exp(log_weights), jnp.zeros_like(log_weights, dtype=bool)
    log_cap = math.log(cap)
    return jnp.exp(jnp.minimum(log_weights, log_cap)), log_weights > log_cap


def uncorrected(tokens: PolicyTokens) -> tuple[Float[Array, "B T"], Bool[Array, "B T"]]:
    """Train stale tokens as if they were fresh: weight 1.

    Args:
        tokens: The batch's tokens.

    Returns:
        [B, T] float32 ones, and [B, T] bool, false.
    """
    return jnp.ones_like(tokens.logprobs), jnp.zeros_like(tokens.mask)


def token_tis(tokens: PolicyTokens, *, cap: float | None) -> tuple[Float[Array, "B T"], Bool[Array, "B T"]]:
    """Weigh each token by itself: `min(w_t, cap)`.

    Args:
        tokens: The batch's tokens.
        cap: Upper bound of the weight; None for none.

    Returns:
        [B, T] float32 weights that carry no gradient, and [B, T] bool where the cap applied.

    References:
        Yao et al. 2025, Your Efficient RL Framework Secretly Brings You Off-Policy RL Training (cap 2),
        https://fengyao.notion.site/off-policy-rl.
    """
    return truncated_weight(log_ratio(tokens.proximal_logprobs, tokens.behavior_logprobs), cap)


def sequence_tis(
    tokens: PolicyTokens, *, cap: float | None
) -> tuple[Float[Array, "B T"], Bool[Array, "B T"]]:
    """Weigh each sequence as one decision: `min(prod_t w_t, cap)` over its fresh tokens, at each of them.

    Right on average where the token's weight is not, as it also corrects for the states that a token was
    sampled in; but the product shrinks with length, and with it the gradient of a long answer.

    Args:
        tokens: The batch's tokens.
        cap: Upper bound of the weight; None for none.

    Returns:
        [B, T] float32 weights that carry no gradient, and [B, T] bool where the cap applied.

    References:
        Liu, Li et al. 2025, When Speed Kills Stability: Demystifying RL Collapse from the
        Training-Inference Mismatch (sequence-level TIS), https://richardli.xyz/rl-collapse.
    """
    return truncated_weight(_sequence_log_weights(tokens), cap)


def token_mis(tokens: PolicyTokens, *, cap: float | None) -> Bool[Array, "B T"]:
    """Keep a token only if `w_t <= cap`; what is kept has its whole weight.

    Args:
        tokens: The batch's tokens.
        cap: Upper bound of the weight; None for none.

    Returns:
        [B, T] bool, True at tokens that may be trained.

    References:
        Fu et al. 2025, AReaL (its code leaves tokens beyond `behav_imp_weight_cap` untrained),
        https://arxiv.org/abs/2505.24298.
    """
    return _within(log_ratio(tokens.proximal_logprobs, tokens.behavior_logprobs), None, cap)


def sequence_mis(tokens: PolicyTokens, *, cap: float | None) -> Bool[Array, "B T"]:
    """Keep a sequence only if `prod_t w_t <= cap` over its fresh tokens; what is kept has its whole weight.

    Args:
        tokens: The batch's tokens.
        cap: Upper bound of the weight; None for none.

    Returns:
        [B, T] bool, True at tokens that may be trained.

    References:
        Liu, Li et al. 2025, When Speed Kills Stability: Demystifying RL Collapse from the
        Training-Inference Mismatch (sequence-level MIS), https://richardli.xyz/rl-collapse.
    """
    return _within(_sequence_log_weights(tokens), None, cap)


def geometric_rejection(tokens: PolicyTokens, *, low: float | None, high: float | None) -> Bool[Array, "B T"]:
    """Keep a sequence only if the geometric mean of its weights is within bounds.

    `low <= (prod_t w_t)^(1/n) <= high` over the n fresh tokens of the sequence; otherwise all of
    them are rejected.

    Args:
        tokens: The batch's tokens.
        low: Lower bound of the geometric mean; None for none.
        high: Upper bound of the geometric mean; None for none.

    Returns:
        [B, T] bool, True at tokens that may be trained.

    References:
        Liu, Li et al. 2025, When Speed Kills Stability: Demystifying RL Collapse from the
        Training-Inference Mismatch (geometric sequence masking), https://richardli.xyz/rl-collapse.
        Its bounds near 1 fit the gap between two engines running the same weights. The defaults here
        (0.5, 2.0) fit policies some versions apart: a threshold of 2 and its reciprocal.
    """
    weights = log_ratio(tokens.proximal_logprobs, tokens.behavior_logprobs)
    mean = geometric_log_ratio(weights, tokens.mask, tokens.segment_ids)
    return to_tokens(_within(mean, low, high), tokens.segment_ids)


def icepop(tokens: PolicyTokens, *, low: float | None, high: float | None) -> Bool[Array, "B T"]:
    """Keep a token only if its own weight is within bounds: `low <= w_t <= high`.

    Args:
        tokens: The batch's tokens.
        low: Lower bound of the weight; None for none.
        high: Upper bound of the weight; None for none.

    Returns:
        [B, T] bool, True at tokens that may be trained.

    References:
        Ling Team 2025, Every Step Evolves: Scaling Reinforcement Learning for Trillion-Scale Thinking
        Model (IcePop, double-sided masking, 0.5 and 5.0), https://arxiv.org/abs/2510.18855.
    """
    return _within(log_ratio(tokens.proximal_logprobs, tokens.behavior_logprobs), low, high)


def _sequence_log_weights(tokens: PolicyTokens) -> Float[Array, "B T"]:
    log_weights = log_ratio(tokens.proximal_logprobs, tokens.behavior_logprobs)
    product = sequence_log_product(log_weights, tokens.mask, tokens.segment_ids)
    return to_tokens(product, tokens.segment_ids)


def _within(log_values: Float[Array, "B N"], low: float | None, high: float | None) -> Bool[Array, "B N"]:
    lowest = math.log(low) if low else -math.inf
    highest = math.inf if high is None else math.log(high)
    # NaN stays in: a broken forward pass must reach the non-finite guard, not pass for a rejection.
    return ~((log_values < lowest) | (log_values > highest))
