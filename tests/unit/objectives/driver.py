"""Objectives as tests call them: compiled once, on batches of the oracle."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from forebay.objectives import LossInputs, LossSums, ObjectiveSettings
from forebay.objectives.build import build_objective
from forebay.objectives.clip_rules import build_clip_rule
from tests.golden import oracle


@functools.cache
def compiled(chosen: ObjectiveSettings) -> Callable[..., Any]:
    """Return an objective with its gradient."""
    return jax.jit(jax.value_and_grad(build_objective(chosen), has_aux=True))


def clip_bounds_of(
    chosen: ObjectiveSettings, packed: oracle.Packed, whole: oracle.Packed
) -> np.ndarray | None:
    """Return where each ratio is clipped, as the whole update decides it; None where the settings do."""
    rule = build_clip_rule(chosen)
    if rule is None:
        return None
    behavior, current, advantages = (
        array[whole.loss_mask].astype(np.float64)
        for array in (whole.behavior_logprobs, whole.logprobs, whole.advantages)
    )
    low, high = rule(current - behavior, advantages)
    return np.where(packed.advantages < 0, low, high).astype(np.float32)


def run(
    chosen: ObjectiveSettings,
    packed: oracle.Packed,
    denominator: float,
    whole: oracle.Packed | None = None,
) -> tuple[float, np.ndarray, LossSums]:
    """Return loss, gradient by logprob, and sums; `whole` is the update that `packed` is a part of."""
    inputs = LossInputs(
        packed.loss_mask,
        packed.advantages,
        packed.behavior_logprobs,
        packed.proximal_logprobs,
        packed.segment_ids,
        packed.staleness,
        packed.reference_logprobs,
        clip_bounds_of(chosen, packed, whole or packed),
    )
    (loss, sums), grad = compiled(chosen)(
        jnp.asarray(packed.logprobs), jnp.asarray(packed.entropy), inputs, jnp.float32(denominator)
    )
    return float(loss), np.asarray(grad), jax.device_get(sums)
