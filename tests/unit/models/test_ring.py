from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from forebay.models.attention import attention
from forebay.models.settings import ComputeSettings, MeshSettings
from forebay.models.sharding import Axes, make_mesh
from tests.unit.models.attention_cases import DENSE, RULES, Case, case, relative_errors, results

BLOCKWISE = ComputeSettings(attention="blockwise", attention_block_tokens=8)


def sharded_results(
    packed: Case, mesh_settings: MeshSettings, compute: ComputeSettings, rule: dict[str, Any]
) -> list[np.ndarray]:
    mesh = make_mesh(mesh_settings)
    axes = Axes.of(mesh)
    rows, heads = ("data" if axes.data else None), ("tensor" if axes.tensor else None)

    def run(q: jax.Array, k: jax.Array, v: jax.Array, weight: jax.Array, segment_ids: jax.Array) -> Any:
        def loss(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
            own = (axes.own_tokens(value) for value in (q, k, v))
            mixed = attention(*own, segment_ids, compute, axes=axes, **rule)
            return (mixed * axes.own_tokens(weight)).sum(), axes.whole_rows(mixed, shared=True)

        gradients, mixed = jax.grad(loss, (0, 1, 2), has_aux=True)(q, k, v)
        return mixed, *gradients

    whole, ids = PartitionSpec(rows, None, heads), PartitionSpec(rows)
    program = jax.shard_map(run, mesh=mesh, in_specs=(whole,) * 4 + (ids,), out_specs=(whole,) * 4)
    return [np.asarray(value) for value in jax.jit(program)(*packed)]


@pytest.mark.parametrize("rule", ["plain", "window and softcap"])
def test_a_ring_of_four_equals_dense_on_one_device(rule: str) -> None:
    packed = case([[13, 20, 1, 6], [48], [44], [20]], 48, 4, 2)
    got = sharded_results(packed, MeshSettings(context=4, data=2), BLOCKWISE, RULES[rule])
    assert max(relative_errors(got, results(packed, DENSE, RULES[rule]))) < 1e-5


@pytest.mark.parametrize("compute", [BLOCKWISE, DENSE])
def test_a_ring_of_two_beside_shards_of_heads(compute: ComputeSettings) -> None:
    packed = case([[13, 20, 1, 6], [48]], 48, 8, 4)
    got = sharded_results(packed, MeshSettings(context=2, tensor=2, data=2), compute, {"window": 20})
    assert max(relative_errors(got, results(packed, DENSE, {"window": 20}))) < 1e-5


def test_memory_of_a_shard_falls_with_the_size_of_the_ring() -> None:
    """Keys and values of other shards are never held together, in neither pass."""

    def peak_bytes(mesh_settings: MeshSettings) -> int:
        mesh = make_mesh(mesh_settings)
        axes = Axes.of(mesh)
        shard = PartitionSpec(None, "context" if axes.context else None)

        def run(q: jax.Array, k: jax.Array, v: jax.Array, segment_ids: jax.Array) -> Any:
            return jax.grad(
                lambda q, k, v: attention(q, k, v, segment_ids, BLOCKWISE, axes=axes).sum(), (0, 1, 2)
            )(q, k, v)

        program = jax.shard_map(
            run, mesh=mesh, in_specs=(shard,) * 3 + (PartitionSpec(),), out_specs=(shard,) * 3
        )
        heads = jax.ShapeDtypeStruct((1, 4096, 2, 8), np.float32)
        ids = jax.ShapeDtypeStruct((1, 4096), np.int32)
        return jax.jit(program).lower(heads, heads, heads, ids).compile().memory_analysis().temp_size_in_bytes

    assert peak_bytes(MeshSettings(context=8)) < 0.5 * peak_bytes(MeshSettings())
