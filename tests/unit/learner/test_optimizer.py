from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from pydantic import ValidationError

from forebay.learner.optimizer import OptimizerSettings, make_optimizer, make_schedule
from tests.unit.models import tiny


def first_update(settings: OptimizerSettings, gradients: object, params: object) -> object:
    optimizer = make_optimizer(settings)
    return optimizer.update(gradients, optimizer.init(params), params)[0]


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [0.25, 1.0, 1.0, 1.0]),
        ("linear", [0.25, 1.0, 0.55, 0.1]),
        ("cosine", [0.25, 1.0, 0.55, 0.1]),
    ],
)
def test_schedule(schedule: str, expected: list[float]) -> None:
    settings = OptimizerSettings(
        learning_rate=1.0, schedule=schedule, warmup_steps=4, decay_until_step=24, end_fraction=0.1
    )
    rates = [float(make_schedule(settings)(jnp.int32(step))) for step in (0, 4, 14, 24)]
    np.testing.assert_allclose(rates, expected, rtol=1e-6)
    assert float(make_schedule(settings)(jnp.int32(3))) == 1.0


@pytest.mark.parametrize("until", [None, 4])
def test_a_decay_without_an_end_is_refused(until: int | None) -> None:
    with pytest.raises(ValidationError, match="schedule=cosine needs decay_until_step > warmup_steps"):
        OptimizerSettings(schedule="cosine", warmup_steps=4, decay_until_step=until)


def test_clipping_is_by_the_global_norm() -> None:
    gradients = {"a": jnp.array([3.0]), "b": jnp.array([4.0])}
    settings = OptimizerSettings(learning_rate=1.0, epsilon=1.0, max_gradient_norm=0.5)
    # Adam's first step divides the clipped gradient g = [0.3], [0.4] by |g| + epsilon
    clipped = first_update(settings, gradients, gradients)
    np.testing.assert_allclose(clipped["a"], [-0.3 / 1.3], rtol=1e-5)
    np.testing.assert_allclose(clipped["b"], [-0.4 / 1.4], rtol=1e-5)
    off = settings.model_copy(update={"max_gradient_norm": math.inf})
    np.testing.assert_allclose(first_update(off, gradients, gradients)["a"], [-3 / 4], rtol=1e-5)


def test_decay_leaves_norms_alone() -> None:
    params = tiny.params()
    zero = jax.tree.map(jnp.zeros_like, params)
    updates = first_update(OptimizerSettings(learning_rate=0.1, weight_decay=0.5), zero, params)
    np.testing.assert_allclose(updates["layers"]["up_proj"], -0.05 * params["layers"]["up_proj"], rtol=1e-6)
    np.testing.assert_allclose(updates["embedding"], -0.05 * params["embedding"], rtol=1e-6)
    assert (updates["final_norm"] == 0).all()
    assert (updates["layers"]["mlp_norm"] == 0).all()


def test_the_state_counts_steps() -> None:
    params = {"w": jnp.ones(1)}
    optimizer = make_optimizer(OptimizerSettings())
    state = optimizer.init(params)
    for _ in range(3):
        _, state = optimizer.update(params, state, params)
    assert optax.tree.get_all_with_path(state, "count")
    assert {int(count) for _, count in optax.tree.get_all_with_path(state, "count")} == {3}


def test_a_value_head_is_clipped_by_itself_and_learns_at_its_own_rate() -> None:
    gradients = {
        "a": jnp.array([3.0]),
        "layers": {"b": jnp.array([4.0])},
        "value_head": jnp.array([30.0]),
        "value_bias": jnp.float32(40.0),
    }
    settings = OptimizerSettings(learning_rate=1.0, epsilon=1.0, max_gradient_norm=0.5)
    optimizer = make_optimizer(settings, 10.0)
    updates, _ = optimizer.update(gradients, optimizer.init(gradients), gradients)
    # Both parts have the norm 0.5 after it; the head's is not a share of one norm of 50.2.
    np.testing.assert_allclose(updates["a"], [-0.3 / 1.3], rtol=1e-5)
    np.testing.assert_allclose(updates["layers"]["b"], [-0.4 / 1.4], rtol=1e-5)
    np.testing.assert_allclose(updates["value_head"], [-10 * 0.3 / 1.3], rtol=1e-5)
    np.testing.assert_allclose(updates["value_bias"], -10 * 0.4 / 1.4, rtol=1e-5)


def test_without_a_critic_the_state_is_what_it_was() -> None:
    """Checkpoints of runs without one must go on fitting."""
    params = tiny.params()
    state = make_optimizer(OptimizerSettings(weight_decay=0.1)).init(params)
    named = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(state)]
    assert named[0] == "[1].count"
    assert "[1].mu['final_norm']" in named


def test_decay_leaves_a_value_heads_bias_alone() -> None:
    params = {"value_head": jnp.ones(2), "value_bias": jnp.float32(1.0)}
    zero = jax.tree.map(jnp.zeros_like, params)
    optimizer = make_optimizer(OptimizerSettings(learning_rate=0.1, weight_decay=0.5), 1.0)
    updates, _ = optimizer.update(zero, optimizer.init(params), params)
    np.testing.assert_allclose(updates["value_head"], [-0.05, -0.05], rtol=1e-6)
    assert float(updates["value_bias"]) == 0.0
