"""Rows sorted by group, times the matrix of their group, at the cost of the rows alone.

XLA expands `jax.lax.ragged_dot` to one masked product of all rows per group wherever it has no kernel for it:
on a CPU always, on a TPU in the gradient of the matrices. 64 groups are then 64 times the work. On a TPU
`grouped_kernels` multiplies; elsewhere the rows of each group are taken tile by tile, in loops as long as the
groups are.

Legend: M rows, D inputs, F outputs, E groups.
"""

from __future__ import annotations

import functools
from typing import Final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from forebay.models import grouped_kernels

# Enough rows for a matrix unit to be busy; few, where small groups are common and a call costs little.
_TILE_ROWS: Final = 512
_TILE_ROWS_OF_CPU: Final = 64


def grouped_matmul(
    rows: Float[Array, "M D"], matrices: Float[Array, "E D F"], sizes: Int[Array, " E"]
) -> Float[Array, "M F"]:
    """Multiply every row by the matrix of its group.

    Args:
        rows: The first `sizes[0]` belong to group 0, the next `sizes[1]` to group 1, and so on.
        matrices: One per group.
        sizes: int32; rows beyond their sum belong to no group: they cost nothing and give 0.

    Returns:
        Type of `rows`; sums are in float32.
    """
    return _grouped(rows, matrices, sizes)


@jax.custom_vjp
def _grouped(rows: Array, matrices: Array, sizes: Array) -> Array:
    return jax.lax.platform_dependent(
        rows,
        matrices,
        sizes,
        tpu=grouped_kernels.product,
        cpu=functools.partial(_tiled, num_tile_rows=_TILE_ROWS_OF_CPU),
        default=functools.partial(_tiled, num_tile_rows=_TILE_ROWS),
    )


def _grouped_forward(rows: Array, matrices: Array, sizes: Array) -> tuple[Array, tuple[Array, Array, Array]]:
    return _grouped(rows, matrices, sizes), (rows, matrices, sizes)


def _grouped_backward(kept: tuple[Array, Array, Array], d_out: Array) -> tuple[Array, Array, None]:
    rows, matrices, sizes = kept
    d_rows = jax.lax.platform_dependent(
        d_out,
        matrices,
        sizes,
        tpu=functools.partial(grouped_kernels.product, transposed=True),
        default=lambda *values: _grouped(values[0], values[1].swapaxes(1, 2), values[2]),
    )
    d_matrices = jax.lax.platform_dependent(
        rows,
        d_out,
        sizes,
        tpu=grouped_kernels.outer,
        cpu=functools.partial(_tiled_outer, num_tile_rows=_TILE_ROWS_OF_CPU),
        default=functools.partial(_tiled_outer, num_tile_rows=_TILE_ROWS),
    )
    return d_rows, d_matrices.astype(matrices.dtype), None


_grouped.defvjp(_grouped_forward, _grouped_backward)


def _tiled(rows: Array, matrices: Array, sizes: Array, *, num_tile_rows: int) -> Array:
    """Write tile after tile in the order of the groups: what a tile writes too far, the next overwrites."""
    padded, starts = _padded(rows, num_tile_rows), jnp.cumsum(sizes) - sizes

    def group(index: Array, out: Array) -> Array:
        matrix = matrices[index]

        def tile(number: Array, out: Array) -> Array:
            start = starts[index] + number * num_tile_rows
            part = jax.lax.dynamic_slice_in_dim(padded, start, num_tile_rows)
            product = jnp.dot(part, matrix, preferred_element_type=jnp.float32).astype(out.dtype)
            return jax.lax.dynamic_update_slice_in_dim(out, product, start, 0)

        return jax.lax.fori_loop(0, _num_tiles(sizes[index], num_tile_rows), tile, out)

    out = jnp.full_like(padded, 0, shape=(padded.shape[0], matrices.shape[2]))
    return _without_rest(jax.lax.fori_loop(0, matrices.shape[0], group, out)[: rows.shape[0]], sizes)


def _tiled_outer(
    rows: Float[Array, "M D"], d_out: Float[Array, "M F"], sizes: Int[Array, " E"], *, num_tile_rows: int
) -> Float[Array, "E D F"]:
    """Return the sum of the outer products of each group's rows, in the type of the rows."""
    padded, d_padded = (_padded(value, num_tile_rows) for value in (rows, d_out))
    starts = jnp.cumsum(sizes) - sizes

    def group(index: Array, sums: Array) -> Array:
        def tile(number: Array, total: Array) -> Array:
            start = number * num_tile_rows
            part, d_part = (
                jax.lax.dynamic_slice_in_dim(value, starts[index] + start, num_tile_rows)
                for value in (padded, d_padded)
            )
            inside = start + jnp.arange(num_tile_rows)[:, None] < sizes[index]
            part = jnp.where(inside, part, 0)
            return total + jnp.dot(part.T, d_part, preferred_element_type=jnp.float32)

        zeros = jnp.full_like(sums, 0, shape=sums.shape[1:], dtype=jnp.float32)
        total = jax.lax.fori_loop(0, _num_tiles(sizes[index], num_tile_rows), tile, zeros)
        return jax.lax.dynamic_update_index_in_dim(sums, total.astype(sums.dtype), index, 0)

    sums = jnp.full_like(padded, 0, shape=(sizes.shape[0], rows.shape[1], d_out.shape[1]))
    return jax.lax.fori_loop(0, sizes.shape[0], group, sums)


def _without_rest(out: Array, sizes: Array) -> Array:
    """Put 0 where rows belong to no group."""
    return jnp.where(jnp.arange(out.shape[0])[:, None] < sizes.sum(), out, 0)


def _padded(rows: Array, num_tile_rows: int) -> Array:
    return jnp.pad(rows, ((0, num_tile_rows), (0, 0)))


def _num_tiles(size: Array, num_tile_rows: int) -> Array:
    return (size + num_tile_rows - 1) // num_tile_rows
