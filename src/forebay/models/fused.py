"""Attention kernels for a GPU, written in Pallas for Triton: flash attention over the blocks that are seen.

cuDNN's attention, which `jax.nn.dot_product_attention` offers, takes lengths of whole rows or a mask of all
pairs, and caps no scores; packed rows of a few segments need neither all pairs in memory nor their time.

Legend: B rows, T tokens, S keys, H query heads, N key-value heads, G = H / N, K head size, C tokens of a
    block, J = T / C blocks of queries, I = S / C blocks of keys.

References:
    Dao 2023, FlashAttention-2, algorithms 1 and 2.
    jax.experimental.pallas.ops.gpu.attention: how blocks are read in a kernel for Triton.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jaxtyping import Array, Bool, Float

from forebay.models.visibility import Places, ScoreRule, sees_places, visible_blocks, visible_lists

BLOCK_TOKENS = 64
_MASKED = -1e30
_TINY = 1e-30

Ref = Any


@dataclass(frozen=True, slots=True)
class FusedKernel:
    """The kernels at one size of block; heads lie [B, H, T, K], K a power of 2.

    Args:
        block_tokens: Tokens of a block, a power of 2 that divides the row.
        interpret: Whether to run as ordinary JAX operations: slow, and everywhere.
    """

    block_tokens: int = BLOCK_TOKENS
    interpret: bool = False

    def forward(
        self,
        rule: ScoreRule,
        q: Float[Array, "B H T K"],
        k: Float[Array, "B N S K"],
        v: Float[Array, "B N S K"],
        queries: Places,
        keys: Places,
    ) -> tuple[Float[Array, "B H T K"], Float[Array, "B H T"]]:
        """Mix the values that each query sees; 0 for a query that sees nothing.

        Returns:
            mixed: In the type of the values.
            log_total: Logarithm of the sum of the exponentiated scores, float32; very low where nothing is
                seen.
        """
        tokens, group = self.block_tokens, q.shape[1] // k.shape[1]
        visible = self._visible(queries, keys, rule)
        of_query, of_keys = _head_specs(q, k, tokens, lambda head: head // group)
        block_places, all_places = _place_specs(queries, keys, tokens)
        per_query = pl.BlockSpec((None, None, tokens), lambda i, b, h: (b, h, i))
        mixed, log_total = self._call(
            functools.partial(_forward_body, rule=rule, tokens=tokens),
            (q.shape[2] // tokens, *q.shape[:2]),
            visible,
            [(queries, block_places), (keys, all_places), (q, of_query), (k, of_keys), (v, of_keys)],
            [(_like(q, q.shape, v.dtype), of_query), (_like(q, q.shape[:3], jnp.float32), per_query)],
        )
        return mixed, log_total

    def backward(
        self,
        rule: ScoreRule,
        q: Float[Array, "B H T K"],
        k: Float[Array, "B N S K"],
        v: Float[Array, "B N S K"],
        queries: Places,
        keys: Places,
        d_mixed: Float[Array, "B H T K"],
        log_total: Float[Array, "B H T"],
        shared: Float[Array, "B H T"],
    ) -> tuple[Float[Array, "B H T K"], Float[Array, "B N S K"], Float[Array, "B N S K"]]:
        """Return the gradients of queries, keys and values, each in its own type.

        Args:
            rule: How scores are made.
            q: Queries.
            k: Keys.
            v: Values.
            queries: Places of the queries, [B, T].
            keys: Places of the keys, [B, S].
            d_mixed: Gradient of what `forward` returns, over all keys that the queries ever see.
            log_total: Over all keys that the queries ever see.
            shared: Product of `d_mixed` and what was mixed from all keys.
        """
        tokens, group = self.block_tokens, q.shape[1] // k.shape[1]
        visible = self._visible(queries, keys, rule)
        of_query, of_keys = _head_specs(q, k, tokens, lambda head: head // group)
        block_places, all_places = _place_specs(queries, keys, tokens)
        per_query = pl.BlockSpec((None, None, tokens), lambda i, b, h: (b, h, i))
        (dq,) = self._call(
            functools.partial(_query_gradient_body, rule=rule, tokens=tokens),
            (q.shape[2] // tokens, *q.shape[:2]),
            visible,
            [
                (queries, block_places),
                (keys, all_places),
                (q, of_query),
                (k, of_keys),
                (v, of_keys),
                (d_mixed, of_query),
                (log_total, per_query),
                (shared, per_query),
            ],
            [(_like(q, q.shape, q.dtype), of_query)],
        )
        dk, dv = self._key_gradients(rule, q, k, v, queries, keys, d_mixed, log_total, shared, visible)
        return dq, dk, dv

    def _key_gradients(
        self,
        rule: ScoreRule,
        q: Float[Array, "B H T K"],
        k: Float[Array, "B N S K"],
        v: Float[Array, "B N S K"],
        queries: Places,
        keys: Places,
        d_mixed: Float[Array, "B H T K"],
        log_total: Float[Array, "B H T"],
        shared: Float[Array, "B H T"],
        visible: Bool[Array, "B J I"],
    ) -> tuple[Float[Array, "B N S K"], Float[Array, "B N S K"]]:
        tokens, group = self.block_tokens, q.shape[1] // k.shape[1]
        # All query heads of a key head together, whole: a block of keys goes through their blocks.
        of_key, _ = _head_specs(k, q, tokens, lambda head: head)
        of_queries = pl.BlockSpec((None, group, *q.shape[2:]), lambda j, b, n: (b, n, 0, 0))
        per_queries = pl.BlockSpec((None, group, q.shape[2]), lambda j, b, n: (b, n, 0))
        block_places, all_places = _place_specs(keys, queries, tokens)
        dk, dv = self._call(
            functools.partial(_key_gradients_body, rule=rule, tokens=tokens, group=group),
            (k.shape[2] // tokens, *k.shape[:2]),
            visible.swapaxes(1, 2),
            [
                (queries, all_places),
                (keys, block_places),
                (q, of_queries),
                (k, of_key),
                (v, of_key),
                (d_mixed, of_queries),
                (log_total, per_queries),
                (shared, per_queries),
            ],
            [(_like(k, k.shape, value.dtype), of_key) for value in (k, v)],
        )
        return dk, dv

    def _visible(self, queries: Places, keys: Places, rule: ScoreRule) -> Bool[Array, "B J I"]:
        def in_blocks(places: Places) -> Places:
            return Places(*(value.reshape(value.shape[0], -1, self.block_tokens) for value in places))

        judge = functools.partial(visible_blocks, window=rule.window)
        return jax.vmap(judge)(in_blocks(queries), in_blocks(keys))

    def _call(
        self,
        body: functools.partial[None],
        grid: tuple[int, ...],
        visible: Bool[Array, "B J I"],
        inputs: list[tuple[Any, Any]],
        outputs: list[tuple[Any, Any]],
    ) -> Any:
        """Run a kernel; the lists of blocks that the grid's block sees come first."""
        order, count = visible_lists(visible)
        listed = pl.BlockSpec((None, None, order.shape[2]), lambda i, b, h: (b, i, 0))
        counted = pl.BlockSpec((None, None, 1), lambda i, b, h: (b, i, 0))
        values, specs = zip(*inputs, strict=True)
        shapes, out_specs = zip(*outputs, strict=True)
        return pl.pallas_call(
            body,
            grid=grid,
            in_specs=[listed, counted, *specs],
            out_specs=out_specs,
            out_shape=shapes,
            compiler_params=plgpu.CompilerParams(num_warps=4, num_stages=2),
            interpret=self.interpret,
            name=f"attention_{body.func.__name__.strip('_').removesuffix('_body')}",
        )(order, count[..., None], *values)


