"""Attention in pieces of a row: what is mixed from each piece of the keys is merged by its log-sum-exp.

With one piece this is ordinary attention with a backward pass that keeps no scores. With a mesh axis that
splits the tokens of a row, queries stay where they are; keys, values and their places go round the shards of
the axis, and in the backward pass the gradients of keys and values travel with them. What comes next is sent
while a piece is worked on. Memory is linear in the tokens of one shard, in both passes.

Legend: B rows, T tokens of this shard.

References:
    Liu, Zaharia and Abbeel 2023, Ring Attention with Blockwise Transformers, algorithm 1.
    Dao 2023, FlashAttention-2, section 3.1.2 (backward pass from the log-sum-exp).
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from forebay.models.visibility import Places, ScoreRule

MIXED = "mixed_heads"


@runtime_checkable
class Kernel(Protocol):
    """Computes attention of all queries with one piece of the keys; heads in its own layout [..., K].

    A kernel is hashable: programs are compiled for it.
    """

    def forward(
        self, rule: ScoreRule, q: Array, k: Array, v: Array, queries: Places, keys: Places
    ) -> tuple[Array, Array]:
        """Return what is mixed, [..., K], and the log-sum-exp of the scores, [...] float32."""
        ...

    def backward(
        self,
        rule: ScoreRule,
        q: Array,
        k: Array,
        v: Array,
        queries: Places,
        keys: Places,
        d_mixed: Array,
        log_total: Array,
        shared: Array,
    ) -> tuple[Array, Array, Array]:
        """Return the gradients of queries, keys and values from this piece of the keys."""
        ...


class _Piece(NamedTuple):
    """What goes round: keys, values and where they stand."""

    k: Array
    v: Array
    places: Places


def mix(
    kernel: Kernel,
    rule: ScoreRule,
    axis: str | None,
    q: Float[Array, "..."],
    k: Float[Array, "..."],
    v: Float[Array, "..."],
    places: Places,
) -> Float[Array, "..."]:
    """Mix the values of all shards of `axis` for the queries of this one.

    Args:
        kernel: Computes one piece, in its own layout.
        rule: How scores are made.
        axis: Mesh axis that splits the tokens of rows; None: the row is whole.
        q: Rotated queries of this shard.
        k: Rotated keys of this shard.
        v: Values of this shard.
        places: Where the tokens of this shard stand in the whole row.
    """
    return _mix(kernel, rule, axis, *_alike(q, k, v, places))


def _alike(*values: Any) -> Any:
    """Count all values as different on each shard of every mesh axis that one of them differs over."""
    axes = frozenset().union(*(jax.typeof(leaf).manual_axis_type.varying for leaf in jax.tree.leaves(values)))

    def varying(value: Array) -> Array:
        same = tuple(sorted(axes - jax.typeof(value).manual_axis_type.varying))
        return jax.lax.pcast(value, same, to="varying") if same else value

    return jax.tree.map(varying, values)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _mix(
    kernel: Kernel, rule: ScoreRule, axis: str | None, q: Array, k: Array, v: Array, places: Places
) -> Array:
    return _forward(kernel, rule, axis, q, k, v, places)[0]


def _forward(
    kernel: Kernel, rule: ScoreRule, axis: str | None, q: Array, k: Array, v: Array, places: Places
) -> tuple[Array, tuple[Any, ...]]:
    mixed, log_total = kernel.forward(rule, q, k, v, places, places)
    if axis is not None:

        def step(_: Array, state: tuple[Array, Array, _Piece]) -> tuple[Array, Array, _Piece]:
            mixed, log_total, piece = state
            coming = _pass_on(piece, axis)
            more = kernel.forward(rule, q, piece.k, piece.v, places, piece.places)
            return *_merge((mixed, log_total), more), coming

        state = (mixed.astype(jnp.float32), log_total, _pass_on(_Piece(k, v, places), axis))
        mixed, log_total, _ = jax.lax.fori_loop(1, jax.lax.axis_size(axis), step, state)
    mixed, log_total = (checkpoint_name(value, MIXED) for value in (mixed.astype(v.dtype), log_total))
    return mixed, (q, k, v, places, mixed, log_total)


def _backward(
    kernel: Kernel, rule: ScoreRule, axis: str | None, kept: tuple[Any, ...], d_mixed: Array
) -> tuple[Array, Array, Array, None]:
    q, k, v, places, mixed, log_total = kept
    shared = (d_mixed.astype(jnp.float32) * mixed.astype(jnp.float32)).sum(axis=-1)

    def gradients(piece: _Piece) -> tuple[Array, Array, Array]:
        found = kernel.backward(rule, q, piece.k, piece.v, places, piece.places, d_mixed, log_total, shared)
        dq, dk, dv = (gradient.astype(jnp.float32) for gradient in found)
        return dq, dk, dv

    piece = _Piece(k, v, places)
    dq, dk, dv = gradients(piece)
    if axis is not None:

        def step(_: Array, state: tuple[Array, Array, Array, _Piece]) -> tuple[Array, Array, Array, _Piece]:
            dq, dk, dv, piece = state
            dk, dv, coming = _pass_on((dk, dv, piece), axis)
            more_dq, more_dk, more_dv = gradients(piece)
            return dq + more_dq, dk + more_dk, dv + more_dv, coming

        state = (dq, dk, dv, _pass_on(piece, axis))
        dq, dk, dv, _ = jax.lax.fori_loop(1, jax.lax.axis_size(axis), step, state)
        # After one more turn the gradients are where their keys and values are.
        dk, dv = _pass_on((dk, dv), axis)
    return dq.astype(q.dtype), dk.astype(k.dtype), dv.astype(v.dtype), None


_mix.defvjp(_forward, _backward)


def _pass_on(values: Any, axis: str) -> Any:
    size = jax.lax.axis_size(axis)
    neighbors = [(shard, (shard + 1) % size) for shard in range(size)]
    return jax.tree.map(lambda value: jax.lax.ppermute(value, axis, neighbors), values)


def _merge(one: tuple[Array, Array], other: tuple[Array, Array]) -> tuple[Array, Array]:
    """Return what two disjoint pieces of the keys mix to, and the log-sum-exp of both."""
    log_total = jnp.logaddexp(one[1], other[1])
    first, second = (mixed * jnp.exp(part - log_total)[..., None] for mixed, part in (one, other))
    return first + second, log_total
