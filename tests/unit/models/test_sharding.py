from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from forebay.errors import ConfigError
from forebay.models.mesh_axes import MESH_AXIS_NAMES, check_divisible
from forebay.models.settings import MeshSettings
from forebay.models.sharding import (
    UNSHARDED,
    Axes,
    check_rows,
    make_mesh,
    parameter_specs,
    row_spec,
    split_specs,
)
from tests.unit.models import tiny


def test_mesh_axes() -> None:
    mesh = make_mesh(MeshSettings(data=2, tensor=2, expert=2))
    assert dict(mesh.shape) == {"data": 2, "fsdp": 1, "context": 1, "tensor": 2, "expert": 2}
    assert tuple(MeshSettings.model_fields) == tuple(mesh.shape) == MESH_AXIS_NAMES
    assert MeshSettings(data=2, fsdp=3, context=5, expert=7).row_multiple == 42
    assert MeshSettings(tensor=4).length_multiple == 4
    assert MeshSettings(context=4, tensor=2).length_multiple == 8
    assert MeshSettings(context=4, tensor=6).length_multiple == 24


def test_too_few_devices() -> None:
    with pytest.raises(ConfigError, match=r"data 3 x fsdp 1 x context 1 x tensor 3 .* \(got 8, limit 9\)"):
        make_mesh(MeshSettings(data=3, tensor=3), jax.devices()[:8])


def test_the_rule() -> None:
    specs = parameter_specs(dataclasses.replace(tiny.CONFIG, tie_word_embeddings=False))
    assert specs["embedding"] == specs["lm_head"] == P("tensor", "fsdp")
    assert specs["final_norm"] == P("fsdp")
    assert specs["layers"]["attention_norm"] == P(None, "fsdp")
    assert specs["layers"]["k_proj"] == P(None, "fsdp", "tensor", None)
    assert specs["layers"]["o_proj"] == P(None, "tensor", None, "fsdp")
    assert specs["layers"]["down_proj"] == P(None, "tensor", "fsdp")
    assert row_spec() == P(("data", "fsdp", "expert"), None)


def test_an_axis_of_size_1_is_none() -> None:
    mesh = make_mesh(MeshSettings(fsdp=2, context=2))
    assert Axes.of(mesh) == Axes(fsdp="fsdp", context="context")
    assert Axes.of(make_mesh(MeshSettings())) == UNSHARDED
    specs = split_specs(mesh, {"embedding": P("tensor", "fsdp"), "rows": row_spec()})
    assert specs == {"embedding": P(None, "fsdp"), "rows": P(("fsdp",), None)}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (MeshSettings(tensor=4), r"kv_heads 2 is not a multiple of tensor \(got 4\).*mesh.tensor"),
        (MeshSettings(fsdp=3), r"embed 16 is not a multiple of fsdp \(got 3\)"),
    ],
)
def test_a_model_that_cannot_be_split_is_refused(settings: MeshSettings, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_divisible(tiny.CONFIG, make_mesh(settings).shape)


@pytest.mark.parametrize(
    ("settings", "shape", "message"),
    [
        (
            MeshSettings(data=2, expert=2),
            (6, 24),
            r"got 6 rows, limit a multiple of data x fsdp x expert = 4",
        ),
        (MeshSettings(context=4), (1, 28), r"got 28 tokens in a row, limit a multiple of 2 x context = 8"),
        (MeshSettings(tensor=8), (1, 28), r"1 rows x 28 tokens / context 1 = 28 tokens, .* tensor = 8"),
        (MeshSettings(context=2, tensor=4), (2, 12), None),
        (MeshSettings(context=2, tensor=4), (1, 12), r"1 rows x 12 tokens / context 2 = 6 tokens"),
    ],
)
def test_rows_that_cannot_be_split_are_refused(
    settings: MeshSettings, shape: tuple[int, int], message: str | None
) -> None:
    mesh = make_mesh(settings)
    if message is None:
        check_rows(shape, mesh)
        return
    with pytest.raises(ConfigError, match=message):
        check_rows(shape, mesh)


def test_each_context_shard_has_an_early_and_a_late_chunk_of_every_row() -> None:
    mesh = make_mesh(MeshSettings(context=4))
    axes = Axes.of(mesh)
    rows = jnp.arange(32).reshape(2, 16)
    own = functools.partial(jax.shard_map, mesh=mesh, in_specs=P(), out_specs=P(None, "context"))
    expected = [0, 1, 14, 15, 2, 3, 12, 13, 4, 5, 10, 11, 6, 7, 8, 9]
    np.testing.assert_array_equal(own(axes.own_tokens)(rows), rows[:, jnp.array(expected)])
    whole = functools.partial(jax.shard_map, mesh=mesh, in_specs=P(), out_specs=P())
    there_and_back = whole(lambda rows: axes.whole_rows(axes.own_tokens(rows), shared=True))
    np.testing.assert_array_equal(there_and_back(rows), rows)


def test_tokens_are_gathered_in_order_and_partial_sums_scattered() -> None:
    mesh = make_mesh(MeshSettings(tensor=4))
    axes = Axes.of(mesh)
    tokens = jnp.arange(24.0).reshape(8, 3)
    split, every = P("tensor"), P(None, "tensor")
    entered = jax.shard_map(axes.enter, mesh=mesh, in_specs=split, out_specs=every)(tokens)
    np.testing.assert_array_equal(entered, jnp.tile(tokens, (1, 4)))
    left = jax.shard_map(
        lambda partial: axes.leave(partial * (1 + jax.lax.axis_index("tensor"))),
        mesh=mesh,
        in_specs=P(),
        out_specs=split,
    )(tokens)
    np.testing.assert_array_equal(left, 10 * tokens)
