"""Composition of an objective from its settings: surrogate, rejections, bonus, reduction, measures.

Legend: B rows, T tokens.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from forebay.objectives.corrections import geometric_rejection, icepop
from forebay.objectives.cross_entropy import cross_entropy
from forebay.objectives.decoupled import decoupled_ppo
from forebay.objectives.inputs import LossInputs, LossSums
from forebay.objectives.measures import measure
from forebay.objectives.ppo import ppo_clip
from forebay.objectives.reductions import sum_over_sequences, sum_over_tokens
from forebay.objectives.reinforce import reinforce
from forebay.objectives.settings import ObjectiveSettings
from forebay.objectives.shapes import same_shape
from forebay.objectives.surrogate import (
    Objective,
    PolicyTokens,
    Reduction,
    Rejection,
    Surrogate,
    select_tokens,
)

_SURROGATES: dict[str, Callable[[ObjectiveSettings], Surrogate]] = {
    "decoupled_ppo": lambda s: functools.partial(
        decoupled_ppo, clip_low=s.clip_low, clip_high=s.clip_high, cap=s.tis_cap
    ),
    "ppo_clip": lambda s: functools.partial(ppo_clip, clip_low=s.clip_low, clip_high=s.clip_high),
    "reinforce": lambda s: functools.partial(reinforce, cap=s.tis_cap),
    "cross_entropy": lambda s: cross_entropy,
}

_REDUCTIONS: dict[str, Reduction] = {
    "token": sum_over_tokens,
    "sequence": sum_over_sequences,
    "constant": sum_over_tokens,
}


def build_objective(settings: ObjectiveSettings) -> Objective:
    """Return the pure function that the train step differentiates.

    Args:
        settings: Which ideas to combine, and their constants.

    Returns:
        `(logprobs, entropy, inputs, denominator) -> (loss, sums)`: logprobs and entropy [B, T] float32
        in nats, aligned to the target token, of the distribution that was sampled from; the denominator
        a float32 scalar, the whole batch's `batch_denominator`. Losses and sums of micro-batches and
        shards add up to the whole batch's. Differentiate it with `has_aux=True`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> objective = build_objective(ObjectiveSettings(loss="ppo_clip"))
        >>> old = jnp.log(jnp.array([[0.5, 0.5]]))
        >>> inputs = LossInputs(jnp.array([[True, False]]), jnp.ones((1, 2)), old, old, jnp.array([[1, 1]]))
        >>> loss, sums = objective(old, jnp.zeros((1, 2)), inputs, jnp.float32(1))
        >>> float(loss), float(sums.tokens)
        (-1.0, 1.0)
    """
    surrogate, rejections = _SURROGATES[settings.loss](settings), _rejections(settings)
    reduction = _REDUCTIONS[settings.reduction]

    def objective(
        logprobs: Float[Array, "B T"],
        entropy: Float[Array, "B T"],
        inputs: LossInputs,
        denominator: Float[Array, ""],
    ) -> tuple[Float[Array, ""], LossSums]:
        same_shape(logprobs=logprobs, entropy=entropy)
        if settings.loss == "cross_entropy":
            inputs = inputs._replace(behavior_logprobs=logprobs)
        tokens, missing = select_tokens(logprobs, inputs, recomputed=settings.proximal == "recomputed")
        entropy = jnp.where(tokens.mask, entropy, 0.0)
        terms = surrogate(tokens)
        kept = _keep(tokens, rejections)
        losses = terms.loss if settings.entropy_coef == 0 else terms.loss - settings.entropy_coef * entropy
        loss = reduction(losses, kept, tokens) / jnp.maximum(denominator, 1.0)
        sums = measure(loss, tokens, terms, kept, missing, entropy)
        return loss, jax.lax.stop_gradient(sums)

    return objective


def _rejections(settings: ObjectiveSettings) -> tuple[Rejection, ...]:
    bounds = (
        (geometric_rejection, settings.geometric_low, settings.geometric_high),
        (icepop, settings.icepop_low, settings.icepop_high),
    )
    return tuple(
        functools.partial(rejection, low=low, high=high)
        for rejection, low, high in bounds
        if not (low is None and high is None)
    )


def _keep(tokens: PolicyTokens, rejections: Sequence[Rejection]) -> Bool[Array, "B T"]:
    return functools.reduce(lambda kept, rejection: kept & rejection(tokens), rejections, tokens.mask)
