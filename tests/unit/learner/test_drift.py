from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from forebay.learner.drift import price_drift, rate_scale
from forebay.learner.optimizer import OptimizerSettings, make_optimizer, make_schedule
from forebay.learner.train_step import Accumulator, apply_gradients, new_state
from forebay.objectives import LossSums

ZERO = LossSums(*(jnp.float32(0),) * len(LossSums._fields))


def sums(gain: float, drift: float, tokens: float = 10.0) -> LossSums:
    return ZERO._replace(
        tokens=jnp.float32(tokens), gain_sum=jnp.float32(gain * tokens), k3_sum=jnp.float32(drift * tokens)
    )


def scales(*seen: LossSums, price: float = 0.1, free: float = 0.005) -> list[float]:
    part = price_drift(price, free)
    state, found = part.init({}), []
    for step in seen:
        updates, state = part.update({"weight": jnp.float32(2.0)}, state, sums=step)
        assert float(updates["weight"]) == pytest.approx(2.0 * float(state.scale))
        found.append(float(state.scale))
    return found


def test_fresh_data_is_not_scaled() -> None:
    assert scales(sums(0.0, 0.0), sums(-0.3, 1e-13), ZERO) == [1.0, 1.0, 1.0]


def test_drift_without_gain_is_paid_by_the_free_share_alone() -> None:
    # Averages with a weight of 0.2 for the newest: 0.02, then 0.036.
    assert scales(sums(0.0, 0.1), sums(-1.0, 0.1)) == pytest.approx([0.005 / 0.02, 0.005 / 0.036])


def test_gain_buys_drift_at_its_price() -> None:
    assert scales(sums(0.004, 0.1)) == pytest.approx([(0.0008 / 0.1 + 0.005) / 0.02])
    # (0.002 / 0.1 + 0.005) / 0.02 is more than 1.
    assert scales(sums(0.01, 0.1)) == [1.0]


def test_the_scale_is_part_of_the_reported_learning_rate_and_of_the_state() -> None:
    settings = OptimizerSettings(learning_rate=0.1, drift_price=0.1)
    optimizer = make_optimizer(settings)
    state = new_state({"weight": jnp.array([1.0, -2.0])}, optimizer)
    assert float(rate_scale(state.opt_state)) == 1.0
    accumulator = Accumulator({"weight": jnp.array([0.3, -0.1])}, sums(0.0, 0.1))
    state, _, stats = apply_gradients(
        state, accumulator, optimizer=optimizer, schedule=make_schedule(settings)
    )
    assert float(stats.learning_rate) == pytest.approx(0.1 * 0.25)
    assert float(rate_scale(state.opt_state)) == pytest.approx(0.25)
    # Adam's first step is the sign of the gradient.
    np.testing.assert_allclose(state.params["weight"], [1.0 - 0.025, -2.0 + 0.025], rtol=1e-5)


def test_a_step_that_is_not_finite_leaves_the_averages_alone() -> None:
    settings = OptimizerSettings(learning_rate=0.1, drift_price=0.1)
    optimizer = make_optimizer(settings)
    state = new_state({"weight": jnp.array([1.0])}, optimizer)
    broken = Accumulator({"weight": jnp.array([jnp.nan])}, sums(0.0, 0.5))
    after, _, _ = apply_gradients(state, broken, optimizer=optimizer, schedule=make_schedule(settings))
    for mine, other in zip(jax.tree.leaves(after), jax.tree.leaves(state), strict=True):
        np.testing.assert_array_equal(mine, other)


def test_an_update_that_is_told_no_sums_changes_nothing() -> None:
    priced, plain = (make_optimizer(OptimizerSettings(drift_price=price)) for price in (0.1, 0.0))
    gradients = {"weight": jnp.array([0.3, -0.1])}
    state = priced.init(gradients)
    updates, after = priced.update(gradients, state, gradients)
    np.testing.assert_array_equal(
        updates["weight"], plain.update(gradients, plain.init(gradients), gradients)[0]["weight"]
    )
    assert float(rate_scale(after)) == 1.0


def test_drift_has_a_price_unless_it_is_zero() -> None:
    assert OptimizerSettings().drift_price == 0.1
    stale = sums(0.0, 0.1)
    for price, scale in ((0.1, 0.25), (0.0, 1.0)):
        settings = OptimizerSettings(learning_rate=0.1, drift_price=price)
        optimizer = make_optimizer(settings)
        state = new_state({"weight": jnp.array([1.0])}, optimizer)
        given = Accumulator({"weight": jnp.array([0.3])}, stale)
        *_, stats = apply_gradients(state, given, optimizer=optimizer, schedule=make_schedule(settings))
        assert float(stats.learning_rate) == pytest.approx(0.1 * scale)


def test_an_optimizer_without_a_price_has_no_scale() -> None:
    plain = make_optimizer(OptimizerSettings(drift_price=0.0))
    assert float(rate_scale(plain.init({"weight": jnp.ones(2)}))) == 1.0
    assert isinstance(optax.with_extra_args_support(plain), optax.GradientTransformationExtraArgs)
