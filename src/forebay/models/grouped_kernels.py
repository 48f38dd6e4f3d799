"""Kernels for a TPU: rows times the matrix of their group, and sums of outer products by group.

Rows are cut into tiles. A tile is visited once for each group that has rows in it, in order, so that the
number of visits is at most that of tiles and groups together. Visits are listed when the program runs. Rows
that belong to no group come last, and count as one group more: it multiplies nothing, and writes zeros.

Legend: M rows, D inputs, F outputs, E groups, C rows of a tile, N visits at most.

References:
    Gale et al. 2022, MegaBlocks, section 5, for products of blocks by group.
    jax.experimental.pallas.ops.tpu.megablox: lists of visits made from the sizes of the groups.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

_TILE_ROWS: Final = 256
_LANES: Final = 128
# Bytes of a tile's side: with these, tiles of both sides, twice each, fit where kernels work on every chip.
_INNER_BYTES: Final = 8192
_OUTER_BYTES: Final = 4096
_WIDTH: Final = 512
# Which axes a product runs over: as in a product of matrices, the last of both, the first of both.
_PLAIN: Final = (((1,), (0,)), ((), ()))
_LAST: Final = (((1,), (1,)), ((), ()))
_FIRST: Final = (((0,), (0,)), ((), ()))

Ref = Any


class _Visits(NamedTuple):
    """What each step of a kernel works on; scalars that are there before the step begins.

    Attributes:
        groups: [N] int32; E stands for the rows of no group, E + 1 for no visit at all.
        tiles: [N] int32.
        bounds: [E + 2] int32: a group has the rows from its entry to the next.
    """

    groups: Int[Array, " N"]
    tiles: Int[Array, " N"]
    bounds: Int[Array, " E+2"]


def product(
    rows: Float[Array, "M D"],
    matrices: Float[Array, "E _ _"],
    sizes: Int[Array, " E"],
    *,
    transposed: bool = False,
) -> Float[Array, "M _"]:
    """Multiply every row by the matrix of its group.

    Args:
        rows: Sorted by group.
        matrices: [E, D, F], one per group; [E, F, D] if they are `transposed`.
        sizes: int32, rows of each group; those beyond their sum give 0.
        transposed: Whether to multiply by the transpose of each matrix.

    Returns:
        [M, F], type of `rows`; sums are in float32.
    """
    tile = min(_TILE_ROWS, rows.shape[0])
    inputs, num_outputs = rows.shape[1], matrices.shape[1 if transposed else 2]
    inner, width = _side(inputs, _INNER_BYTES // rows.dtype.itemsize), _side(num_outputs, _WIDTH)
    last_group = matrices.shape[0] - 1

    def at_matrix(column: Any, step: Any, part: Any, groups: Ref, *_: Ref) -> tuple[Any, Any, Any]:
        group = jnp.minimum(groups[step], last_group)
        return (group, column, part) if transposed else (group, part, column)

    return _call(
        functools.partial(_product_body, axes=_LAST if transposed else _PLAIN),
        (pl.cdiv(num_outputs, width), inputs // inner),
        _visits(sizes, rows.shape[0], tile),
        [rows, matrices],
        [
            pl.BlockSpec((tile, inner), lambda column, step, part, _, tiles, __: (tiles[step], part)),
            pl.BlockSpec((None, width, inner) if transposed else (None, inner, width), at_matrix),
        ],
        pl.BlockSpec((tile, width), lambda column, step, part, _, tiles, __: (tiles[step], column)),
        (tile, width),
        (rows.shape[0], num_outputs),
        visits_axis=1,
    )


def outer(
    rows: Float[Array, "M D"], d_out: Float[Array, "M F"], sizes: Int[Array, " E"]
) -> Float[Array, "E D F"]:
    """Return for each group the sum of the outer products of its rows.

    Args:
        rows: Sorted by group; finite, those of no group too.
        d_out: As many rows, finite too.
        sizes: int32, rows of each group.

    Returns:
        Type of `rows`; sums are in float32, 0 for a group without rows.
    """
    tile = min(_TILE_ROWS, rows.shape[0])
    # A tile that reaches beyond the rows holds anything there, and a product with 0 may be no number.
    rows, d_out = (jnp.pad(value, ((0, -value.shape[0] % tile), (0, 0))) for value in (rows, d_out))
    height = _side(rows.shape[1], _OUTER_BYTES // rows.dtype.itemsize)
    width = _side(d_out.shape[1], _WIDTH)
    last_group = sizes.shape[0] - 1

    def at_sum(line: Any, column: Any, step: Any, groups: Ref, *_: Ref) -> tuple[Any, Any, Any]:
        return jnp.minimum(groups[step], last_group), line, column

    return _call(
        _outer_body,
        (pl.cdiv(rows.shape[1], height), pl.cdiv(d_out.shape[1], width)),
        _visits(sizes, rows.shape[0], tile),
        [rows, d_out],
        [
            pl.BlockSpec((tile, height), lambda line, column, step, _, tiles, __: (tiles[step], line)),
            pl.BlockSpec((tile, width), lambda line, column, step, _, tiles, __: (tiles[step], column)),
        ],
        pl.BlockSpec((None, height, width), at_sum),
        (height, width),
        (sizes.shape[0], rows.shape[1], d_out.shape[1]),
        visits_axis=2,
    )


def _visits(sizes: Int[Array, " E"], num_rows: int, tile: int) -> _Visits:
    ends = jnp.concatenate([jnp.cumsum(sizes), jnp.full_like(sizes, num_rows, shape=1)]).astype(jnp.int32)
    bounds = jnp.concatenate([jnp.zeros_like(ends[:1]), ends])
    first = jnp.minimum(bounds[:-1], num_rows - 1) // tile
    last = jnp.maximum((ends - 1) // tile, first)
    until = jnp.cumsum(last - first + 1)
    steps = jnp.arange(pl.cdiv(num_rows, tile) + ends.shape[0] - 1)
    groups = (steps[:, None] >= until).sum(axis=1, dtype=jnp.int32)
    # The first visit of a group is to its first tile; where there is no visit, the tile stays the last one.
    shift = jnp.concatenate([last - until + 1, jnp.zeros_like(last[:1])])
    tiles = jnp.minimum(steps + shift[groups], pl.cdiv(num_rows, tile) - 1)
    return _Visits(groups, tiles.astype(jnp.int32), bounds)


def _product_body(
    groups: Ref,
    tiles: Ref,
    bounds: Ref,
    rows: Ref,
    matrix: Ref,
    out: Ref,
    total: Ref,
    *,
    axes: Any,
) -> None:
    """Multiply a tile by a part of its group's matrix; the last part writes the rows of that group."""
    step, part = pl.program_id(1), pl.program_id(2)
    group, num_groups = groups[step], bounds.shape[0] - 2

    @pl.when(part == 0)
    def start() -> None:
        total[...] = jnp.zeros_like(total)

    @pl.when(group < num_groups)
    def add() -> None:
        total[...] += _dot(rows[...], matrix[...], axes)

    @pl.when((group <= num_groups) & (part == pl.num_programs(2) - 1))
    def finish() -> None:
        inside = _inside(group, tiles[step], bounds, out.shape)
        out[...] = jnp.where(inside, total[...], out[...].astype(jnp.float32)).astype(out.dtype)


