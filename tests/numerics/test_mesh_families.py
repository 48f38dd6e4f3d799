"""What families add (biases, norms, soft-caps, windows, runs of a pattern) computes the same on a mesh."""

from __future__ import annotations

import dataclasses

from forebay.models.layer_kinds import LayerKind
from forebay.models.settings import MeshSettings
from tests.numerics import meshes, training
from tests.unit.models import tiny

EVERYTHING = dataclasses.replace(
    tiny.CONFIG,
    num_layers=5,
    pattern=(LayerKind(window=5, rope_theta=100.0), LayerKind()),
    activation="gelu_tanh",
    attention_bias=True,
    head_norms=True,
    post_norms=True,
    unit_offset_norms=True,
    scaled_embedding=True,
    query_pre_attn_scalar=6,
    attention_softcap=5.0,
    final_softcap=8.0,
)


# The pattern twice in a loop, and one block after it.
LOOP = meshes.DENSE.model_copy(update={"max_unrolled_layers": 0})


def test_gradients_and_sums_equal_a_single_device() -> None:
    mesh = MeshSettings(fsdp=2, tensor=2, context=2)
    assert meshes.difference(mesh, LOOP, training.OBJECTIVE, EVERYTHING) <= 1e-5
