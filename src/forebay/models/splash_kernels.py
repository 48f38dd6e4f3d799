"""What one step of each kernel of `splash` computes, for one block of queries and one of keys.

Every body gets the lists of visited blocks first, then its inputs, outputs and scratch memory; the last axis
of the grid goes through a list. Scores have queries in rows, except where keys gather their gradients.

Legend: C tokens of a block, K head size.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Bool, Float

from forebay.models.visibility import Places, ScoreRule, sees_places

LANES = 128
_MASKED = -1e30
_TINY = 1e-30
# Which axes a product runs over: the last of both, or as in a product of matrices.
_LAST = (((1,), (1,)), ((), ()))
_PLAIN = (((1,), (0,)), ((), ()))

Ref = Any


def forward_body(
    order: Ref,
    count: Ref,
    q_columns: Ref,
    k_rows: Ref,
    q: Ref,
    k: Ref,
    v: Ref,
    mixed: Ref,
    log_total: Ref,
    sum_mixed: Ref,
    largest: Ref,
    total: Ref,
    *,
    rule: ScoreRule,
) -> None:
    """Add a block of keys to what a block of queries mixes; the last step writes that and its log-sum-exp."""
    step = pl.program_id(3)

    @pl.when(step == 0)
    def start() -> None:
        sum_mixed[...] = jnp.zeros_like(sum_mixed)
        largest[...] = jnp.full_like(largest, _MASKED)
        total[...] = jnp.zeros_like(total)

    @pl.when(step < visited(count, pl.program_id(0), pl.program_id(2), pl.num_programs(2)))
    def add() -> None:
        seen = sees_places(_columns(q_columns), _rows(k_rows), rule.window)
        scores = jnp.where(seen, rule.score(_dot(q[...], k[...], _LAST)), _MASKED)
        new_largest = jnp.maximum(largest[...], scores.max(axis=-1, keepdims=True))
        weights = jnp.where(seen, jnp.exp(scores - new_largest[:, :1]), 0.0)
        shrink = jnp.exp(largest[...] - new_largest)
        added = _dot(weights.astype(v.dtype), v[...], _PLAIN)
        sum_mixed[...] = sum_mixed[...] * shrink[:, :1] + added
        total[...] = total[...] * shrink + weights.sum(axis=-1, keepdims=True)
        largest[...] = new_largest

    @pl.when(step == pl.num_programs(3) - 1)
    def finish() -> None:
        whole = jnp.maximum(total[...], _TINY)
        mixed[...] = (sum_mixed[...] / whole[:, :1]).astype(mixed.dtype)
        log_total[...] = (largest[...] + jnp.log(whole)).T[:1]


def query_gradient_body(
    order: Ref,
    count: Ref,
    q_columns: Ref,
    k_rows: Ref,
    q: Ref,
    k: Ref,
    v: Ref,
    d_mixed: Ref,
    known: Ref,
    dq: Ref,
    sum_dq: Ref,
    *,
    rule: ScoreRule,
) -> None:
    """Add what a block of keys gives to the gradient of a block of queries; the last step writes it."""
    step = pl.program_id(3)

    @pl.when(step == 0)
    def start() -> None:
        sum_dq[...] = jnp.zeros_like(sum_dq)

    @pl.when(step < visited(count, pl.program_id(0), pl.program_id(2), pl.num_programs(2)))
    def add() -> None:
        seen = sees_places(_columns(q_columns), _rows(k_rows), rule.window)
        log_total, shared = (jnp.expand_dims(known[row], -1) for row in (0, 1))
        scores = rule.score(_dot(q[...], k[...], _LAST))
        weights = _weights(seen, scores, log_total)
        d_scores = weights * (_dot(d_mixed[...], v[...], _LAST) - shared)
        d_products = rule.product_gradient(d_scores, scores).astype(k.dtype)
        sum_dq[...] += _dot(d_products, k[...], _PLAIN)

    @pl.when(step == pl.num_programs(3) - 1)
    def finish() -> None:
        dq[...] = sum_dq[...].astype(dq.dtype)


def key_gradients_body(
    order: Ref,
    count: Ref,
    q_rows: Ref,
    k_columns: Ref,
    q: Ref,
    k: Ref,
    v: Ref,
    d_mixed: Ref,
    known: Ref,
    dk: Ref,
    dv: Ref,
    sum_dk: Ref,
    sum_dv: Ref,
    *,
    rule: ScoreRule,
) -> None:
    """Add what a block of queries of one head gives to the gradients of a block of keys and values."""
    head, step = pl.program_id(3), pl.program_id(4)

    @pl.when((head == 0) & (step == 0))
    def start() -> None:
        sum_dk[...] = jnp.zeros_like(sum_dk)
        sum_dv[...] = jnp.zeros_like(sum_dv)

    @pl.when(step < visited(count, pl.program_id(0), pl.program_id(2), pl.num_programs(2)))
    def add() -> None:
        seen = sees_places(_rows(q_rows), _columns(k_columns), rule.window)
        scores = rule.score(_dot(k[...], q[...], _LAST))
        weights = _weights(seen, scores, known[:1])
        d_scores = weights * (_dot(v[...], d_mixed[...], _LAST) - known[1:])
        d_products = rule.product_gradient(d_scores, scores).astype(q.dtype)
        sum_dk[...] += _dot(d_products, q[...], _PLAIN)
        sum_dv[...] += _dot(weights.astype(d_mixed.dtype), d_mixed[...], _PLAIN)

    @pl.when((head == pl.num_programs(3) - 1) & (step == pl.num_programs(4) - 1))
    def finish() -> None:
        dk[...] = sum_dk[...].astype(dk.dtype)
        dv[...] = sum_dv[...].astype(dv.dtype)


def visited(count: Ref, row: Array, block: Array, num_blocks: Array | int) -> Array:
    """Return how many blocks of the other side a block of a row visits."""
    return count[row * num_blocks + block]


def _columns(places: Ref) -> Places:
    return Places(places[:, :1], places[:, 1:])


def _rows(places: Ref) -> Places:
    return Places(places[:1], places[1:])


def _weights(seen: Bool[Array, "C C"], scores: Float[Array, "C C"], log_total: Array) -> Array:
    """Return the weights that the forward pass mixed by."""
    return jnp.where(seen, jnp.exp(scores - log_total), 0.0)


def _dot(left: Array, right: Array, axes: Any) -> Array:
    precision = jax.lax.Precision.HIGHEST if left.dtype == jnp.float32 else None
    return jax.lax.dot_general(left, right, axes, precision=precision, preferred_element_type=jnp.float32)
