"""Composition of an objective from its settings: surrogate, rejections, bonus, reduction, measures.

Legend: B rows, T tokens.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from forebay.errors import RecordError
from forebay.objectives.cispo import cispo
from forebay.objectives.corrections import (
    geometric_rejection,
    icepop,
    sequence_mis,
    sequence_tis,
    token_mis,
    token_tis,
    uncorrected,
)
from forebay.objectives.cross_entropy import cross_entropy
from forebay.objectives.decoupled import decoupled_ppo
from forebay.objectives.dppo import dppo
from forebay.objectives.gspo import sequence_log_ratio
from forebay.objectives.inputs import LossInputs, LossSums
from forebay.objectives.kl import ReferencePenalty, penalized_tokens, penalty_losses
from forebay.objectives.measures import measure
from forebay.objectives.ppo import ppo_clip
from forebay.objectives.reductions import sum_over_sequences, sum_over_tokens
from forebay.objectives.reinforce import reinforce
from forebay.objectives.settings import ObjectiveSettings
from forebay.objectives.shapes import same_shape
from forebay.objectives.surrogate import (
    Correction,
    Objective,
    PolicyTokens,
    RatioLevel,
    Reduction,
    Rejection,
    Surrogate,
    ValueLoss,
    per_token,
    select_tokens,
)
from forebay.objectives.topr import topr
from forebay.objectives.turn_ppo import turn_log_ratio
from forebay.objectives.value_loss import value_errors
from forebay.objectives.value_settings import ValueSettings

_LEVELS: dict[str, RatioLevel] = {
    "token": per_token,
    "turn": turn_log_ratio,
    "sequence": sequence_log_ratio,
}

_SURROGATES: dict[str, Callable[[ObjectiveSettings], Surrogate]] = {
    "decoupled_ppo": lambda s: functools.partial(decoupled_ppo, **_clip(s), correction=_correction(s)),
    "ppo_clip": lambda s: functools.partial(ppo_clip, **_clip(s)),
    "cispo": lambda s: functools.partial(cispo, clip_low=s.clip_low, clip_high=s.clip_high),
    "dppo": lambda s: functools.partial(dppo, tv_limit=s.tv_limit, cap=s.tis_cap),
    "topr": lambda s: topr,
    "reinforce": lambda s: functools.partial(reinforce, correction=_correction(s)),
    "cross_entropy": lambda s: cross_entropy,
}

_CORRECTIONS: dict[str, Callable[[float | None], Correction]] = {
    "none": lambda cap: uncorrected,
    "token_tis": lambda cap: functools.partial(token_tis, cap=cap),
    "token_mis": lambda cap: functools.partial(token_tis, cap=cap),
    "sequence_tis": lambda cap: functools.partial(sequence_tis, cap=cap),
    "sequence_mis": lambda cap: functools.partial(sequence_tis, cap=cap),
}

_MASKED: dict[str, Callable[..., Bool[Array, "B T"]]] = {
    "token_mis": token_mis,
    "sequence_mis": sequence_mis,
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
    penalty = _penalty(settings)

    def objective(
        logprobs: Float[Array, "B T"],
        entropy: Float[Array, "B T"],
        inputs: LossInputs,
        denominator: Float[Array, ""],
    ) -> tuple[Float[Array, ""], LossSums]:
        same_shape(logprobs=logprobs, entropy=entropy)
        if settings.loss == "cross_entropy":
            inputs = inputs._replace(behavior_logprobs=logprobs)
        if penalty is None:
            inputs = inputs._replace(reference_logprobs=None)
        if settings.clip_rule == "fixed":
            inputs = inputs._replace(ratio_bounds=None)
        elif inputs.ratio_bounds is None:
            raise RecordError(
                "bounds_missing", f'clip_rule = "{settings.clip_rule}" needs each ratio\'s bound'
            )
        tokens, missing = select_tokens(logprobs, inputs, proximal=settings.proximal)
        entropy = jnp.where(tokens.mask, entropy, 0.0)
        if penalty is not None:
            tokens = penalized_tokens(penalty, tokens)
        terms = surrogate(tokens)
        kept = _keep(tokens, rejections)
        losses = terms.loss if settings.entropy_coef == 0 else terms.loss - settings.entropy_coef * entropy
        if penalty is not None:
            losses = losses + penalty_losses(penalty, tokens)
        loss = reduction(losses, kept, tokens.mask, tokens.segment_ids) / jnp.maximum(denominator, 1.0)
        sums = measure(loss, tokens, terms, kept, missing, entropy)
        return loss, jax.lax.stop_gradient(sums)

    return objective


def annotations_of(settings: ObjectiveSettings) -> frozenset[str]:
    """Return which inputs an objective and its critic need beyond those that every batch has."""
    judged = ("values", "value_targets") if settings.has_critic else ()
    held = ("reference_logprobs",) if settings.kl_coef else ()
    bounded = () if settings.clip_rule == "fixed" else ("ratio_bounds",)
    return frozenset(judged + held + bounded)


def build_value_loss(settings: ObjectiveSettings, value: ValueSettings) -> ValueLoss | None:
    """Return what the critic of an objective is trained by, weighted as it is added to the loss; or None.

    Every fresh token counts, also one that a rejection keeps the policy from learning from. The sum is
    divided by what the policy's is.

    Args:
        settings: The objective; `advantage` and `reduction` matter.
        value: The critic's own settings.

    Returns:
        A function of values, values before the update and their targets, [B, T] float32, not looked at
        outside the fresh tokens; of those, [B, T] bool; of segment ids, [B, T] int32; of the denominator.
    """
    if not settings.has_critic:
        return None
    reduction = _REDUCTIONS[settings.reduction]

    def value_loss(
        values: Float[Array, "B T"],
        old_values: Float[Array, "B T"],
        targets: Float[Array, "B T"],
        mask: Bool[Array, "B T"],
        segment_ids: Int[Array, "B T"],
        denominator: Float[Array, ""],
    ) -> Float[Array, ""]:
        selected = (jnp.where(mask, array, 0.0) for array in (values, old_values, targets))
        losses = value_errors(*selected, clip=value.clip, huber=value.huber)
        return value.coef * reduction(losses, mask, mask, segment_ids) / jnp.maximum(denominator, 1.0)

    return value_loss


def _penalty(settings: ObjectiveSettings) -> ReferencePenalty | None:
    if settings.kl_coef == 0:
        return None
    return ReferencePenalty(settings.kl_coef, settings.kl_estimator, settings.kl_in)


def _clip(settings: ObjectiveSettings) -> dict[str, Any]:
    return {
        "clip_low": settings.clip_low,
        "clip_high": settings.clip_high,
        "dual_clip": settings.dual_clip,
        "level": _LEVELS[settings.ratio],
    }


def _correction(settings: ObjectiveSettings) -> Correction:
    return _CORRECTIONS[settings.correction](settings.tis_cap)


def _rejections(settings: ObjectiveSettings) -> tuple[Rejection, ...]:
    masked = _MASKED.get(settings.correction)
    bounds = (
        (geometric_rejection, settings.geometric_low, settings.geometric_high),
        (icepop, settings.icepop_low, settings.icepop_high),
    )
    bounded = tuple(
        functools.partial(rejection, low=low, high=high)
        for rejection, low, high in bounds
        if not (low is None and high is None)
    )
    return bounded if masked is None else (functools.partial(masked, cap=settings.tis_cap), *bounded)


def _keep(tokens: PolicyTokens, rejections: Sequence[Rejection]) -> Bool[Array, "B T"]:
    return functools.reduce(lambda kept, rejection: kept & rejection(tokens), rejections, tokens.mask)
