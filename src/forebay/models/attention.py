"""Attention over packed rows: a dense reference, and a blockwise version whose memory is linear in the row.

Both take segment ids, use float32 softmax, and agree in the tests.

Legend: B rows, T tokens, H query heads, N key-value heads, G = H / N, K head size.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from forebay.models.blockwise import blockwise_attention
from forebay.models.settings import ComputeSettings

MASKED = -1e30


def attention(
    q: Float[Array, "B T H K"],
    k: Float[Array, "B T N K"],
    v: Float[Array, "B T N K"],
    segment_ids: Int[Array, "B T"],
    compute: ComputeSettings,
) -> Float[Array, "B T H K"]:
    """Mix values causally within each segment, by the kind of attention that the settings choose.

    Args:
        q: Rotated queries.
        k: Rotated keys.
        v: Values.
        segment_ids: [B, T] int32, 0 = padding. Within a segment, row order is position order.
        compute: Chooses dense or blockwise, and the block.
    """
    on_cpu = jax.default_backend() == "cpu"
    if compute.attention == "blockwise" or (compute.attention == "auto" and on_cpu):
        return blockwise_attention(q, k, v, segment_ids, compute.attention_block_tokens)
    return dense_attention(q, k, v, attention_mask(segment_ids))


def attention_mask(segment_ids: Int[Array, "B T"]) -> Bool[Array, "B T T"]:
    """Return which query (second axis) sees which key (last axis): not later, same segment, no padding."""
    index = jnp.arange(segment_ids.shape[1])
    return _mask(segment_ids, segment_ids, index, index)


def dense_attention(
    q: Float[Array, "B T H K"],
    k: Float[Array, "B S N K"],
    v: Float[Array, "B S N K"],
    mask: Bool[Array, "B T S"],
) -> Float[Array, "B T H K"]:
    """Mix values with all scores in memory; a query that may see nothing gets a finite, meaningless mix."""
    grouped = q.reshape(*q.shape[:2], k.shape[2], -1, q.shape[3])
    scores = jnp.einsum("btngk,bsnk->bngts", grouped, k, preferred_element_type=jnp.float32)
    scores = jnp.where(mask[:, None, None], scores * q.shape[-1] ** -0.5, MASKED)
    weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
    return jnp.einsum("bngts,bsnk->btngk", weights, v).reshape(q.shape)


def _mask(
    query_segments: Int[Array, "B T"], key_segments: Int[Array, "B S"], query_index: Array, key_index: Array
) -> Bool[Array, "B T S"]:
    same = query_segments[:, :, None] == key_segments[:, None, :]
    return same & (query_segments != 0)[:, :, None] & (key_index[None, :] <= query_index[:, None])
