"""Every mesh axis, alone and with others, computes what one device computes.

Those of experts are tested with experts too, in `test_moe`; whole steps in `test_train_step`; and
`python -m tests.numerics.meshes` tries every mesh of up to eight devices.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from jax.sharding import PartitionSpec as P

from forebay.models.params import Params
from forebay.models.settings import ComputeSettings, MeshSettings
from forebay.models.sharding import Axes, make_mesh, parameter_specs, row_spec, split_specs
from forebay.models.transformer import token_states
from forebay.objectives import ObjectiveSettings
from tests.numerics import meshes, training
from tests.unit.models import tiny

# Its sequence ratios need whole sequences, which the context shards have in pieces.
OF_SEQUENCES = (
    ComputeSettings(loss_chunk_tokens=16, attention="blockwise", attention_block_tokens=8),
    ObjectiveSettings(loss="ppo_clip", ratio="sequence", reduction="sequence"),
    dataclasses.replace(tiny.CONFIG, num_heads=8, num_kv_heads=4),
)
CONTEXT_TENSOR = MeshSettings(context=2, tensor=4)


@pytest.mark.parametrize(
    "mesh",
    [
        MeshSettings(data=2, context=4),
        MeshSettings(fsdp=4, context=2),
        MeshSettings(data=2, expert=2),
        MeshSettings(fsdp=2, tensor=2, expert=2),
    ],
    ids=str,
)
def test_gradients_and_sums_equal_a_single_device(mesh: MeshSettings) -> None:
    assert meshes.difference(mesh) <= 1e-5


def test_sequence_ratios_see_sequences_that_lie_in_several_shards() -> None:
    """Every chunk of a row has 6 tokens; most sequences cross a border between shards. Heads are grouped."""
    assert meshes.difference(CONTEXT_TENSOR, *OF_SEQUENCES) <= 1e-5
    sums = meshes.gradients(CONTEXT_TENSOR, *OF_SEQUENCES).sums
    assert sums.sequences == sum(map(len, training.LENGTHS))
    assert sums.log_product_sum != 0


def test_c50_no_shard_holds_all_logits_of_its_tokens() -> None:
    """On this mesh a shard scores 48 tokens over 10 ids, in chunks of 16: of 96 tokens and 40 ids in all."""
    program = meshes.compiled(CONTEXT_TENSOR, *OF_SEQUENCES).as_text()
    shapes = {
        tuple(map(int, found.split(","))) for found in re.findall(r"\b(?:f32|bf16)\[([0-9,]+)\]", program)
    }
    of_logits = {shape for shape in shapes if shape[-1] in (10, 40) and len(shape) > 1}
    assert (16, 10) in of_logits
    assert max(np.prod(shape[:-1]) for shape in of_logits) == 16


def test_one_device_has_no_collective() -> None:
    program = meshes.compiled(training.SINGLE, *OF_SEQUENCES).as_text()
    assert not re.search(r"\b(all-reduce|all-gather|reduce-scatter|collective-permute)", program)


def test_gradients_are_reduced_in_float32_and_parameters_gathered_in_bfloat16() -> None:
    half = meshes.DENSE.model_copy(update={"compute_dtype": "bfloat16"})
    built = meshes.programs(MeshSettings(data=2, fsdp=2), half)
    program = built.lower("accumulate", training.ROWS.tokens.shape).as_text()
    types = {
        name: set(re.findall(rf'"stablehlo\.{name}".*?-> tensor<(?:\d+x)*(\w+)>', program, re.DOTALL))
        for name in ("all_gather", "reduce_scatter", "all_reduce")
    }
    assert types == {"all_gather": {"bf16"}, "reduce_scatter": {"f32"}, "all_reduce": {"f32"}}


@pytest.mark.parametrize(
    ("remat", "kept"),
    [
        # Whole: 48 tokens a row shard, 24 of them in each tensor shard; per block, what is between blocks.
        ("full", {"bfloat16[2,24,16]": 1}),
        # And queries, keys, values, the stream after attention, and both products of the feed-forward layer.
        (
            "dots",
            {
                "bfloat16[2,24,16]": 2,
                "bfloat16[2,48,2,4]": 1,
                "bfloat16[2,48,1,4]": 2,
                "bfloat16[2,48,20]": 2,
            },
        ),
        # And what attention mixed, in whole lanes, with the logarithms of its sums.
        (
            "elementwise",
            {
                "bfloat16[2,24,16]": 2,
                "bfloat16[2,48,2,4]": 1,
                "bfloat16[2,48,1,4]": 2,
                "bfloat16[2,48,20]": 2,
                "bfloat16[2,2,1,1,128,4]": 1,
                "float32[2,2,1,1,128]": 1,
            },
        ),
    ],
)
def test_no_gathered_array_and_no_parameter_is_kept_for_the_backward_pass(
    remat: Literal["full", "dots", "elementwise"], kept: dict[str, int]
) -> None:
    # Dense attention has no name for what it mixed.
    attention: Literal["dense", "blockwise"] = "blockwise" if remat == "elementwise" else "dense"
    compute = ComputeSettings(
        compute_dtype="bfloat16", remat=remat, attention=attention, max_unrolled_layers=0
    )
    config = dataclasses.replace(tiny.CONFIG, intermediate_size=40)
    axes, specs = Axes(fsdp="fsdp", tensor="tensor"), parameter_specs(config)
    mesh = make_mesh(MeshSettings(fsdp=2, tensor=2))

    def loss(params: Params, tokens: Array) -> Array:
        ones = jnp.ones_like(tokens)
        states, _ = token_states(params, config, tokens, ones, ones, compute=compute, axes=axes)
        return jax.lax.psum(states.astype(jnp.float32).sum(), axes.names)

    whole = jax.shard_map(loss, mesh=mesh, in_specs=split_specs(mesh, (specs, row_spec())), out_specs=P())
    jaxpr = jax.make_jaxpr(jax.grad(whole))(tiny.params(config), jnp.zeros((4, 24), jnp.int32))
    scans = (eqn for eqn in equations(jaxpr.jaxpr) if eqn.primitive.name == "scan")
    each = (
        Counter(re.sub(r"\{.*", "", var.aval.str_short()) for var in scan.outvars[scan.params["num_carry"] :])
        for scan in scans
    )
    # That of the blocks keeps what is between them, whatever else.
    found = next(one for one in each if "bfloat16[2,24,16]" in one)
    assert found == kept


def equations(jaxpr: Any) -> Iterator[Any]:
    """Yield the equations of a program and of those within it, in order."""
    for equation in jaxpr.eqns:
        yield equation
        for value in jax.tree.leaves(tuple(equation.params.values()), is_leaf=lambda leaf: leaf is None):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from equations(inner)
