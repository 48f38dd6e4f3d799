"""What is published in bfloat16 is the float32 master weights, rounded once and alike on every side."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from forebay.generation.engine import prepare_weights
from forebay.generation.settings import GeneratorSettings
from forebay.learner.optimizer import OptimizerSettings, make_optimizer, make_schedule
from forebay.learner.train_step import Accumulator, apply_gradients, new_state, snapshot
from forebay.models import checkpoint_io, params
from forebay.models.hf import to_hf_tensors
from forebay.objectives.inputs import LossSums
from forebay.trajectory import PolicyVersion
from forebay.weights.publisher import WeightPublisher
from forebay.weights.reader import WeightReader
from tests.unit.models import tiny

C67 = json.loads((Path(__file__).parent / "expected.json").read_text())["C67"]
# Adam's update is the learning rate itself where the gradient never changes.
SETTINGS = OptimizerSettings(learning_rate=1e-3, max_gradient_norm=float("inf"))


def published_after(num_updates: int, path: Path) -> dict[str, np.ndarray]:
    """Return what is published after equal updates of weights that are all 1."""
    optimizer, schedule = make_optimizer(SETTINGS), make_schedule(SETTINGS)
    ones = jax.tree.map(jnp.ones_like, tiny.params())
    sums = LossSums(*[jnp.zeros(())] * len(LossSums._fields))

    @jax.jit
    def update(state: object) -> object:
        gradients = Accumulator(jax.tree.map(lambda leaf: -leaf, ones), sums)
        return apply_gradients(state, gradients, optimizer=optimizer, schedule=schedule)[0]

    state = new_state(ones, optimizer)
    for _ in range(num_updates):
        state = update(state)
    version = PolicyVersion(0, num_updates)
    publisher = WeightPublisher(path, run_id="c67")
    publisher.publish(version, to_hf_tensors(snapshot(state.params), tiny.CONFIG))
    return WeightReader(path).load(version)[1]


def test_c67_small_updates_reach_what_is_published(tmp_path: Path) -> None:
    expected = C67["expect"]
    tensors = published_after(100, tmp_path / "weights")
    assert {tensor.dtype for tensor in tensors.values()} == {np.dtype(np.float32)}
    for tensor in tensors.values():
        np.testing.assert_allclose(tensor, expected["master_f32_after_100_updates_of_1e_3"], rtol=1e-5)
    sampling = prepare_weights(tensors, tiny.CONFIG, GeneratorSettings(compute_dtype="bfloat16"))
    assert {float(leaf.max()) for leaf in jax.tree.leaves(sampling)} == {expected["bf16_of_that"]}
    checkpoint_io.save_model(tmp_path / "hf", tiny.CONFIG, tensors, dtype="bfloat16")
    exported = checkpoint_io.read_tensors(tmp_path / "hf")
    assert {float(tensor.min()) for tensor in exported.values()} == {expected["bf16_of_that"]}
    # what would be lost without masters
    assert ml_dtypes.bfloat16(1) + ml_dtypes.bfloat16(1e-3) == C67["wrong"]["bf16_only_after_100"]


@pytest.mark.parametrize("number", range(len(C67["input"]["w"])))
def test_c67_every_side_rounds_alike(number: int) -> None:
    weight, expected = np.float32([C67["input"]["w"][number]]), C67["expect"]["bf16"][number]
    assert float(checkpoint_io.cast({"w": weight}, "bfloat16")["w"][0]) == expected
    assert float(params.cast({"w": weight}, jnp.bfloat16)["w"][0]) == expected
