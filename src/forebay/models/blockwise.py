"""Blockwise attention: online softmax over blocks of keys, so that memory is linear in the row.

Blocks of keys that a block of queries cannot see (later ones, those of other segments, those outside the
window) are never computed, so the time goes with the length of the segments and not with that of the row.
Rows are worked on one after the other: the working set stays in a CPU's cache.

Legend: B rows, T tokens, H query heads, N key-value heads, G = H / N, K head size, C tokens of a block, J = T
    / C blocks of queries, I blocks of keys, Q = G * C queries of a block.

References:
    Milakov and Gimelshein 2018, Online normalizer calculation for softmax, algorithm 3.
    Dao 2023, FlashAttention-2, algorithms 1 and 2.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from forebay.models.visibility import Places, ScoreRule, sees, visible_blocks, visible_lists

_MASKED = -1e30
_TINY = 1e-30


def to_blocks(
    heads: Float[Array, "B T H K"], num_kv_heads: int, block_tokens: int
) -> Float[Array, "B J N Q K"]:
    """Cut heads into blocks of tokens, padded at the end; queries of a key-value head lie side by side."""
    padded = jnp.pad(heads, ((0, 0), (0, -heads.shape[1] % block_tokens), (0, 0), (0, 0)))
    rows, _, num_heads, head_size = padded.shape
    cut = padded.reshape(rows, -1, block_tokens, num_kv_heads, num_heads // num_kv_heads, head_size)
    return cut.transpose(0, 1, 3, 4, 2, 5).reshape(rows, cut.shape[1], num_kv_heads, -1, head_size)


def from_blocks(
    blocks: Float[Array, "B J N Q K"], num_heads: int, block_tokens: int, length: int
) -> Float[Array, "B T H K"]:
    """Undo `to_blocks`, padding included."""
    rows, num_blocks, num_kv_heads, _, head_size = blocks.shape
    split = blocks.reshape(rows, num_blocks, num_kv_heads, -1, block_tokens, head_size)
    return split.transpose(0, 1, 4, 2, 3, 5).reshape(rows, -1, num_heads, head_size)[:, :length]


def places_in_blocks(places: Places, block_tokens: int) -> Places:
    """Cut the places [B, T] of tokens into blocks [B, J, C]; what is added at the end is padding."""
    rows, length = places.segments.shape
    added = ((0, 0), (0, -length % block_tokens))
    segments = jnp.pad(places.segments, added)
    index = jnp.pad(places.order, added, mode="edge")
    return Places(*(value.reshape(rows, -1, block_tokens) for value in (segments, index)))


def forward(
    rule: ScoreRule,
    q: Float[Array, "B J N Q K"],
    k: Float[Array, "B I N C K"],
    v: Float[Array, "B I N C K"],
    queries: Places,
    keys: Places,
) -> tuple[Float[Array, "B J N Q K"], Float[Array, "B J N Q"]]:
    """Mix the values that each query sees.

    Returns:
        mixed: float32; 0 for a query that sees nothing.
        log_total: Logarithm of the sum of the exponentiated scores, float32; very low where nothing is seen.
    """
    return jax.lax.map(lambda row: _row_forward(rule, *row), (q, k, v, queries, keys))


def backward(
    rule: ScoreRule,
    q: Float[Array, "B J N Q K"],
    k: Float[Array, "B I N C K"],
    v: Float[Array, "B I N C K"],
    queries: Places,
    keys: Places,
    d_mixed: Float[Array, "B J N Q K"],
    log_total: Float[Array, "B J N Q"],
    shared: Float[Array, "B J N Q"],
) -> tuple[Float[Array, "B J N Q K"], Float[Array, "B I N C K"], Float[Array, "B I N C K"]]:
    """Return the gradients of queries, keys and values, float32.

    Args:
        rule: How scores are made.
        q: Queries.
        k: Keys.
        v: Values.
        queries: Places of the queries, [B, J, C].
        keys: Places of the keys, [B, I, C].
        d_mixed: Gradient of what `forward` returns, over all keys that the queries ever see.
        log_total: Over all keys that the queries ever see.
        shared: Product of `d_mixed` and what was mixed from all keys.
    """
    return jax.lax.map(
        lambda row: _row_backward(rule, *row), (q, k, v, queries, keys, d_mixed, log_total, shared)
    )


def _row_forward(
    rule: ScoreRule, q: Array, k: Array, v: Array, queries: Places, keys: Places
) -> tuple[Array, Array]:
    order, count = visible_lists(visible_blocks(queries, keys, rule.window))

    def mix(i: Array) -> tuple[Array, Array]:
        def add_keys(n: Array, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            mixed, largest, total = state
            j = order[i, n]
            scores, seen = _scores(rule, q[i], k[j], _at(queries, i), _at(keys, j))
            scores = jnp.where(seen, scores, _MASKED)
            new_largest = jnp.maximum(largest, scores.max(axis=-1))
            weights = jnp.where(seen, jnp.exp(scores - new_largest[..., None]), 0.0)
            shrink = jnp.exp(largest - new_largest)
            mixed = mixed * shrink[..., None] + _dot("nqc,nck->nqk", weights.astype(v.dtype), v[j])
            return mixed, new_largest, total * shrink + weights.sum(axis=-1)

        per_query = q.shape[1:3]
        state = (_full(q, q.shape[1:], 0.0), _full(q, per_query, _MASKED), _full(q, per_query, 0.0))
        mixed, largest, total = jax.lax.fori_loop(0, count[i], add_keys, state)
        total = jnp.maximum(total, _TINY)
        return mixed / total[..., None], largest + jnp.log(total)

    return jax.lax.map(mix, jnp.arange(q.shape[0]))


def _row_backward(
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
    order, count = visible_lists(visible_blocks(queries, keys, rule.window))

    def of_queries(d_kv: tuple[Array, Array], i: Array) -> tuple[tuple[Array, Array], Array]:
        def add_keys(n: Array, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            dq, dk, dv = state
            j = order[i, n]
            scores, seen = _scores(rule, q[i], k[j], _at(queries, i), _at(keys, j))
            weights = jnp.where(seen, jnp.exp(scores - log_total[i][..., None]), 0.0)
            d_weights = _dot("nqk,nck->nqc", d_mixed[i], v[j])
            d_scores = weights * (d_weights - shared[i][..., None])
            d_products = rule.product_gradient(d_scores, scores).astype(q.dtype)
            dq = dq + _dot("nqc,nck->nqk", d_products, k[j])
            dk = dk.at[j].add(_dot("nqc,nqk->nck", d_products, q[i]))
            return dq, dk, dv.at[j].add(_dot("nqc,nqk->nck", weights.astype(v.dtype), d_mixed[i]))

        state = (_full(q, q.shape[1:], 0.0), *d_kv)
        dq, dk, dv = jax.lax.fori_loop(0, count[i], add_keys, state)
        return (dk, dv), dq

    zeros = _full(q, k.shape, 0.0)
    (dk, dv), dq = jax.lax.scan(of_queries, (zeros, zeros), jnp.arange(q.shape[0]))
    return dq, dk, dv


def _scores(
    rule: ScoreRule, q: Float[Array, "N Q K"], k: Float[Array, "N C K"], queries: Places, keys: Places
) -> tuple[Float[Array, "N Q C"], Bool[Array, "Q C"]]:
    """Return the scores of a block of queries with a block of keys, and which of them count."""
    seen = sees(queries, keys, rule.window)
    groups = q.shape[1] // seen.shape[0]
    return rule.score(_dot("nqk,nck->nqc", q, k)), jnp.tile(seen, (groups, 1))


def _at(places: Places, block: Array) -> Places:
    return Places(places.segments[block], places.order[block])


def _dot(subscripts: str, left: Array, right: Array) -> Array:
    return jnp.einsum(subscripts, left, right, preferred_element_type=jnp.float32)


def _full(like: Array, shape: tuple[int, ...], fill: float) -> Array:
    """Return a float32 constant that varies over the mesh axes of `like`, as the state of a loop must."""
    return jnp.full_like(like, fill, shape=shape, dtype=jnp.float32)
