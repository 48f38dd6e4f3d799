from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from forebay.objectives.value_loss import value_errors


def of(value: float, old: float, target: float, **options: float) -> float:
    return float(value_errors(*(jnp.array([[x]]) for x in (value, old, target)), **options)[0, 0])


def test_half_the_squared_distance() -> None:
    assert of(1.0, 0.0, 3.0) == 2.0


def test_a_value_that_has_moved_far_enough_is_not_moved_further() -> None:
    def slope(value: float) -> float:
        return float(
            jax.grad(lambda v: value_errors(v, jnp.zeros((1, 1)), jnp.ones((1, 1)), clip=0.2).sum())(
                jnp.array([[value]])
            )[0, 0]
        )

    assert slope(0.1) == pytest.approx(-0.9)
    assert slope(0.3) == 0.0  # moved by more than 0.2, towards its target
    assert slope(-0.3) == pytest.approx(-1.3)  # moved away from it: it may come back


def test_beyond_huber_an_error_weighs_linearly_and_never_overflows() -> None:
    assert of(0.0, 0.0, 4.0, huber=1.0) == 3.5
    assert of(0.0, 0.0, 0.5, huber=1.0) == 0.125
    gradient = jax.grad(lambda v: value_errors(v, v, jnp.zeros((1, 1)), huber=1.0).sum())(
        jnp.full((1, 1), 1e30)
    )
    assert float(gradient[0, 0]) == 1.0
