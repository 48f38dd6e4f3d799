"""The TPU's kernels, run by Pallas' TPU interpreter on a CPU, against a loop over groups."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from forebay.models.grouped_kernels import outer, product

RNG = np.random.default_rng(0)
SIZES = {
    "tiles of several groups, groups of several tiles": (100, 0, 63, 357),
    "borders of tiles, and rows of no group": (256, 0, 150, 0),
}
M, D, F = 520, 24, 40


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_products_and_sums_are_those_of_each_group(sizes: tuple[int, ...]) -> None:
    rows, d_out = (RNG.normal(size=(M, width)).astype(np.float32) for width in (D, F))
    matrices = RNG.normal(size=(len(sizes), D, F)).astype(np.float32)
    expected = [np.zeros((M, F)), np.zeros((M, D)), np.zeros(matrices.shape)]
    start = 0
    for group, size in enumerate(sizes):
        own = slice(start, start + size)
        expected[0][own] = rows[own] @ matrices[group]
        expected[1][own] = d_out[own] @ matrices[group].T
        expected[2][group] = rows[own].T @ d_out[own]
        start += size
    with pltpu.force_tpu_interpret_mode():
        got = (
            product(jnp.asarray(rows), jnp.asarray(matrices), jnp.asarray(sizes)),
            product(jnp.asarray(d_out), jnp.asarray(matrices), jnp.asarray(sizes), transposed=True),
            outer(jnp.asarray(rows), jnp.asarray(d_out), jnp.asarray(sizes)),
        )
    for value, reference in zip(got, expected, strict=True):
        np.testing.assert_allclose(value, reference, rtol=1e-5, atol=1e-4)


def test_wide_matrices_are_cut_into_tiles() -> None:
    """Inputs of 2,304 float32 take two parts of a product and three lines of a sum, outputs two columns."""
    rows = RNG.normal(size=(8, 2304)).astype(np.float32)
    matrices = RNG.normal(size=(2, 2304, 768)).astype(np.float32)
    with pltpu.force_tpu_interpret_mode():
        got = product(jnp.asarray(rows), jnp.asarray(matrices), jnp.asarray((3, 5)))
        sums = outer(jnp.asarray(rows), got, jnp.asarray((3, 5)))
    expected = np.concatenate([rows[:3] @ matrices[0], rows[3:] @ matrices[1]])
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(sums[1], rows[3:].T @ np.asarray(got)[3:], rtol=1e-4, atol=1e-2)


def test_sums_of_bfloat16_are_in_float32() -> None:
    rows, matrices = jnp.ones((16, 4096), jnp.bfloat16), jnp.ones((1, 4096, 128), jnp.bfloat16)
    with pltpu.force_tpu_interpret_mode():
        got = product(rows, matrices, jnp.asarray([16]))
    assert got.dtype == jnp.bfloat16
    np.testing.assert_array_equal(np.asarray(got, np.float32), 4096.0)
