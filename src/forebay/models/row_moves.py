"""Rows of tokens to slots and back, where each slot holds one choice of a token: gathers, both ways.

What is a gather forward is a sum of rows that may meet in one place backward. Both directions are known here,
so that the backward pass gathers too: a device that adds row after row is slow.

Legend: S tokens, X choices of a token, N slots, D width of a row.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


class Slots(NamedTuple):
    """Which choice each slot holds, and in which slot each choice is.

    Attributes:
        choices: [N] int32, a choice of a token among all S X.
        is_used: [N] whether the slot holds any.
        places: [S, X] int32, a slot.
        is_placed: [S, X] whether the choice is in any.
    """

    choices: Int[Array, " N"]
    is_used: Bool[Array, " N"]
    places: Int[Array, "S X"]
    is_placed: Bool[Array, "S X"]

    @property
    def tokens(self) -> Int[Array, " N"]:
        """The token that each slot is of."""
        return self.choices // self.places.shape[1]


@jax.custom_vjp
def spread(h: Float[Array, "S D"], slots: Slots) -> Float[Array, "N D"]:
    """Return the row of the token that each slot is of; anything finite where it holds none."""
    return _rows(h, slots.tokens)


def _spread_forward(h: Array, slots: Slots) -> tuple[Array, Slots]:
    return spread(h, slots), slots


def _spread_backward(slots: Slots, d_values: Array) -> tuple[Array, None]:
    return _summed(d_values, slots.is_placed.astype(jnp.float32), slots).astype(d_values.dtype), None


spread.defvjp(_spread_forward, _spread_backward)


@jax.custom_vjp
def collect(values: Float[Array, "N D"], weights: Float[Array, "S X"], slots: Slots) -> Float[Array, "S D"]:
    """Return the weighted sum of the rows of each token's choices, float32; those in no slot count nothing.

    Args:
        values: One row a slot; finite.
        weights: float32.
        slots: Where each choice is.
    """
    return _summed(values, jnp.where(slots.is_placed, weights, 0.0), slots)


def _collect_forward(values: Array, weights: Array, slots: Slots) -> tuple[Array, tuple[Array, Array, Slots]]:
    return collect(values, weights, slots), (values, weights, slots)


def _collect_backward(kept: tuple[Array, Array, Slots], d_sums: Array) -> tuple[Array, Array, None]:
    values, weights, slots = kept
    shares = jnp.where(slots.is_used, weights.reshape(-1)[slots.choices], 0.0)
    # Gathered in the type of the values: of so many rows, float32 would be the largest array of all.
    d_values = shares[:, None] * _rows(d_sums.astype(values.dtype), slots.tokens)
    d_weights = jnp.stack(
        [(_rows(values, places).astype(jnp.float32) * d_sums).sum(axis=1) for places in slots.places.T],
        axis=1,
    )
    return d_values.astype(values.dtype), jnp.where(slots.is_placed, d_weights, 0.0), None


collect.defvjp(_collect_forward, _collect_backward)


@jax.custom_vjp
def permuted(
    values: Float[Array, "N D"], order: Int[Array, " N"], inverse: Int[Array, " N"]
) -> Float[Array, "N D"]:
    """Return rows in another order.

    Args:
        values: Rows.
        order: int32, which row comes where.
        inverse: int32, where each row goes.
    """
    return _rows(values, order)


def _permuted_forward(values: Array, order: Array, inverse: Array) -> tuple[Array, Array]:
    return permuted(values, order, inverse), inverse


def _permuted_backward(inverse: Array, d_out: Array) -> tuple[Array, None, None]:
    return _rows(d_out, inverse), None, None


permuted.defvjp(_permuted_forward, _permuted_backward)


def _summed(values: Float[Array, "N D"], weights: Float[Array, "S X"], slots: Slots) -> Float[Array, "S D"]:
    # One choice after the other: all of them at once would take X times the memory.
    parts = (
        _rows(values, places).astype(jnp.float32) * share[:, None]
        for places, share in zip(slots.places.T, weights.T, strict=True)
    )
    total = next(parts)
    for part in parts:
        total = total + part
    return total


def _rows(values: Array, index: Array) -> Array:
    return values.at[index].get(mode="promise_in_bounds")