def _head_specs(
    own: Array, other: Array, tokens: int, other_head: Callable[[Any], Any]
) -> tuple[pl.BlockSpec, pl.BlockSpec]:
    """Cut heads [B, H, T, K] into the block of this step, and into all tokens of the head it belongs to."""
    return (
        pl.BlockSpec((None, None, tokens, own.shape[3]), lambda i, b, h: (b, h, i, 0)),
        pl.BlockSpec((None, None, *other.shape[2:]), lambda i, b, h: (b, other_head(h), 0, 0)),
    )


def _place_specs(own: Places, other: Places, tokens: int) -> tuple[Places, Places]:
    block = pl.BlockSpec((None, tokens), lambda i, b, h: (b, i))
    row = pl.BlockSpec((None, other.order.shape[1]), lambda i, b, h: (b, 0))
    return Places(block, block), Places(row, row)  # type: ignore[arg-type]


def _like(value: Array, shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
    """Describe a result that differs over the mesh axes that `value` differs over."""
    return jax.ShapeDtypeStruct(shape, dtype, manual_axis_type=jax.typeof(value).manual_axis_type)


def _forward_body(
    order: Ref,
    count: Ref,
    queries: Places,
    keys: Places,
    q: Ref,
    k: Ref,
    v: Ref,
    mixed: Ref,
    log_total: Ref,
    *,
    rule: ScoreRule,
    tokens: int,
) -> None:
    own, q_block = _columns(queries, pl.ds(0, tokens)), q[...]

    def add_keys(n: Array, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        sum_mixed, largest, total = state
        at = pl.ds(order[n] * tokens, tokens)
        seen = sees_places(own, _rows(keys, at), rule.window)
        scores = jnp.where(seen, rule.score(_dot(q_block, k[at, :].T)), _MASKED)
        new_largest = jnp.maximum(largest, scores.max(axis=1))
        weights = jnp.where(seen, jnp.exp(scores - new_largest[:, None]), 0.0)
        shrink = jnp.exp(largest - new_largest)
        sum_mixed = sum_mixed * shrink[:, None] + _dot(weights.astype(v.dtype), v[at, :])
        return sum_mixed, new_largest, total * shrink + weights.sum(axis=1)

    state = (
        jnp.zeros(q_block.shape, jnp.float32),
        jnp.full(tokens, _MASKED, jnp.float32),
        jnp.zeros(tokens, jnp.float32),
    )
    sum_mixed, largest, total = jax.lax.fori_loop(0, count[0], add_keys, state)
    total = jnp.maximum(total, _TINY)
    mixed[...] = (sum_mixed / total[:, None]).astype(mixed.dtype)
    log_total[...] = largest + jnp.log(total)


def _query_gradient_body(
    order: Ref,
    count: Ref,
    queries: Places,
    keys: Places,
    q: Ref,
    k: Ref,
    v: Ref,
    d_mixed: Ref,
    log_total: Ref,
    shared: Ref,
    dq: Ref,
    *,
    rule: ScoreRule,
    tokens: int,
) -> None:
    own, q_block, d_block = _columns(queries, pl.ds(0, tokens)), q[...], d_mixed[...]
    known = log_total[...][:, None], shared[...][:, None]

    def add_keys(n: Array, sum_dq: Array) -> Array:
        at = pl.ds(order[n] * tokens, tokens)
        seen = sees_places(own, _rows(keys, at), rule.window)
        k_block = k[at, :]
        scores = rule.score(_dot(q_block, k_block.T))
        weights = jnp.where(seen, jnp.exp(scores - known[0]), 0.0)
        d_scores = weights * (_dot(d_block, v[at, :].T) - known[1])
        return sum_dq + _dot(rule.product_gradient(d_scores, scores).astype(k.dtype), k_block)

    zeros = jnp.zeros(q_block.shape, jnp.float32)
    dq[...] = jax.lax.fori_loop(0, count[0], add_keys, zeros).astype(dq.dtype)


def _key_gradients_body(
    order: Ref,
    count: Ref,
    queries: Places,
    keys: Places,
    q: Ref,
    k: Ref,
    v: Ref,
    d_mixed: Ref,
    log_total: Ref,
    shared: Ref,
    dk: Ref,
    dv: Ref,
    *,
    rule: ScoreRule,
    tokens: int,
    group: int,
) -> None:
    own, k_block, v_block = _columns(keys, pl.ds(0, tokens)), k[...], v[...]

    def add_queries(step: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        sum_dk, sum_dv = state
        head, n = step // count[0], step % count[0]
        at = pl.ds(order[n] * tokens, tokens)
        seen = sees_places(_rows(queries, at), own, rule.window)
        q_block, d_block = q[head, at, :], d_mixed[head, at, :]
        scores = rule.score(_dot(k_block, q_block.T))
        weights = jnp.where(seen, jnp.exp(scores - log_total[head, at][None, :]), 0.0)
        d_scores = weights * (_dot(v_block, d_block.T) - shared[head, at][None, :])
        sum_dk = sum_dk + _dot(rule.product_gradient(d_scores, scores).astype(q.dtype), q_block)
        return sum_dk, sum_dv + _dot(weights.astype(d_mixed.dtype), d_block)

    zeros = jnp.zeros(k_block.shape, jnp.float32)
    sum_dk, sum_dv = jax.lax.fori_loop(0, group * count[0], add_queries, (zeros, zeros))
    dk[...] = sum_dk.astype(dk.dtype)
    dv[...] = sum_dv.astype(dv.dtype)


def _columns(places: Places, at: Any) -> Places:
    return Places(places.segments[at][:, None], places.order[at][:, None])


def _rows(places: Places, at: Any) -> Places:
    return Places(places.segments[at][None, :], places.order[at][None, :])


def _dot(left: Array, right: Array) -> Array:
    return plgpu.dot(left, right, precision=jax.lax.Precision.HIGHEST if left.dtype == jnp.float32 else None)
