"""The seam: what every surrogate loss and every rejection is given, and what it returns.

Legend: B rows, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from forebay.objectives.inputs import LossInputs, LossSums
from forebay.objectives.shapes import same_shape


class PolicyTokens(NamedTuple):
    """The tokens of a batch as surrogates see them; every array is finite outside the mask.

    Attributes:
        logprobs: Under the policy being trained, nats; the only array that gradients flow through.
        proximal_logprobs: At the start of the update, nats.
        behavior_logprobs: Under the policy that sampled, nats.
        advantages: Per token.
        mask: Fresh tokens.
        segment_ids: 0 at padding, sequences of a row numbered 1..n.
    """

    logprobs: Float[Array, "B T"]
    proximal_logprobs: Float[Array, "B T"]
    behavior_logprobs: Float[Array, "B T"]
    advantages: Float[Array, "B T"]
    mask: Bool[Array, "B T"]
    segment_ids: Int[Array, "B T"]


class SurrogateTerms(NamedTuple):
    """A surrogate's loss per token, with what its diagnostics need.

    Attributes:
        loss: To be minimized; finite everywhere.
        ratio: The ratio that carries the gradient.
        weight: The importance weight applied to the token.
        clipped: Where a clip took the policy gradient away.
        capped: Where the weight was cut down to its cap.
    """

    loss: Float[Array, "B T"]
    ratio: Float[Array, "B T"]
    weight: Float[Array, "B T"]
    clipped: Bool[Array, "B T"]
    capped: Bool[Array, "B T"]


Surrogate = Callable[[PolicyTokens], SurrogateTerms]

# Returns [B, T] bool, True where the token may be trained.
Rejection = Callable[[PolicyTokens], Bool[Array, "B T"]]

# (per-token loss, kept tokens, tokens) -> the numerator of the batch's loss.
Reduction = Callable[[Float[Array, "B T"], Bool[Array, "B T"], PolicyTokens], Float[Array, ""]]

# (logprobs, entropy, inputs, denominator) -> (loss, sums); both add over shards and micro-batches.
Objective = Callable[
    [Float[Array, "B T"], Float[Array, "B T"], LossInputs, Float[Array, ""]],
    tuple[Float[Array, ""], LossSums],
]


def select_tokens(
    logprobs: Float[Array, "B T"], inputs: LossInputs, *, recomputed: bool
) -> tuple[PolicyTokens, Bool[Array, "B T"]]:
    """Replace everything outside the mask by 0 before any arithmetic.

    Neither the loss nor its gradient can then be poisoned by what is masked, whatever it is.

    A fresh token whose behavior logprob is not finite gets the proximal one, hence weight 1.

    Args:
        logprobs: [B, T] float32, nats; gradients flow through it.
        inputs: The batch.
        recomputed: Whether the proximal policy is the one in `inputs`, or the current one.

    Returns:
        The tokens, and [B, T] bool, True at fresh tokens without a behavior logprob.

    Raises:
        RecordError: If the arrays differ in shape.
    """
    same_shape(logprobs=logprobs, **inputs._asdict())
    mask = inputs.loss_mask
    current = jnp.where(mask, logprobs, 0.0)
    proximal = jax.lax.stop_gradient(
        jnp.where(mask, inputs.proximal_logprobs, 0.0) if recomputed else current
    )
    missing = mask & ~jnp.isfinite(inputs.behavior_logprobs)
    behavior = jnp.where(mask & ~missing, inputs.behavior_logprobs, proximal)
    tokens = PolicyTokens(
        logprobs=current,
        proximal_logprobs=proximal,
        behavior_logprobs=jax.lax.stop_gradient(behavior),
        advantages=jax.lax.stop_gradient(jnp.where(mask, inputs.advantages, 0.0)),
        mask=mask,
        segment_ids=inputs.segment_ids,
    )
    return tokens, missing
