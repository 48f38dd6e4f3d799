"""How far the policy is from a reference policy, estimated from the sampled tokens. Legend: B rows, T tokens.

Each takes the log-ratio `l = log(policy / reference)` of tokens that the policy sampled, and is averaged over
them. They differ by what their gradient does when they are part of a loss:

- k1: right on average as a value, but its expected gradient is 0. It belongs into the reward, as
  `kl_in_reward` puts it, where the gradient of the penalized objective comes out right.
- k2: its gradient is that of KL(policy || reference) on fresh data.
- k3: the smallest variance as a value, never negative; its gradient is that of the other direction,
  KL(reference || policy).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from forebay.errors import RecordError
from forebay.objectives.inputs import LossInputs
from forebay.objectives.ratios import log_ratio
from forebay.objectives.surrogate import PolicyTokens


class ReferencePenalty(NamedTuple):
    """How much an objective holds the policy to the reference policy of its inputs.

    Attributes:
        coefficient: Loss, or reward, per nat.
        estimator: k2 and k3 are added to the loss, k1 is taken off the advantages.
    """

    coefficient: float
    estimator: Literal["k1", "k2", "k3"] = "k3"


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
    logprobs: Float[Array, "B T"],
    reference_logprobs: Float[Array, "B T"],
    *,
    coefficient: float,
) -> Float[Array, "B T"]:
    """Take each token's k1 off its advantage: `A - coefficient * k1`.

    Args:
        advantages: [B, T] float32.
        logprobs: [B, T] float32, nats, under the policy being trained.
        reference_logprobs: [B, T] float32, nats, under the reference.
        coefficient: Reward per nat.

    Returns:
        [B, T] float32; carries no gradient.

    References:
        Shah et al. 2025, A Comedy of Estimators: On KL Regularization in RL Training of LLMs,
        https://arxiv.org/abs/2512.21852.
    """
    return advantages - coefficient * jax.lax.stop_gradient(k1(logprobs, reference_logprobs))


def penalized_tokens(penalty: ReferencePenalty, tokens: PolicyTokens, inputs: LossInputs) -> PolicyTokens:
    """Return the tokens as the surrogate sees them: a penalty that belongs into the reward is in it.

    Args:
        penalty: Which estimator, and its coefficient.
        tokens: The batch's tokens.
        inputs: Holds the reference's logprobs.

    Raises:
        RecordError: The inputs have none.
    """
    if penalty.estimator != "k1":
        return tokens
    reference = _reference_logprobs(tokens, inputs)
    return tokens._replace(
        advantages=kl_in_reward(
            tokens.advantages, tokens.logprobs, reference, coefficient=penalty.coefficient
        )
    )


def penalty_losses(
    penalty: ReferencePenalty, tokens: PolicyTokens, inputs: LossInputs
) -> Float[Array, "B T"]:
    """Return what a penalty adds to each token's loss; 0 if it is in the reward.

    Args:
        penalty: Which estimator, and its coefficient.
        tokens: The batch's tokens.
        inputs: Holds the reference's logprobs.

    Raises:
        RecordError: The inputs have none.
    """
    if penalty.estimator == "k1":
        return jnp.zeros_like(tokens.logprobs)
    estimate = {"k2": k2, "k3": k3}[penalty.estimator]
    return penalty.coefficient * estimate(tokens.logprobs, _reference_logprobs(tokens, inputs))


def _reference_logprobs(tokens: PolicyTokens, inputs: LossInputs) -> Float[Array, "B T"]:
    if inputs.reference_logprobs is None:
        raise RecordError("reference_missing", "a penalty against a reference policy needs its logprobs")
    return jax.lax.stop_gradient(jnp.where(tokens.mask, inputs.reference_logprobs, 0.0))
