"""The seam: what every surrogate loss and every rejection is given, and what it returns.

Legend: B rows, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from forebay.errors import RecordError
from forebay.objectives.a3po import interpolated_logprobs
from forebay.objectives.inputs import LossInputs, LossSums
from forebay.objectives.shapes import same_shape

Proximal = Literal["current", "recomputed", "interpolated"]


class PolicyTokens(NamedTuple):
    """The tokens of a batch as surrogates see them; every array is finite outside the mask.

    Attributes:
        logprobs: Under the policy being trained, nats; the only array that gradients flow through.
        proximal_logprobs: At the start of the update, nats.
        behavior_logprobs: Under the policy that sampled, nats.
        advantages: Per token.
        mask: Fresh tokens.
        segment_ids: 0 at padding, sequences of a row numbered 1..n.
        reference_logprobs: Under the reference policy, nats; None where nothing is held to one.
        ratio_bounds: Where each ratio is clipped, on the side its advantage pushes it to; None where the
            settings say it.
    """

    logprobs: Float[Array, "B T"]
    proximal_logprobs: Float[Array, "B T"]
    behavior_logprobs: Float[Array, "B T"]
    advantages: Float[Array, "B T"]
    mask: Bool[Array, "B T"]
    segment_ids: Int[Array, "B T"]
    reference_logprobs: Float[Array, "B T"] | None = None
    ratio_bounds: Float[Array, "B T"] | None = None


class SurrogateTerms(NamedTuple):
    """A surrogate's loss per token, with what its diagnostics need.

    Attributes:
        loss: To be minimized; finite everywhere.
        ratio: The ratio that carries the gradient.
        weight: The importance weight applied to the token.
        clipped: Where a clip took the policy gradient away.
        capped: Where the weight was cut to its bound.
    """

    loss: Float[Array, "B T"]
    ratio: Float[Array, "B T"]
    weight: Float[Array, "B T"]
    clipped: Bool[Array, "B T"]
    capped: Bool[Array, "B T"]


Surrogate = Callable[[PolicyTokens], SurrogateTerms]

# Returns [B, T] float32 weights without gradient, and [B, T] bool where the cap applied.
Correction = Callable[[PolicyTokens], tuple[Float[Array, "B T"], Bool[Array, "B T"]]]

# (log-ratios, tokens) -> the log-ratios that are clipped: each token's, its turn's or its sequence's.
RatioLevel = Callable[[Float[Array, "B T"], PolicyTokens], Float[Array, "B T"]]

# Returns [B, T] bool, True where the token may be trained.
Rejection = Callable[[PolicyTokens], Bool[Array, "B T"]]

# (per-token loss, kept tokens, fresh tokens, segment ids) -> the numerator of the batch's loss.
Reduction = Callable[
    [Float[Array, "B T"], Bool[Array, "B T"], Bool[Array, "B T"], Int[Array, "B T"]], Float[Array, ""]
]

# (values, old values, targets, fresh tokens, segment ids, denominator) -> the value loss; adds likewise.
ValueLoss = Callable[
    [
        Float[Array, "B T"],
        Float[Array, "B T"],
        Float[Array, "B T"],
        Bool[Array, "B T"],
        Int[Array, "B T"],
        Float[Array, ""],
    ],
    Float[Array, ""],
]

# (logprobs, entropy, inputs, denominator) -> (loss, sums); both add over shards and micro-batches.
Objective = Callable[
    [Float[Array, "B T"], Float[Array, "B T"], LossInputs, Float[Array, ""]],
    tuple[Float[Array, ""], LossSums],
]


def per_token(log_ratios: Float[Array, "B T"], tokens: PolicyTokens) -> Float[Array, "B T"]:
    """Leave every token its own ratio: the `RatioLevel` of PPO.

    Args:
        log_ratios: [B, T] float32, nats.
        tokens: Not looked at.
    """
    return log_ratios


def select_tokens(
    logprobs: Float[Array, "B T"], inputs: LossInputs, *, proximal: Proximal
) -> tuple[PolicyTokens, Bool[Array, "B T"]]:
    """Replace everything outside the mask by 0 before any arithmetic.

    Neither the loss nor its gradient can then be poisoned by what is masked, whatever it is.

    A fresh token whose behavior logprob is not finite gets the proximal one, hence weight 1.

    Args:
        logprobs: [B, T] float32, nats; gradients flow through it.
        inputs: The batch.
        proximal: Whether the proximal policy is the current one, the one in `inputs`, or a guess between the
            one that acted and the current one.

    Returns:
        The tokens, and [B, T] bool, True at fresh tokens without a behavior logprob.

    Raises:
        RecordError: If the arrays differ in shape, or a guess is asked for without the tokens' staleness.
    """
    given = {name: array for name, array in inputs._asdict().items() if array is not None}
    same_shape(logprobs=logprobs, **given)
    mask = inputs.loss_mask
    current = jnp.where(mask, logprobs, 0.0)
    missing = mask & ~jnp.isfinite(inputs.behavior_logprobs)
    recorded = jnp.where(mask & ~missing, inputs.behavior_logprobs, current)
    anchor = jax.lax.stop_gradient(_proximal_logprobs(proximal, inputs, current, recorded))
    reference, bounds = inputs.reference_logprobs, inputs.ratio_bounds
    tokens = PolicyTokens(
        logprobs=current,
        proximal_logprobs=anchor,
        behavior_logprobs=jax.lax.stop_gradient(jnp.where(missing, anchor, recorded)),
        advantages=jax.lax.stop_gradient(jnp.where(mask, inputs.advantages, 0.0)),
        mask=mask,
        segment_ids=inputs.segment_ids,
        reference_logprobs=None if reference is None else jnp.where(mask, reference, 0.0),
        ratio_bounds=None if bounds is None else jnp.where(mask, bounds, 1.0),
    )
    return tokens, missing


def _proximal_logprobs(
    proximal: Proximal, inputs: LossInputs, current: Float[Array, "B T"], behavior: Float[Array, "B T"]
) -> Float[Array, "B T"]:
    if proximal == "current":
        return current
    if proximal == "recomputed":
        return jnp.where(inputs.loss_mask, inputs.proximal_logprobs, 0.0)
    if inputs.staleness is None:
        raise RecordError("staleness_missing", "an interpolated proximal policy needs each token's staleness")
    return interpolated_logprobs(current, behavior, inputs.staleness)
