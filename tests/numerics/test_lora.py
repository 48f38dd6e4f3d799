"""Adapters on a mesh, on frozen weights, through whole optimizer steps."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from forebay.learner.checkpoint import Checkpointer
from forebay.learner.checkpoint_manifest import CheckpointCursor
from forebay.learner.programs import TrainPrograms
from forebay.learner.train_step import Accumulator, TrainState
from forebay.models.lora import init_adapters, with_adapters
from forebay.models.lora_layout import num_adapter_parameters
from forebay.models.params import Params
from forebay.models.settings import ComputeSettings, LoraSettings, MeshSettings
from forebay.models.sharding import make_mesh
from forebay.models.transformer import token_states
from forebay.objectives.build import annotations_of, build_objective
from forebay.trajectory import PolicyVersion
from tests.numerics import meshes, training
from tests.unit.models import tiny

LORA = LoraSettings(rank=3, alpha=6.0)
SHAPE = training.ROWS.tokens.shape
HALF = meshes.DENSE.model_copy(update={"compute_dtype": "bfloat16"})


def programs(mesh: MeshSettings, compute: ComputeSettings = meshes.DENSE) -> TrainPrograms:
    """Return programs that are not compiled and hold the tiny model."""
    built = TrainPrograms(
        tiny.CONFIG,
        make_mesh(mesh),
        training.OPTIMIZER,
        build_objective(training.OBJECTIVE),
        compute,
        annotations_of(training.OBJECTIVE),
        lora=LORA,
    )
    built.frozen.hold(tiny.params())
    return built


def adapters(seed: int = 1) -> Params:
    """Return adapters whose B is no longer zero."""
    drawn = init_adapters(tiny.CONFIG, LORA, jax.random.key(seed))
    keys = iter(jax.random.split(jax.random.key(seed + 1), len(drawn["layers"])))
    return jax.tree.map(lambda leaf: leaf + 0.1 * jax.random.normal(next(keys), leaf.shape), drawn)


@functools.cache
def gradients(mesh: MeshSettings) -> Accumulator:
    """Return gradient and sums of `training.ROWS`."""
    built, scalar = programs(mesh), np.float32(training.DENOMINATOR)
    params = built.init_state(adapters()).params
    compiled = built.lower("accumulate", SHAPE).compile(meshes.QUICK)
    placed = built.place(training.ROWS)
    return compiled(built.frozen.weights, params, built.zeros(), placed, scalar, scalar)


@pytest.mark.parametrize(
    "mesh",
    [
        MeshSettings(fsdp=4),
        MeshSettings(tensor=2),
        MeshSettings(fsdp=2, tensor=2),
        pytest.param(MeshSettings(data=2, context=2, tensor=2), marks=pytest.mark.soak),
    ],
    ids=str,
)
def test_gradients_and_sums_equal_a_single_device(mesh: MeshSettings) -> None:
    got, expected = gradients(mesh), gradients(training.SINGLE)
    assert float(np.asarray(expected.sums.loss)) != 0
    assert training.relative_error(np.asarray(got.sums), np.asarray(expected.sums)) <= 1e-5
    assert training.relative_error(got.gradients, expected.gradients) <= 1e-5
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(expected.gradients))


def test_adapters_are_split_as_their_projection_is() -> None:
    layers = programs(MeshSettings(fsdp=2, tensor=2)).abstract_state.params["layers"]
    specs = {name: tuple(layers[name].sharding.spec) for name in layers}
    assert specs["q_proj_a"] == (None, "fsdp", None)
    assert specs["q_proj_b"] == (None, None, "tensor", None)
    assert specs["o_proj_a"] == (None, "tensor", None, None)
    assert specs["o_proj_b"] == (None, None, "fsdp")
    assert specs["down_proj_a"] == (None, "tensor", None)
    assert specs["up_proj_b"] == (None, None, "tensor")


def test_the_model_is_held_in_bfloat16_and_adapters_in_float32() -> None:
    built = programs(training.SINGLE, HALF)
    trained = [leaf for leaf in jax.tree.leaves(built.abstract_state) if leaf.ndim]
    numbers = num_adapter_parameters(tiny.CONFIG, LORA)
    assert sum(leaf.size * leaf.dtype.itemsize for leaf in trained) == 3 * 4 * numbers  # and two moments
    assert {str(leaf.dtype) for leaf in trained} == {"float32"}
    base = jax.tree.leaves(built.frozen.weights)
    assert sum(leaf.nbytes for leaf in base) == 2 * tiny.CONFIG.num_parameters


def test_a_step_moves_every_adapter_and_nothing_else() -> None:
    built = programs(training.SINGLE)
    step = built.lower("apply").compile(meshes.QUICK)
    accumulated = jax.tree.map(np.copy, gradients(training.SINGLE))
    state, _, stats = step(built.init_state(adapters()), accumulated)
    assert bool(stats.finite)
    moved = jax.tree.map(lambda new, old: float(np.abs(new - old).max()), state.params, adapters())
    assert min(jax.tree.leaves(moved)) > 0
    for held, before in zip(
        jax.tree.leaves(built.frozen.weights), jax.tree.leaves(tiny.params()), strict=True
    ):
        np.testing.assert_array_equal(held, before)


def test_no_gradient_of_the_model_is_computed() -> None:
    """The gradient program gives back what it is given of adapters, and nothing as large as a projection."""
    lowered = programs(training.SINGLE).lower("accumulate", SHAPE)
    shapes = {leaf.shape for leaf in jax.tree.leaves(lowered.out_info)}
    assert (2, 16, 4, 4) not in shapes  # q_proj
    assert (2, 16, 3) in shapes  # its A
    text = lowered.as_text()
    assert "tensor<2x16x4x4xf32>" in text  # read as an argument
    assert "tensor<40x16xf32>, tensor<40x16xf32>" not in text  # no sum of gradients of the embedding


def test_under_dots_a_projection_with_an_adapter_is_kept_once() -> None:
    """Of `x W`, `(x A) B` and their sum, the sum alone is kept; and x A, which is narrow."""
    compute = ComputeSettings(remat="dots", attention="dense", max_unrolled_layers=0)
    base, ones = tiny.params(), jnp.ones((2, 24), jnp.int32)

    def loss(adapters: Params) -> jax.Array:
        states, _ = token_states(
            with_adapters(base, adapters, LORA), tiny.CONFIG, ones, ones, ones, compute=compute
        )
        return states.sum()

    jaxpr = jax.make_jaxpr(jax.grad(loss))(adapters())
    forward = next(eqn for eqn in jaxpr.jaxpr.eqns if eqn.primitive.name == "scan")
    kept = [var.aval.shape for var in forward.outvars[forward.params["num_carry"] :]]
    wide = [shape for shape in kept if shape[-1] == tiny.CONFIG.intermediate_size]
    assert len(wide) == 2  # gate and up
    assert len([shape for shape in kept if shape[-1] == LORA.rank]) == len(LORA.projections)


def test_a_checkpoint_of_adapters_goes_to_another_mesh(tmp_path: Path) -> None:
    source, target = programs(MeshSettings(fsdp=2, tensor=2)), programs(training.SINGLE)
    saved = source.init_state(adapters())
    with_slices = Checkpointer(tmp_path, durability="os")
    with_slices.save(saved, CheckpointCursor(run_id="r", version=PolicyVersion(0, 3)))
    restored: Any = with_slices.restore_newest(target.abstract_state)
    assert training.digest(TrainState(*restored.state)) == training.digest(saved)
    with_slices.close()
