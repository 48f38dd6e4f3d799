"""Attention kernels for a TPU: flash attention over lists of the blocks that are seen, forward and backward.

As JAX's splash attention they visit only blocks that hold something to see; their lists are made at run time,
so that what other segments hold is skipped too, and not only what comes after a token. They say how their
results differ over mesh axes, which a `shard_map` that checks it (and so transposes its sums rightly) asks.

Legend: B rows, T tokens, S keys, H query heads, N key-value heads, G = H / N, K head size, C tokens of a
    block, J = T / C blocks of queries, I = S / C blocks of keys.

References:
    Dao 2023, FlashAttention-2, algorithms 1 and 2.
    jax.experimental.pallas.ops.tpu.splash_attention: the grid and its prefetched lists of blocks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Bool, Float

from forebay.models.splash_kernels import (
    LANES,
    forward_body,
    key_gradients_body,
    query_gradient_body,
    visited,
)
from forebay.models.visibility import Places, ScoreRule, visible_blocks, visible_lists

BLOCK_TOKENS = (512, 256, 128)
_PARALLEL = (pltpu.PARALLEL,) * 3
_IN_ORDER = (pltpu.ARBITRARY,) * 2


class _Operand(NamedTuple):
    """An input or output of a kernel: the value, or its shape and type, and how a grid step cuts it."""

    value: Any
    spec: pl.BlockSpec


class _Grid(NamedTuple):
    """The steps of a kernel: their number by axis, and which row, head and block each side has in a step."""

    sizes: tuple[int, ...]
    at_query: Callable[..., tuple[Any, Any, Any]]
    at_key: Callable[..., tuple[Any, Any, Any]]


def block_tokens_of(length: int) -> int:
    """Return the largest block that adds no more than an eighth of padding to a row, or the smallest one."""
    fitting = (size for size in BLOCK_TOKENS if -length % size <= length // 8)
    return next(fitting, BLOCK_TOKENS[-1])


@dataclass(frozen=True, slots=True)
class SplashKernel:
    """The kernels at one size of block; heads lie [B, H, T, K].

    Args:
        block_tokens: Tokens of a block, a multiple of 128 that divides the row.
    """

    block_tokens: int

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
        tokens, head_size = self.block_tokens, q.shape[-1]
        grid = _by_query(q, k, tokens)
        mixed, log_total = _call(
            functools.partial(forward_body, rule=rule),
            grid,
            self._visible(queries, keys, rule),
            [
                self._columns(queries, grid.at_query),
                self._rows(keys, grid.at_key),
                self._heads(q, grid.at_query),
                self._heads(k, grid.at_key),
                self._heads(v, grid.at_key),
            ],
            [
                self._heads(_like(q, q.shape, v.dtype), grid.at_query),
                self._known(_like(q, (*q.shape[:2], 1, q.shape[2]), jnp.float32), grid.at_query),
            ],
            [(tokens, head_size), (tokens, LANES), (tokens, LANES)],
            _cost(q, k, rule, num_products=2),
        )
        return mixed, log_total[:, :, 0]

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
        visible = self._visible(queries, keys, rule)
        known = jnp.stack([log_total, shared], axis=2)
        block = (self.block_tokens, q.shape[-1])

        def shared_inputs(grid: _Grid) -> list[_Operand]:
            return [
                self._heads(q, grid.at_query),
                self._heads(k, grid.at_key),
                self._heads(v, grid.at_key),
                self._heads(d_mixed, grid.at_query),
                self._known(known, grid.at_query),
            ]

        grid = _by_query(q, k, self.block_tokens)
        (dq,) = _call(
            functools.partial(query_gradient_body, rule=rule),
            grid,
            visible,
            [self._columns(queries, grid.at_query), self._rows(keys, grid.at_key), *shared_inputs(grid)],
            [self._heads(_like(q, q.shape, q.dtype), grid.at_query)],
            [block],
            _cost(q, k, rule, num_products=3),
        )
        grid = _by_key(q, k, self.block_tokens)
        dk, dv = _call(
            functools.partial(key_gradients_body, rule=rule),
            grid,
            visible.swapaxes(1, 2),
            [self._rows(queries, grid.at_query), self._columns(keys, grid.at_key), *shared_inputs(grid)],
            [self._heads(_like(k, k.shape, value.dtype), grid.at_key) for value in (k, v)],
            [block, block],
            _cost(q, k, rule, num_products=4),
        )
        return dq, dk, dv

    def _visible(self, queries: Places, keys: Places, rule: ScoreRule) -> Bool[Array, "B J I"]:
        def in_blocks(places: Places) -> Places:
            return Places(*(value.reshape(value.shape[0], -1, self.block_tokens) for value in places))

        judge = functools.partial(visible_blocks, window=rule.window)
        return jax.vmap(judge)(in_blocks(queries), in_blocks(keys))

    def _heads(self, value: Any, at: Callable[..., Any]) -> _Operand:
        block = (None, None, self.block_tokens, value.shape[-1])
        return _Operand(value, pl.BlockSpec(block, lambda *ids: (*at(*ids), 0)))

    def _known(self, value: Any, at: Callable[..., Any]) -> _Operand:
        """Cut what is known of each head and token, [B, H, n, T]."""

        def index(*ids: Any) -> tuple[Any, ...]:
            row, head, block = at(*ids)
            return row, head, 0, block

        return _Operand(value, pl.BlockSpec((None, None, value.shape[2], self.block_tokens), index))

    def _columns(self, places: Places, at: Callable[..., Any]) -> _Operand:
        def index(*ids: Any) -> tuple[Any, ...]:
            row, _, block = at(*ids)
            return row, block, 0

        return _Operand(jnp.stack(places, axis=2), pl.BlockSpec((None, self.block_tokens, 2), index))

    def _rows(self, places: Places, at: Callable[..., Any]) -> _Operand:
        def index(*ids: Any) -> tuple[Any, ...]:
            row, _, block = at(*ids)
            return row, 0, block

        return _Operand(jnp.stack(places, axis=1), pl.BlockSpec((None, 2, self.block_tokens), index))


def _by_query(q: Array, k: Array, block_tokens: int) -> _Grid:
    """Go through rows, query heads, blocks of queries, and the blocks of keys that each visits."""
    rows, heads, length, _ = q.shape
    num_queries, num_keys = length // block_tokens, k.shape[2] // block_tokens
    group = heads // k.shape[1]

    def at_query(b: Any, h: Any, i: Any, *_: Any) -> tuple[Any, Any, Any]:
        return b, h, i

    def at_key(b: Any, h: Any, i: Any, step: Any, order: Any, count: Any) -> tuple[Any, Any, Any]:
        return b, h // group, _nth(order, count, b, i, step, num_queries, num_keys)

    return _Grid((rows, heads, num_queries, num_keys), at_query, at_key)


def _by_key(q: Array, k: Array, block_tokens: int) -> _Grid:
    """Go through rows, key heads, blocks of keys, their query heads, and the blocks of queries of each."""
    rows, heads, length, _ = q.shape
    num_queries, num_keys = length // block_tokens, k.shape[2] // block_tokens
    group = heads // k.shape[1]

    def at_query(b: Any, n: Any, j: Any, g: Any, step: Any, order: Any, count: Any) -> tuple[Any, Any, Any]:
        return b, n * group + g, _nth(order, count, b, j, step, num_keys, num_queries)

    def at_key(b: Any, n: Any, j: Any, *_: Any) -> tuple[Any, Any, Any]:
        return b, n, j

    return _Grid((rows, k.shape[1], num_keys, group, num_queries), at_query, at_key)


def _nth(order: Any, count: Any, row: Any, block: Any, step: Any, num_blocks: int, num_others: int) -> Any:
    """Return the block that a step visits; idle steps stay at the last one, so that nothing is fetched."""
    last = jnp.maximum(visited(count, row, block, num_blocks) - 1, 0)
    return order[(row * num_blocks + block) * num_others + jnp.minimum(step, last)]


def _call(
    body: functools.partial[None],
    grid: _Grid,
    visible: Bool[Array, "B J I"],
    inputs: Sequence[_Operand],
    outputs: Sequence[_Operand],
    scratch: Sequence[tuple[int, int]],
    cost: pl.CostEstimate,
) -> Any:
    """Run a kernel; scratch memory is float32."""
    order, count = visible_lists(visible)
    return pl.pallas_call(
        body,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=grid.sizes,
            in_specs=[operand.spec for operand in inputs],
            out_specs=[operand.spec for operand in outputs],
            scratch_shapes=[pltpu.VMEM(shape, jnp.float32) for shape in scratch],
        ),
        out_shape=[operand.value for operand in outputs],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=(*_PARALLEL, *_IN_ORDER[: len(grid.sizes) - 3])
        ),
        cost_estimate=cost,
        name=f"attention_{body.func.__name__.removesuffix('_body')}",
    )(order.reshape(-1), count.reshape(-1), *(operand.value for operand in inputs))


def _like(value: Array, shape: Sequence[int], dtype: Any) -> jax.ShapeDtypeStruct:
    """Describe a result that differs over the mesh axes that `value` differs over."""
    return jax.ShapeDtypeStruct(tuple(shape), dtype, manual_axis_type=jax.typeof(value).manual_axis_type)


def _cost(q: Array, k: Array, rule: ScoreRule, num_products: int) -> pl.CostEstimate:
    """Estimate the work of one segment a row, which no packing exceeds; the compiler cannot look inside."""
    rows, heads, length, head_size = q.shape
    seen = k.shape[2] // 2 if rule.window is None else min(rule.window, k.shape[2] // 2)
    pairs = rows * heads * length * seen
    return pl.CostEstimate(
        flops=2 * num_products * pairs * head_size,
        transcendentals=pairs,
        bytes_accessed=2 * (q.size + k.size) * q.dtype.itemsize,
    )
