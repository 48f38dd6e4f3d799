"""The GPU's kernels, run as ordinary JAX operations, and lowered for CUDA. No GPU is needed for either."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from forebay.models import ring
from forebay.models.fused import FusedKernel
from forebay.models.settings import ComputeSettings
from forebay.models.visibility import Places, ScoreRule
from tests.unit.models.attention_cases import DENSE, Case, case, gradients, relative_errors, results


def heads_first(value: jax.Array) -> jax.Array:
    return value.transpose(0, 2, 1, 3)


def test_kernels_equal_dense_in_value_and_gradient() -> None:
    rule = {"window": 20, "softcap": 1.0, "scale": 0.7}
    packed = case([[13, 20, 7], [64]], 64, 4, 2)
    segments = packed.segment_ids
    places = Places(segments, jnp.broadcast_to(jnp.arange(64), segments.shape))
    scores = ScoreRule(scale=0.7, window=20, softcap=1.0)

    def loss(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
        heads = (heads_first(value) for value in (q, k, v))
        mixed = heads_first(ring.mix(FusedKernel(16, interpret=True), scores, None, *heads, places))
        return (mixed * packed.weight).sum(), mixed

    gradients, mixed = jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True))(packed.q, packed.k, packed.v)
    got = [np.asarray(value) for value in (mixed, *gradients)]
    assert max(relative_errors(got, results(packed, DENSE, rule))) < 1e-5


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_kernels_lower_for_cuda(dtype: jnp.dtype) -> None:
    packed = case([[100, 50]], 150, 4, 2, dtype)
    settings = ComputeSettings(attention="fused")
    triton = export.DisabledSafetyCheck.custom_call("__gpu$xla.gpu.triton")

    def program(*packed: jax.Array) -> list[jax.Array]:
        return gradients(Case(*packed), settings)

    lowered = export.export(jax.jit(program), platforms=["cuda"], disabled_checks=[triton])(*packed)
    assert lowered.mlir_module().count("__gpu$xla.gpu.triton") == 3
