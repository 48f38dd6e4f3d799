"""The same numbers however the work is cut: over devices, micro-batches, rows, processes and restarts."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from forebay.batching.rows import TrainRows, map_rows
from forebay.learner.programs import TrainPrograms
from forebay.learner.reference import Reference, ReferencePrograms
from forebay.learner.reference_settings import ReferenceSettings
from forebay.learner.train_step import Accumulator, TrainState
from forebay.models.settings import ComputeSettings, MeshSettings
from forebay.models.sharding import make_mesh
from forebay.objectives.inputs import LossSums
from forebay.trajectory import PolicyVersion
from tests.numerics import training
from tests.unit.models import tiny

ROOT = Path(__file__).parents[2]
C17 = json.loads((ROOT / "tests" / "golden" / "expected.json").read_text())["C17"]
EIGHT = training.RECOMPUTED[1]


def gradients(built: TrainPrograms, rows: list[TrainRows] | None = None) -> Accumulator:
    state, accumulator = built.init_state(tiny.params()), built.zeros()
    for part in rows or [training.ROWS]:
        accumulator = built.accumulate(state.params, accumulator, built.place(part), training.DENOMINATOR)
    return accumulator


def test_sharded_equals_single_device() -> None:
    """Whole steps; gradients on other meshes are in `test_mesh`."""
    single, sharded = training.programs(), training.programs(EIGHT)
    expected, got = gradients(single), gradients(sharded)
    assert training.relative_error(got.gradients, expected.gradients) <= 1e-5
    for name, value, reference in zip(LossSums._fields, got.sums, expected.sums, strict=True):
        np.testing.assert_allclose(value, reference, rtol=1e-5, atol=1e-4, err_msg=name)
    np.testing.assert_allclose(got.sums.loss, expected.sums.loss, rtol=1e-5)
    states = [
        training.take_steps(built, built.init_state(tiny.params()), training.batches(2))
        for built in (sharded, single)
    ]
    assert training.relative_error(states[0][0].params, states[1][0].params) <= 1e-5
    np.testing.assert_allclose(
        [stats.grad_norm for stats in states[0][1]], [stats.grad_norm for stats in states[1][1]], rtol=1e-5
    )
    assert states[0][1][0].grad_norm > training.OPTIMIZER.max_gradient_norm  # so that clipping took part


def test_parameters_and_moments_really_are_sharded() -> None:
    state = training.programs(EIGHT).init_state(tiny.params())
    for leaf in jax.tree.leaves(state.params):
        assert leaf.addressable_shards[0].data.size <= leaf.size // 2
    total = sum(leaf.addressable_shards[0].data.size for leaf in jax.tree.leaves(state.opt_state))
    whole = sum(leaf.size for leaf in jax.tree.leaves(state.opt_state))
    assert total < 0.3 * whole


def test_logprobs_are_the_ones_that_are_differentiated() -> None:
    rows = training.ROWS
    for mesh in training.RECOMPUTED:
        built = training.programs(mesh)
        params = built.init_state(tiny.params()).params
        own = np.asarray(built.logprobs(params, built.place(rows)))
        accumulator = built.zeros()
        accumulator = built.accumulate(
            params, accumulator, built.place(rows._replace(behavior_logprobs=own)), training.DENOMINATOR
        )
        assert float(accumulator.sums.abs_logprob_diff_sum) <= 1e-5 * rows.loss_mask.sum()
        np.testing.assert_allclose(accumulator.sums.weight_sum, rows.loss_mask.sum(), rtol=1e-5)


def test_the_references_logprobs_are_the_same_sharded_and_unpacked() -> None:
    other = tiny.params(seed=1)

    def scored(built: TrainPrograms, rows: TrainRows) -> np.ndarray:
        held = ReferencePrograms(built, ReferenceSettings(), "float32", 1)
        params = Reference(held, other, PolicyVersion(0, 0)).params
        return np.asarray(built.logprobs(params, built.place(rows)))

    packed = scored(training.programs(), training.ROWS)
    sharded = scored(training.programs(EIGHT), training.ROWS)
    np.testing.assert_allclose(sharded, packed, rtol=1e-5, atol=1e-5)
    alone = training.programs(shapes=((1, training.WIDTH),))
    for row, start, length in training.places():
        got = scored(alone, training.piece(row, start, length))[0, :length]
        np.testing.assert_allclose(got, packed[row, start : start + length], rtol=1e-5, atol=1e-5)
    assert np.abs(packed).max() > 1.0


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_c17_token_mean_is_of_the_whole_batch(parts: int) -> None:
    """The literal losses, handed in as advantages; the gradient is that of sum(loss * logprob) / tokens."""
    losses = C17["input"]["per_token_loss"]
    built = _weighing_programs()
    rows = tiny.train_rows([[len(row) + 1] for row in losses], 11)
    advantages = np.zeros((4, 11), np.float32)
    for number, row in enumerate(losses):
        advantages[number, 1 : 1 + len(row)] = row
    rows = rows._replace(loss_mask=(rows.segment_ids > 0) & (rows.positions > 0), advantages=advantages)
    cut = [map_rows(lambda array, part=part: np.split(array, parts)[part], rows) for part in range(parts)]
    state, accumulator, whole = built.init_state(tiny.params()), built.zeros(), built.zeros()
    for part in cut:
        accumulator = built.accumulate(
            state.params, accumulator, built.place(part), float(rows.loss_mask.sum())
        )
    np.testing.assert_allclose(accumulator.sums.loss, C17["expect"]["token_mean"], rtol=1e-6)
    whole = built.accumulate(state.params, whole, built.place(rows), float(rows.loss_mask.sum()))
    assert training.relative_error(accumulator.gradients, whole.gradients) <= 1e-5


@functools.cache
def _weighing_programs() -> TrainPrograms:
    def objective(logprobs, entropy, inputs, denominator):
        weight = jnp.where(inputs.loss_mask, inputs.advantages, 0.0)
        value = 1.0 + logprobs - jax.lax.stop_gradient(logprobs)
        loss = (weight * value).sum() / denominator
        zero = jnp.zeros_like(loss)
        return loss, LossSums(*[zero] * len(LossSums._fields))._replace(loss=loss)

    built = TrainPrograms(tiny.CONFIG, make_mesh(MeshSettings()), training.OPTIMIZER, objective)
    built.warm_up([(4, 11), (2, 11), (1, 11)])
    return built


def test_packed_equals_unpacked() -> None:
    alone = training.programs(shapes=((1, training.WIDTH),))
    single = [training.piece(*place) for place in training.places()]
    packed, unpacked = gradients(training.programs()), gradients(alone, single)
    assert training.relative_error(unpacked.gradients, packed.gradients) <= 1e-5
    np.testing.assert_allclose(unpacked.sums, packed.sums, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    "changes",
    [
        {"remat": "full", "max_unrolled_layers": 0},
        {"remat": "dots", "attention": "dense"},
        {"remat": "elementwise", "max_unrolled_layers": 0},
    ],
    ids=str,
)
def test_how_it_is_computed_changes_nothing(changes: dict) -> None:
    expected = gradients(training.programs())
    got = gradients(training.programs(compute=ComputeSettings(**({"loss_chunk_tokens": 16} | changes))))
    assert training.relative_error(got.gradients, expected.gradients) <= 1e-5
    np.testing.assert_allclose(got.sums.loss, expected.sums.loss, rtol=1e-5)


def test_bfloat16_keeps_float32_masters_and_stays_close() -> None:
    built = training.programs(EIGHT, compute=ComputeSettings(compute_dtype="bfloat16"))
    exact, half = gradients(training.programs()), gradients(built)
    assert training.relative_error(half.gradients, exact.gradients) < 0.3
    assert training.relative_error(half.gradients, exact.gradients) > 1e-4  # it was computed in bfloat16
    state, stats = training.take_steps(built, built.init_state(tiny.params()), training.batches(2))
    assert {leaf.dtype for leaf in jax.tree.leaves(state.params)} == {jnp.dtype("float32")}
    assert all(step.finite for step in stats)


def test_resumed_equals_uninterrupted() -> None:
    built, batches = training.programs(), training.batches(4)
    whole, _ = training.take_steps(built, built.init_state(tiny.params()), batches)
    half, _ = training.take_steps(built, built.init_state(tiny.params()), batches[:2])
    saved = jax.tree.map(np.array, jax.device_get(half))
    restored: TrainState = jax.tree.map(
        lambda leaf, like: jax.device_put(leaf, like.sharding), saved, built.abstract_state
    )
    resumed, _ = training.take_steps(built, restored, batches[2:])
    assert training.digest(resumed) == training.digest(whole)
    assert int(resumed.step) == 4


def test_a_fresh_process_makes_the_same_bits() -> None:
    built = training.programs()
    state, _ = training.take_steps(built, built.init_state(tiny.params()), training.batches(3))
    done = subprocess.run(
        [sys.executable, "-m", "tests.numerics.training"],
        cwd=ROOT,
        env=os.environ,
        capture_output=True,
        text=True,
        check=True,
        timeout=110,
    )
    assert done.stdout.strip() == training.digest(state)
