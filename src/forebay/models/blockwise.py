"""Blockwise attention: online softmax over blocks of keys, so that memory is linear in the row.

Blocks that a block of queries cannot see (later ones, and those before its first segment) are skipped, so the
time goes with the length of the segments and not with the length of the row. Rows are worked on one after the
other: the working set stays in a CPU's cache.

Legend: B rows, T tokens, H query heads, N key-value heads, G = H / N, K head size, C tokens of a block, J = T
    / C
blocks, Q = G * C queries of a block.

References:
    Milakov and Gimelshein 2018, Online normalizer calculation for softmax, algorithm 3.
    Dao et al. 2022, FlashAttention, algorithms 2 and 4.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

_MASKED = -1e30
_TINY = 1e-30


class _Row(NamedTuple):
    """Which tokens of one row, cut into blocks, see one another."""

    segments: Int[Array, "J C"]
    first: Int[Array, " J"]
    last: Int[Array, " J"]


def blockwise_attention(
    q: Float[Array, "B T H K"],
    k: Float[Array, "B T N K"],
    v: Float[Array, "B T N K"],
    segment_ids: Int[Array, "B T"],
    block_tokens: int,
) -> Float[Array, "B T H K"]:
    """Mix values causally within each segment, one block of queries and one block of keys at a time.

    Args:
        q: Rotated queries.
        k: Rotated keys.
        v: Values.
        segment_ids: [B, T] int32; 0 = padding, whose result is 0; a segment's tokens lie side by side.
        block_tokens: Tokens of a block; rows are padded to a multiple of it.
    """
    length = q.shape[1]
    padding = ((0, 0), (0, -length % block_tokens))
    segments = jnp.pad(segment_ids, padding)
    blocks = (
        _to_blocks(jnp.pad(value, (*padding, (0, 0), (0, 0))), k.shape[2], block_tokens)
        for value in (q, k, v)
    )
    ranges = _visible_blocks(segments, block_tokens)
    cut = segments.reshape(segments.shape[0], -1, block_tokens)
    mixed = jax.lax.map(lambda args: _attend(*args), (*blocks, _Row(cut, *ranges)))
    return _from_blocks(mixed, q.shape[2], block_tokens)[:, :length]


def _to_blocks(
    heads: Float[Array, "B T H K"], num_kv_heads: int, block_tokens: int
) -> Float[Array, "B J N Q K"]:
    rows, _, num_heads, head_size = heads.shape
    cut = heads.reshape(rows, -1, block_tokens, num_kv_heads, num_heads // num_kv_heads, head_size)
    return cut.transpose(0, 1, 3, 4, 2, 5).reshape(rows, cut.shape[1], num_kv_heads, -1, head_size)


def _from_blocks(
    blocks: Float[Array, "B J N Q K"], num_heads: int, block_tokens: int
) -> Float[Array, "B T H K"]:
    rows, num_blocks, num_kv_heads, _, head_size = blocks.shape
    split = blocks.reshape(rows, num_blocks, num_kv_heads, -1, block_tokens, head_size)
    return split.transpose(0, 1, 4, 2, 3, 5).reshape(rows, -1, num_heads, head_size)


def _visible_blocks(
    segments: Int[Array, "B T"], block_tokens: int
) -> tuple[Int[Array, "B J"], Int[Array, "B J"]]:
    """Return the first block that each block of queries sees, and the one after its last."""
    index = jnp.arange(segments.shape[1])
    starts = segments != jnp.pad(segments, ((0, 0), (1, 0)))[:, :-1]
    start_of = jax.lax.cummax(jnp.where(starts, index, 0), axis=1)
    first = start_of[:, ::block_tokens] // block_tokens
    occupied = segments.reshape(*first.shape, block_tokens).any(axis=-1)
    return first, jnp.where(occupied, jnp.arange(first.shape[1]) + 1, first)


@jax.custom_vjp
def _attend(
    q: Float[Array, "J N Q K"], k: Float[Array, "J N C K"], v: Float[Array, "J N C K"], row: _Row
) -> Float[Array, "J N Q K"]:
    """Mix the values of one row."""
    return _attend_forward(q, k, v, row)[0]


def _attend_forward(q: Array, k: Array, v: Array, row: _Row) -> tuple[Array, tuple]:
    def queries(i: Array) -> tuple[Array, Array]:
        def add_keys(j: Array, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            mixed, largest, total = state
            scores, seen = _scores(q[i], k[j], row, i, j)
            new_largest = jnp.maximum(largest, scores.max(axis=-1))
            weights = jnp.where(seen, jnp.exp(scores - new_largest[..., None]), 0.0)
            shrink = jnp.exp(largest - new_largest)
            mixed = mixed * shrink[..., None] + _dot("nqc,nck->nqk", weights.astype(v.dtype), v[j])
            return mixed, new_largest, total * shrink + weights.sum(axis=-1)

        per_query = q.shape[1:3]
        state = (_full(q, q.shape[1:], 0.0), _full(q, per_query, _MASKED), _full(q, per_query, 0.0))
        mixed, largest, total = jax.lax.fori_loop(row.first[i], row.last[i], add_keys, state)
        total = jnp.maximum(total, _TINY)
        return (mixed / total[..., None]).astype(v.dtype), largest + jnp.log(total)

    mixed, log_total = jax.lax.map(queries, jnp.arange(q.shape[0]))
    return mixed, (q, k, v, row, mixed, log_total)


def _attend_backward(kept: tuple, d_mixed: Float[Array, "J N Q K"]) -> tuple[Array, Array, Array, None]:
    q, k, v, row, mixed, log_total = kept
    shared = (d_mixed.astype(jnp.float32) * mixed.astype(jnp.float32)).sum(axis=-1)

    def queries(d_kv: tuple[Array, Array], i: Array) -> tuple[tuple[Array, Array], Array]:
        def add_keys(j: Array, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            dq, dk, dv = state
            scores, seen = _scores(q[i], k[j], row, i, j)
            weights = jnp.where(seen, jnp.exp(scores - log_total[i][..., None]), 0.0)
            d_weights = _dot("nqk,nck->nqc", d_mixed[i], v[j])
            d_scores = (weights * (d_weights - shared[i][..., None]) * q.shape[-1] ** -0.5).astype(q.dtype)
            dq = dq + _dot("nqc,nck->nqk", d_scores, k[j])
            dk = dk.at[j].add(_dot("nqc,nqk->nck", d_scores, q[i]))
            return dq, dk, dv.at[j].add(_dot("nqc,nqk->nck", weights.astype(v.dtype), d_mixed[i]))

        state = (_full(q, q.shape[1:], 0.0), *d_kv)
        dq, dk, dv = jax.lax.fori_loop(row.first[i], row.last[i], add_keys, state)
        return (dk, dv), dq

    zeros = _full(k, k.shape, 0.0)
    (dk, dv), dq = jax.lax.scan(queries, (zeros, zeros), jnp.arange(q.shape[0]))
    return dq.astype(q.dtype), dk.astype(k.dtype), dv.astype(v.dtype), None


_attend.defvjp(_attend_forward, _attend_backward)


def _scores(
    q: Float[Array, "N Q K"], k: Float[Array, "N C K"], row: _Row, i: Array, j: Array
) -> tuple[Float[Array, "N Q C"], Bool[Array, "Q C"]]:
    """Return the masked scores of block i of queries with block j of keys, and which of them count."""
    block_tokens = k.shape[1]
    offsets = jnp.arange(block_tokens)
    same = row.segments[i][:, None] == row.segments[j][None, :]
    causal = j * block_tokens + offsets[None, :] <= i * block_tokens + offsets[:, None]
    seen = same & causal & (row.segments[i] != 0)[:, None]
    seen = jnp.tile(seen, (q.shape[1] // block_tokens, 1))
    return jnp.where(seen, _dot("nqk,nck->nqc", q, k) * q.shape[-1] ** -0.5, _MASKED), seen


def _dot(subscripts: str, left: Array, right: Array) -> Array:
    return jnp.einsum(subscripts, left, right, preferred_element_type=jnp.float32)


def _full(like: Array, shape: tuple[int, ...], fill: float) -> Array:
    """Return a float32 constant that varies over the mesh axes of `like`, as the state of a loop must."""
    return jnp.full_like(like, fill, shape=shape, dtype=jnp.float32)
