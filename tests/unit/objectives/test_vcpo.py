from __future__ import annotations

import math

import jax.numpy as jnp
import pytest

from forebay.objectives import LossSums
from forebay.objectives.vcpo import ess_scale

ZERO = LossSums(*(jnp.float32(0),) * len(LossSums._fields))


def scale_of(weights: list[float]) -> float:
    sums = ZERO._replace(
        sequences=jnp.float32(len(weights)),
        sequence_weight_sum=jnp.float32(sum(weights)),
        sequence_weight_sq_sum=jnp.float32(sum(w * w for w in weights)),
    )
    return float(ess_scale(sums))


def test_it_is_the_root_of_the_effective_share() -> None:
    assert scale_of([1.0, 1.0, 1.0, 1.0]) == 1.0
    assert scale_of([3.0, 1.0]) == pytest.approx(math.sqrt(16 / (2 * 10)))
    assert scale_of([1e6, 1e-6, 1e-6, 1e-6]) == pytest.approx(0.5, rel=1e-5)


def test_a_step_without_sequences_or_weights_is_not_scaled() -> None:
    assert scale_of([]) == 1.0
    assert scale_of([0.0, 0.0]) == 1.0
