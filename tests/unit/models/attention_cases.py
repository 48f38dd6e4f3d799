"""Packed queries, keys and values that the tests of attention share, and how they are compared."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from forebay.models.attention import attention
from forebay.models.settings import ComputeSettings
from tests.unit.models import tiny

RULES: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"window": 7},
    "softcap": {"softcap": 1.5, "scale": 0.7},
    "window and softcap": {"window": 20, "softcap": 1.0},
}
DENSE = ComputeSettings(attention="dense")


class Case(NamedTuple):
    """Heads of packed rows, segment ids, and a weight by which results are summed to a loss."""

    q: jax.Array
    k: jax.Array
    v: jax.Array
    weight: jax.Array
    segment_ids: jax.Array


def case(
    lengths: list[list[int]], width: int, num_heads: int, num_kv_heads: int, dtype: Any = jnp.float32
) -> Case:
    """Draw heads of size 8 for rows of segments of these lengths."""
    segments = jnp.stack([jnp.asarray(tiny.packed_row(row, width)[0]) for row in lengths])
    counts = (num_heads, num_kv_heads, num_kv_heads, num_heads)
    keys = jax.random.split(jax.random.key(len(lengths) + width), 4)
    heads = (
        jax.random.normal(key, (len(lengths), width, count, 8)).astype(dtype)
        for key, count in zip(keys, counts, strict=True)
    )
    return Case(*heads, segments)


def gradients(case: Case, compute: ComputeSettings, **rule: Any) -> list[jax.Array]:
    """Return what one kind mixes, and the gradients of queries, keys and values."""

    def loss(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
        mixed = attention(q, k, v, case.segment_ids, compute, **rule)
        return (mixed * case.weight).astype(jnp.float32).sum(), mixed

    found, mixed = jax.grad(loss, (0, 1, 2), has_aux=True)(case.q, case.k, case.v)
    return [mixed, *found]


def results(case: Case, compute: ComputeSettings, rule: dict[str, Any]) -> list[np.ndarray]:
    """Return what `gradients` does, computed in one program."""
    program = jax.jit(lambda case: gradients(case, compute, **rule))
    return [np.asarray(value, np.float32) for value in program(case)]


def relative_errors(got: list[np.ndarray], expected: list[np.ndarray]) -> list[float]:
    """Return the largest difference of each array, relative to its largest value."""
    return [
        float(np.abs(one - other).max() / np.abs(other).max())
        for one, other in zip(got, expected, strict=True)
    ]
