"""Grouped products against a loop over groups, and their gradients against those of `ragged_dot`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from forebay.models.grouped_matmul import grouped_matmul

RNG = np.random.default_rng(0)
SIZES = {
    "several tiles and none": (100, 0, 63, 65, 20),
    "all in the last": (0, 0, 0, 0, 300),
    "nothing at all": (0, 0, 0, 0, 0),
    "one row each": (1, 1, 1, 1, 1),
}


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_every_row_is_multiplied_by_the_matrix_of_its_group(sizes: tuple[int, ...]) -> None:
    rows, matrices = RNG.normal(size=(300, 6)), RNG.normal(size=(5, 6, 7))
    expected = np.zeros((300, 7))
    start = 0
    for matrix, size in zip(matrices, sizes, strict=True):
        expected[start : start + size] = rows[start : start + size] @ matrix
        start += size
    got = grouped_matmul(
        jnp.asarray(rows, jnp.float32), jnp.asarray(matrices, jnp.float32), jnp.asarray(sizes)
    )
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_gradients_are_those_of_ragged_dot(sizes: tuple[int, ...]) -> None:
    rows = jnp.asarray(RNG.normal(size=(300, 6)), jnp.float32)
    matrices = jnp.asarray(RNG.normal(size=(5, 6, 7)), jnp.float32)
    weights = jnp.asarray(RNG.normal(size=(300, 7)), jnp.float32)

    def gradients(product: object) -> tuple[jax.Array, jax.Array]:
        return jax.grad(lambda *both: (product(*both, jnp.asarray(sizes)) * weights).sum(), (0, 1))(
            rows, matrices
        )

    for got, expected in zip(gradients(grouped_matmul), gradients(jax.lax.ragged_dot), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_bfloat16_sums_are_in_float32() -> None:
    rows = jnp.ones((4, 4096), jnp.bfloat16)
    matrices = jnp.ones((1, 4096, 2), jnp.bfloat16)
    got = grouped_matmul(rows, matrices, jnp.asarray([4]))
    assert got.dtype == jnp.bfloat16
    np.testing.assert_array_equal(got, 4096.0)