def _outer_body(groups: Ref, tiles: Ref, bounds: Ref, rows: Ref, d_out: Ref, out: Ref, total: Ref) -> None:
    """Add the outer products of a tile's rows that belong to a group; its last visit writes the sum."""
    step = pl.program_id(2)
    group, num_groups = groups[step], bounds.shape[0] - 2

    @pl.when((step == 0) | (groups[jnp.maximum(step - 1, 0)] != group))
    def start() -> None:
        total[...] = jnp.zeros_like(total)

    @pl.when(group < num_groups)
    def add() -> None:
        left, right = rows[...], d_out[...]
        # It is enough that one side has no other rows: the narrow one, which is less to do.
        if left.shape[1] < right.shape[1]:
            left = _masked(left, group, tiles[step], bounds)
        else:
            right = _masked(right, group, tiles[step], bounds)
        total[...] += _dot(left, right, _FIRST)

    # The rows of no group are visited last: every group has a visit after its own.
    @pl.when((group < num_groups) & (groups[jnp.minimum(step + 1, groups.shape[0] - 1)] != group))
    def finish() -> None:
        out[...] = total[...].astype(out.dtype)


def _masked(values: Array, group: Array, tile: Array, bounds: Ref) -> Array:
    """Put 0 where rows belong to another group; by way of float32, since not all chips select bfloat16."""
    inside = _inside(group, tile, bounds, values.shape)
    return jnp.where(inside, values.astype(jnp.float32), 0.0).astype(values.dtype)


def _inside(group: Array, tile: Array, bounds: Ref, shape: tuple[int, ...]) -> Array:
    """Return which rows of a tile belong to a group."""
    index = tile * shape[0] + jax.lax.broadcasted_iota(jnp.int32, shape, 0)
    return (index >= bounds[group]) & (index < bounds[group + 1])


def _dot(left: Array, right: Array, axes: Any) -> Array:
    precision = jax.lax.Precision.HIGHEST if left.dtype == jnp.float32 else None
    return jax.lax.dot_general(left, right, axes, precision=precision, preferred_element_type=jnp.float32)


def _call(
    body: Callable[..., None],
    others: tuple[int, int],
    visits: _Visits,
    inputs: list[Array],
    in_specs: list[pl.BlockSpec],
    out_spec: pl.BlockSpec,
    block: tuple[int, int],
    shape: tuple[int, ...],
    visits_axis: int,
) -> Any:
    """Run a kernel over the visits and two axes of blocks; sums of a block are kept in float32."""
    sizes = [*others]
    sizes.insert(visits_axis, visits.groups.shape[0])
    like = jax.typeof(inputs[0])
    flops = 2 * inputs[0].size * shape[-1]
    moved = sum(value.size for value in inputs) + math.prod(shape)
    return pl.pallas_call(
        body,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(visits),
            grid=tuple(sizes),
            in_specs=in_specs,
            out_specs=out_spec,
            scratch_shapes=[pltpu.VMEM(block, jnp.float32)],
        ),
        out_shape=jax.ShapeDtypeStruct(shape, like.dtype, manual_axis_type=like.manual_axis_type),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=tuple(
                pltpu.PARALLEL if axis < visits_axis else pltpu.ARBITRARY for axis in range(3)
            )
        ),
        cost_estimate=pl.CostEstimate(
            flops=flops, transcendentals=0, bytes_accessed=moved * like.dtype.itemsize
        ),
        name=f"grouped_{'outer' if body is _outer_body else 'product'}",
    )(*visits, *inputs)


def _side(size: int, most: int) -> int:
    """Return the largest side of a tile that divides a size and is no more than so much; all of it if none.

    Example:
        >>> _side(384, 512), _side(1536, 1024), _side(1000, 512)
        (384, 768, 1000)
    """
    if size <= most:
        return size
    return next((side for side in range(most, 0, -_LANES) if size % side == 0), size)
