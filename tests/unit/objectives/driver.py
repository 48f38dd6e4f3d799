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
from tests.golden import oracle


@functools.cache
def compiled(chosen: ObjectiveSettings) -> Callable[..., Any]:
    """Return an objective with its gradient."""
    return jax.jit(jax.value_and_grad(build_objective(chosen), has_aux=True))


def run(
    chosen: ObjectiveSettings, packed: oracle.Packed, denominator: float
) -> tuple[float, np.ndarray, LossSums]:
    """Return loss, gradient by logprob, and sums."""
    inputs = LossInputs(
        packed.loss_mask,
        packed.advantages,
        packed.behavior_logprobs,
        packed.proximal_logprobs,
        packed.segment_ids,
        packed.staleness,
        packed.reference_logprobs,
    )
    (loss, sums), grad = compiled(chosen)(
        jnp.asarray(packed.logprobs), jnp.asarray(packed.entropy), inputs, jnp.float32(denominator)
    )
    return float(loss), np.asarray(grad), jax.device_get(sums)
