"""How far the policy is from a reference policy, estimated from the sampled tokens. Legend: B rows, T tokens.

Each takes the log-ratio `l = log(policy / reference)` of tokens that the policy sampled, and is averaged over
them. They differ by what their gradient does:

- k1: right on average as a value, but in a loss its expected gradient is 0. It belongs into the reward, where
  the gradient is that of KL(policy || reference) over whole sequences.
- k2: in a loss its gradient is that of KL(policy || reference) of the next token, on fresh data.
- k3: the smallest variance as a value, never negative; in a loss its gradient is that of the other direction,
  KL(reference || policy), of the next token.

In a reward, k2 and k3 are penalties of their own: their gradient is not that of a divergence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from forebay.errors import RecordError
from forebay.objectives.ratios import log_ratio
from forebay.objectives.shapes import same_shape
from forebay.objectives.surrogate import PolicyTokens


class ReferencePenalty(NamedTuple):
    """How much an objective holds the policy to the reference policy of its inputs.

    Attributes:
        coefficient: Loss, or reward, per nat.
        estimator: What the divergence is estimated by.
        placement: Whether the estimate is added to the loss or taken off the reward.
    """

    coefficient: float
    estimator: Literal["k1", "k2", "k3"] = "k3"
    placement: Literal["loss", "reward"] = "loss"


def k1(logprobs: Float[Array, "B T"], reference_logprobs: Float[Array, "B T"]) -> Float[Array, "B T"]:
    """Return `l`, the plain Monte Carlo estimate of KL(policy || reference).

    Args:
        logprobs: [B, T] float32, nats, under the policy being trained.
        reference_logprobs: [B, T] float32, nats, under the reference.

    Returns:
        [B, T] float32, nats; may be negative.

    References:
        Schulman 2020, Approximating KL divergence, http://joschu.net/blog/kl-approx.html.
    """
    return log_ratio(logprobs, reference_logprobs)


def k2(logprobs: Float[Array, "B T"], reference_logprobs: Float[Array, "B T"]) -> Float[Array, "B T"]:
    """Return `l^2 / 2`: biased as a value, right as a gradient.

    Args:
        logprobs: [B, T] float32, nats, under the policy being trained.
        reference_logprobs: [B, T] float32, nats, under the reference.

    Returns:
        [B, T] float32, nats, at least 0.

    References:
        Schulman 2020, Approximating KL divergence, http://joschu.net/blog/kl-approx.html; Shah et al. 2025, A
        Comedy of Estimators (which gradients are right), https://arxiv.org/abs/2512.21852.
    """
    return 0.5 * log_ratio(logprobs, reference_logprobs) ** 2


def k3(logprobs: Float[Array, "B T"], reference_logprobs: Float[Array, "B T"]) -> Float[Array, "B T"]:
    """Return `exp(-l) - 1 + l`, GRPO's penalty.

    Args:
        logprobs: [B, T] float32, nats, under the policy being trained.
        reference_logprobs: [B, T] float32, nats, under the reference.

    Returns:
        [B, T] float32, nats, at least 0.

    References:
        Shao et al. 2024, DeepSeekMath (GRPO), equation 4, https://arxiv.org/abs/2402.03300; Schulman 2020,
        Approximating KL divergence, http://joschu.net/blog/kl-approx.html.
    """
    ratio = log_ratio(logprobs, reference_logprobs)
    return jnp.expm1(-ratio) + ratio


def kl_in_reward(
    advantages: Float[Array, "B T"],
    divergences: Float[Array, "B T"],
    mask: Bool[Array, "B T"],
    segment_ids: Int[Array, "B T"],
    *,
    coefficient: float,
) -> Float[Array, "B T"]:
    """Take the divergence of a token and of all later ones in its sequence off the token's advantage.

    `A_t - coefficient * sum_(s >= t) kl_s`: what a token leads to is its doing too. With k1 the policy
    gradient then is that of the expected reward less `coefficient` times KL(policy || reference) over whole
    sequences.

    Args:
        advantages: [B, T] float32.
        divergences: [B, T] float32, nats, an estimate per token; not looked at outside the mask.
        mask: [B, T] bool, fresh tokens.
        segment_ids: [B, T] int32; 0 at padding, sequences of a row numbered 1..n.
        coefficient: Reward per nat.

    Returns:
        [B, T] float32; carries no gradient.

    References:
        Shah et al. 2025, A Comedy of Estimators: On KL Regularization in RL Training of LLMs,
        https://arxiv.org/abs/2512.21852; Hu et al. 2025, REINFORCE++, https://arxiv.org/abs/2501.03262.
    """
    same_shape(advantages=advantages, divergences=divergences, mask=mask, segment_ids=segment_ids)
    to_go = _sums_to_go(jnp.where(mask, divergences, 0.0), segment_ids)
    return jax.lax.stop_gradient(advantages - coefficient * to_go)


def penalized_tokens(penalty: ReferencePenalty, tokens: PolicyTokens) -> PolicyTokens:
    """Return the tokens as the surrogate sees them: a penalty that belongs into the reward is in it.

    Args:
        penalty: Which estimator, where it goes, and its coefficient.
        tokens: The batch's tokens.

    Raises:
        RecordError: They have no logprobs of a reference.
    """
    if penalty.placement == "loss":
        return tokens
    advantages = kl_in_reward(
        tokens.advantages,
        _divergences(penalty, tokens),
        tokens.mask,
        tokens.segment_ids,
        coefficient=penalty.coefficient,
    )
    return tokens._replace(advantages=advantages)


def penalty_losses(penalty: ReferencePenalty, tokens: PolicyTokens) -> Float[Array, "B T"]:
    """Return what a penalty adds to each token's loss; 0 if it is in the reward.

    Args:
        penalty: Which estimator, where it goes, and its coefficient.
        tokens: The batch's tokens.

    Raises:
        RecordError: They have no logprobs of a reference.
    """
    if penalty.placement == "reward":
        return jnp.zeros_like(tokens.logprobs)
    return penalty.coefficient * _divergences(penalty, tokens)


_ESTIMATORS: dict[str, Callable[[Array, Array], Array]] = {"k1": k1, "k2": k2, "k3": k3}


def _divergences(penalty: ReferencePenalty, tokens: PolicyTokens) -> Float[Array, "B T"]:
    if tokens.reference_logprobs is None:
        raise RecordError("reference_missing", "a penalty against a reference policy needs its logprobs")
    reference = jax.lax.stop_gradient(tokens.reference_logprobs)
    return _ESTIMATORS[penalty.estimator](tokens.logprobs, reference)


def _sums_to_go(values: Float[Array, "B T"], segment_ids: Int[Array, "B T"]) -> Float[Array, "B T"]:
    """Sum each token's value and the later ones of its segment; what else lies in the row plays no part."""

    def join(later: tuple[Array, Array], earlier: tuple[Array, Array]) -> tuple[Array, Array]:
        # Scanned from the end: a part that ends its segment takes nothing over from what lies behind it.
        return jnp.where(earlier[1], earlier[0], later[0] + earlier[0]), later[1] | earlier[1]

    next_ids = jnp.pad(segment_ids[:, 1:], ((0, 0), (0, 1)))
    ends = segment_ids != next_ids
    return jax.lax.associative_scan(join, (values, ends), reverse=True, axis=1)[0]
