"""Moves of rows against the dense matrices that they stand for, and their gradients against transposes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from forebay.models.row_moves import Slots, collect, permuted, spread

RNG = np.random.default_rng(0)
S, X, N, D = 6, 3, 10, 4
# Seven of eighteen choices are in slots; three slots hold none.
CHOICES = np.array([17, 0, 4, 5, 9, 1, 13, 0, 0, 0])
IS_USED = np.arange(N) < 7


def slots() -> Slots:
    places, is_placed = np.zeros(S * X, np.int32), np.zeros(S * X, bool)
    places[CHOICES[:7]], is_placed[CHOICES[:7]] = np.arange(7), True
    return Slots(
        *(jnp.asarray(value) for value in (CHOICES, IS_USED, places.reshape(S, X), is_placed.reshape(S, X)))
    )


def matrix() -> np.ndarray:
    """[N, S X], 1 where a slot holds a choice."""
    dense = np.zeros((N, S * X))
    dense[np.arange(7), CHOICES[:7]] = 1
    return dense


def test_slots_get_the_rows_of_their_tokens_and_tokens_the_sum_of_their_gradients() -> None:
    h, d_values = RNG.normal(size=(S, D)), RNG.normal(size=(N, D))
    values, pull = jax.vjp(lambda h: spread(h, slots()), jnp.asarray(h, jnp.float32))
    per_token = matrix().reshape(N, S, X).sum(axis=2)
    np.testing.assert_allclose(values[:7], (per_token @ h)[:7], rtol=1e-6)
    assert np.isfinite(values).all()
    np.testing.assert_allclose(
        pull(jnp.asarray(d_values, jnp.float32))[0], per_token.T @ d_values, rtol=1e-5, atol=1e-6
    )


def test_tokens_get_the_weighted_sum_of_their_choices() -> None:
    values, weights, d_sums = (RNG.normal(size=shape) for shape in ((N, D), (S, X), (S, D)))
    sums, pull = jax.vjp(
        lambda values, weights: collect(values, weights, slots()),
        jnp.asarray(values, jnp.float32),
        jnp.asarray(weights, jnp.float32),
    )
    of_choices = matrix().T @ values
    expected = (weights.reshape(-1, 1) * of_choices).reshape(S, X, D).sum(axis=1)
    np.testing.assert_allclose(sums, expected, rtol=1e-5, atol=1e-6)
    d_values, d_weights = pull(jnp.asarray(d_sums, jnp.float32))
    spread_back = np.repeat(d_sums, X, axis=0)
    np.testing.assert_allclose(
        d_values, matrix() @ (weights.reshape(-1, 1) * spread_back), rtol=1e-5, atol=1e-6
    )
    expected_weights = (of_choices * spread_back).sum(axis=1).reshape(S, X)
    np.testing.assert_allclose(d_weights, expected_weights, rtol=1e-5, atol=1e-6)


def test_gradients_of_permuted_rows_go_back_where_they_came_from() -> None:
    order = RNG.permutation(N)
    values = jnp.asarray(RNG.normal(size=(N, D)), jnp.float32)
    moved, pull = jax.vjp(
        lambda values: permuted(values, jnp.asarray(order), jnp.asarray(np.argsort(order))), values
    )
    np.testing.assert_array_equal(moved, np.asarray(values)[order])
    np.testing.assert_array_equal(pull(moved)[0], values)
