"""Attention over packed rows, one signature for every platform; the dense kind is what the others must equal.

dense: all scores in memory; the reference. blockwise: memory linear in the row, for a CPU and for everything
that has no kernel of its own. splash and fused: kernels for a TPU and a GPU. Softmax is float32 in
all of them.

Legend: B rows, T tokens, W tokens of whole rows, S keys, H query heads, N key-value heads, G = H / N, K head
    size.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from forebay.models import blockwise, ring
from forebay.models.fused import BLOCK_TOKENS, FusedKernel
from forebay.models.platforms import automatic_attention
from forebay.models.settings import ComputeSettings
from forebay.models.sharding import UNSHARDED, Axes
from forebay.models.splash import SplashKernel, block_tokens_of
from forebay.models.visibility import Places, ScoreRule, sees

MASKED = -1e30


def attention(
    q: Float[Array, "B T H K"],
    k: Float[Array, "B T N K"],
    v: Float[Array, "B T N K"],
    segment_ids: Int[Array, "B W"],
    compute: ComputeSettings,
    *,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    axes: Axes = UNSHARDED,
) -> Float[Array, "B T H K"]:
    """Mix values causally within each segment, by the kind of attention that the settings choose.

    Where the tokens of a row are split over `axes.context`, all of them are seen: keys and values go round
    its shards.

    Args:
        q: Rotated queries of this shard's tokens, as `axes.own_tokens` takes them out of rows.
        k: Rotated keys of the same tokens.
        v: Values of the same tokens.
        segment_ids: [B, T of the whole row] int32, 0 = padding, whose result is 0. Within a segment, row
            order is position order.
        compute: Chooses the kind of attention, and the block.
        scale: Factor of the scores; None: K ** -0.5.
        window: Number of latest tokens of the segment that a token sees, itself included; None: all.
        softcap: Scores become `softcap * tanh(score / softcap)`; None: they stay.
        axes: Mesh axes this runs under.
    """
    rule = ScoreRule(q.shape[-1] ** -0.5 if scale is None else scale, window, softcap)
    index = jnp.broadcast_to(jnp.arange(segment_ids.shape[1]), segment_ids.shape)
    places = Places(axes.own_tokens(segment_ids), axes.own_tokens(index))
    kind = attention_kind(compute)
    if kind == "dense":
        keys = Places(segment_ids, index)
        mask = sees(places, keys, window)
        mixed = dense_attention(q, axes.whole_rows(k), axes.whole_rows(v), mask, rule)
        return jnp.where((places.segments != 0)[..., None, None], mixed, 0)
    if kind == "splash":
        kernel = SplashKernel(block_tokens_of(q.shape[1]))
        return _by_heads(kernel, q, k, v, places, rule, axes.context, (kernel.block_tokens, 1))
    if kind == "fused":
        power_of_two = 1 << (q.shape[3] - 1).bit_length()
        multiple = (BLOCK_TOKENS, max(power_of_two, 16))
        return _by_heads(FusedKernel(), q, k, v, places, rule, axes.context, multiple)
    return _blockwise(q, k, v, places, rule, compute.attention_block_tokens, axes.context)


def attention_kind(compute: ComputeSettings) -> str:
    """Return the kind of attention that the settings choose on this platform."""
    if compute.attention != "auto":
        return compute.attention
    return automatic_attention(*kind_of(jax.devices()[0]))


def kind_of(device: jax.Device) -> tuple[str, str | None]:
    """Return the platform of a device, and its compute capability if it is a GPU; see `platforms`."""
    return device.platform, getattr(device, "compute_capability", None)


def attention_mask(segment_ids: Int[Array, "B T"], window: int | None = None) -> Bool[Array, "B T T"]:
    """Return which query (second axis) sees which key (last axis): not later, same segment, no padding."""
    places = Places(segment_ids, jnp.arange(segment_ids.shape[1]))
    return sees(places, places, window)


def dense_attention(
    q: Float[Array, "B T H K"],
    k: Float[Array, "B S N K"],
    v: Float[Array, "B S N K"],
    mask: Bool[Array, "B T S"],
    rule: ScoreRule | None = None,
) -> Float[Array, "B T H K"]:
    """Mix values with all scores in memory; a query that may see nothing gets a finite, meaningless mix.

    Args:
        q: Rotated queries.
        k: Rotated keys.
        v: Values.
        mask: Which query sees which key; the window of the rule is not looked at.
        rule: How scores are made; None: scaled by K ** -0.5.
    """
    score = (rule or ScoreRule(q.shape[-1] ** -0.5)).score
    grouped = q.reshape(*q.shape[:2], k.shape[2], -1, q.shape[3])
    products = jnp.einsum("btngk,bsnk->bngts", grouped, k, preferred_element_type=jnp.float32)
    scores = jnp.where(mask[:, None, None], score(products), MASKED)
    weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
    return jnp.einsum("bngts,bsnk->btngk", weights, v).reshape(q.shape)


def _blockwise(
    q: Float[Array, "B T H K"],
    k: Float[Array, "B T N K"],
    v: Float[Array, "B T N K"],
    places: Places,
    rule: ScoreRule,
    block_tokens: int,
    axis: str | None,
) -> Float[Array, "B T H K"]:
    cut = functools.partial(blockwise.to_blocks, num_kv_heads=k.shape[2], block_tokens=block_tokens)
    mixed = ring.mix(
        blockwise, rule, axis, cut(q), cut(k), cut(v), blockwise.places_in_blocks(places, block_tokens)
    )
    return blockwise.from_blocks(mixed, q.shape[2], block_tokens, q.shape[1])


def _by_heads(
    kernel: ring.Kernel,
    q: Float[Array, "B T H K"],
    k: Float[Array, "B T N K"],
    v: Float[Array, "B T N K"],
    places: Places,
    rule: ScoreRule,
    axis: str | None,
    multiple: tuple[int, int],
) -> Float[Array, "B T H K"]:
    """Run a kernel whose heads lie before tokens, and whose tokens and head size are multiples of numbers."""
    length, head_size = q.shape[1], q.shape[3]
    tokens, sizes = (0, -length % multiple[0]), (0, -head_size % multiple[1])

    def heads(value: Array) -> Array:
        return jnp.pad(value.transpose(0, 2, 1, 3), ((0, 0), (0, 0), tokens, sizes))

    padded = Places(
        jnp.pad(places.segments, ((0, 0), tokens)), jnp.pad(places.order, ((0, 0), tokens), mode="edge")
    )
    mixed = ring.mix(kernel, rule, axis, heads(q), heads(k), heads(v), padded)
    return mixed[:, :, :length, :head_size].transpose(0, 2, 1, 3)
