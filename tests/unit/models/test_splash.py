"""The TPU's kernels, run by Pallas' TPU interpreter on a CPU."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec

from forebay.models.attention import attention
from forebay.models.settings import ComputeSettings, MeshSettings
from forebay.models.sharding import Axes, make_mesh
from forebay.models.splash import block_tokens_of
from tests.unit.models.attention_cases import DENSE, case, relative_errors, results

SPLASH = ComputeSettings(attention="splash")


def test_blocks_are_as_large_as_padding_allows() -> None:
    assert [block_tokens_of(length) for length in (50, 700, 2944, 4096)] == [128, 256, 512, 512]


def test_kernels_equal_dense_in_value_and_gradient() -> None:
    rule = {"window": 20, "softcap": 1.0, "scale": 0.7}
    packed = case([[13, 20, 107, 100]], 250, 2, 1)
    with pltpu.force_tpu_interpret_mode():
        got = results(packed, SPLASH, rule)
    assert max(relative_errors(got, results(packed, DENSE, rule))) < 1e-5


def test_gradients_of_a_shared_parameter_are_added_over_the_mesh() -> None:
    """Shards of rows, and of the tokens of rows: the kernels say how their results differ over both axes."""
    mesh = make_mesh(MeshSettings(data=2, context=2))
    axes = Axes.of(mesh)
    packed = case([[200, 56], [30, 180]], 256, 1, 1)

    def gradient(scale: jax.Array, compute: ComputeSettings, axes: Axes, packed: tuple) -> jax.Array:
        q, k, v, weight, segment_ids = packed
        q, k, v, weight = (axes.own_tokens(value) for value in (q, k, v, weight))

        def loss(scale: jax.Array) -> jax.Array:
            mixed = attention(scale * q, k, scale * v, segment_ids, compute, axes=axes)
            return (mixed * weight).sum()

        return jax.grad(loss)(scale)

    rows = PartitionSpec("data")

    def sharded(scale: jax.Array, *packed: jax.Array) -> jax.Array:
        return gradient(scale, SPLASH, axes, packed)

    split = jax.shard_map(
        sharded, mesh=mesh, in_specs=(PartitionSpec(), *(rows,) * 5), out_specs=PartitionSpec()
    )
    with pltpu.force_tpu_interpret_mode():
        got = jax.jit(split)(jnp.float32(1.3), *packed)
    np.testing.assert_allclose(got, gradient(jnp.float32(1.3), DENSE, Axes(), packed), rtol=1e-5)
