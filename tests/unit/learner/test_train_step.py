from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from forebay.learner.optimizer import OptimizerSettings, make_optimizer, make_schedule
from forebay.learner.train_step import Accumulator, StepStats, TrainState, apply_gradients, new_state
from forebay.objectives import LossSums

SETTINGS = OptimizerSettings(learning_rate=0.1, weight_decay=0.01)
SUMS = LossSums(*(jnp.float32(0),) * len(LossSums._fields))._replace(
    sequences=jnp.float32(2), sequence_weight_sum=jnp.float32(4), sequence_weight_sq_sum=jnp.float32(10)
)


def step(ess_scaling: bool, sums: LossSums = SUMS) -> tuple[TrainState, StepStats]:
    optimizer = make_optimizer(SETTINGS)
    state = new_state({"weight": jnp.array([1.0, -2.0])}, optimizer)
    accumulator = Accumulator({"weight": jnp.array([0.3, -0.1])}, sums)
    state, _, stats = apply_gradients(
        state,
        accumulator,
        optimizer=optimizer,
        schedule=make_schedule(SETTINGS),
        ess_scaling=ess_scaling,
    )
    return state, stats


def test_the_learning_rate_is_scaled_by_the_root_of_the_effective_share() -> None:
    plain, plain_stats = step(False)
    scaled, scaled_stats = step(True)
    share = 16 / (2 * 10)
    assert float(plain_stats.learning_rate) == pytest.approx(0.1)
    assert float(scaled_stats.learning_rate) == pytest.approx(0.1 * share**0.5)
    start = np.array([1.0, -2.0])
    np.testing.assert_allclose(
        scaled.params["weight"] - start, (plain.params["weight"] - start) * share**0.5, rtol=1e-5
    )
    assert float(scaled_stats.update_norm) == pytest.approx(float(plain_stats.update_norm) * share**0.5)


def test_fresh_data_is_not_scaled() -> None:
    fresh = SUMS._replace(sequence_weight_sum=jnp.float32(2), sequence_weight_sq_sum=jnp.float32(2))
    np.testing.assert_array_equal(step(True, fresh)[0].params["weight"], step(False)[0].params["weight"])


def test_the_state_of_the_optimizer_is_not_touched_by_the_scale() -> None:
    for mine, other in zip(step(True)[0].opt_state[1], step(False)[0].opt_state[1], strict=True):
        np.testing.assert_array_equal(
            *(
                jnp.ravel(jnp.array(tree["weight"] if isinstance(tree, dict) else tree))
                for tree in (mine, other)
            )
        )
