"""The decoder: RMSNorm, rotary grouped-query attention and SwiGLU as pure functions over a parameter tree.

Training and decoding share `block`; they differ in the attention that they hand to it.

Legend: B rows, T tokens, D model width, H query heads, N key-value heads, K head size, V vocabulary, L
    layers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, Int

from forebay.models.attention import attention
from forebay.models.config import ModelConfig
from forebay.models.layout import PARAMETERS
from forebay.models.params import Params
from forebay.models.rope import Rotation, rotate, rotation
from forebay.models.settings import ComputeSettings
from forebay.models.sharding import GATHERED, UNSHARDED, Axes

Attend = Callable[[Array, Array, Array], tuple[Array, Any]]
_BY_NAME = {parameter.name: parameter for parameter in PARAMETERS}


def forward(
    params: Params,
    config: ModelConfig,
    tokens: Int[Array, "B T"],
    segment_ids: Int[Array, "B T"],
    positions: Int[Array, "B T"],
    *,
    compute: ComputeSettings = ComputeSettings(),
    axes: Axes = UNSHARDED,
) -> Float[Array, "B T D"]:
    """Return the normed last hidden state of packed rows.

    Args:
        params: Parameter tree with stacked blocks; inside a `shard_map`, the local shards.
        config: The model.
        tokens: [B, T] int32.
        segment_ids: [B, T] int32; tokens see only earlier tokens of their own segment; 0 is padding.
        positions: [B, T] int32, restarting at 0 in every segment.
        compute: Types, remat and the kind of attention.
        axes: Mesh axes this runs under.
    """
    dtype = jnp.dtype(compute.compute_dtype)
    turn = rotation(config, positions.reshape(-1))

    def attend(q: Array, k: Array, v: Array) -> tuple[Array, None]:
        q_rows, k_rows, v_rows = (heads.reshape(*tokens.shape, *heads.shape[1:]) for heads in (q, k, v))
        return attention(q_rows, k_rows, v_rows, segment_ids, compute).reshape(q.shape), None

    def step(x: Array, layer: Params) -> tuple[Array, None]:
        whole = {name: axes.gather(leaf.astype(dtype), _BY_NAME[name]) for name, leaf in layer.items()}
        return block(x, whole, config, turn, attend, axes)

    # Tokens in one axis: the gradients of weights then are plain matrix products, without transposed copies.
    x = embed(parameter(params, "embedding", dtype, axes), tokens.reshape(-1), axes)
    unroll = config.num_layers <= compute.max_unrolled_layers
    x, _ = jax.lax.scan(_remat(step, compute.remat), x, params["layers"], unroll=unroll)
    x = rms_norm(x, parameter(params, "final_norm", dtype, axes), config.rms_norm_eps)
    return x.reshape(*tokens.shape, -1)


def block(
    x: Float[Array, "*B D"], layer: Params, config: ModelConfig, turn: Rotation, attend: Attend, axes: Axes
) -> tuple[Float[Array, "*B D"], Any]:
    """Apply one decoder block.

    Args:
        x: Residual stream.
        layer: The block's parameters, whole along D.
        config: The model.
        turn: Rotation of every token.
        attend: Maps rotated queries, rotated keys and values to the mixed heads and whatever it wants
            returned.
        axes: Mesh axes this runs under.

    Returns:
        The new residual stream, and the second result of `attend`.
    """
    h = rms_norm(x, layer["attention_norm"], config.rms_norm_eps)
    q, k, v = (jnp.einsum("...d,dhk->...hk", h, layer[name]) for name in ("q_proj", "k_proj", "v_proj"))
    mixed, kept = attend(rotate(q, turn), rotate(k, turn), v)
    x = x + axes.sum_tensor(jnp.einsum("...hk,hkd->...d", mixed, layer["o_proj"]))
    h = rms_norm(x, layer["mlp_norm"], config.rms_norm_eps)
    wide = jax.nn.silu(h @ layer["gate_proj"]) * (h @ layer["up_proj"])
    return x + axes.sum_tensor(wide @ layer["down_proj"]), kept


def rms_norm(x: Float[Array, "*B D"], scale: Float[Array, " D"], eps: float) -> Float[Array, "*B D"]:
    """Divide by the root mean square, computed in float32, and scale.

    References:
        Zhang and Sennrich 2019, Root Mean Square Layer Normalization, eq. 4.
    """
    wide = x.astype(jnp.float32)
    normed = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
    return normed.astype(x.dtype) * scale


def embed(table: Float[Array, "V D"], tokens: Int[Array, "*B"], axes: Axes) -> Float[Array, "*B D"]:
    """Look tokens up in a table whose rows may be split over the tensor axis."""
    local = tokens - axes.vocab_start(table.shape[0])
    inside = (local >= 0) & (local < table.shape[0])
    rows = jnp.take(table, jnp.where(inside, local, 0), axis=0)
    return axes.sum_tensor(jnp.where(inside[..., None], rows, 0))


def output_table(params: Params, dtype: DTypeLike, axes: Axes = UNSHARDED) -> Float[Array, "V D"]:
    """Return the output head: the embedding itself in a tied model, so that the two can never drift apart."""
    return parameter(params, "lm_head" if "lm_head" in params else "embedding", dtype, axes)


def output_logits(
    hidden: Float[Array, "*B D"], table: Float[Array, "V D"], config: ModelConfig, axes: Axes = UNSHARDED
) -> Float[Array, "*B V"]:
    """Return float32 logits with the padding ids at -inf; the one place where the vocabulary is masked.

    Args:
        hidden: Normed hidden state.
        table: The output head, or this shard's rows of it.
        config: Gives `num_real_tokens`.
        axes: Mesh axes this runs under.
    """
    logits = jnp.einsum("...d,vd->...v", hidden, table, preferred_element_type=jnp.float32)
    if config.num_real_tokens == config.vocab_size:
        return logits
    ids = axes.vocab_start(table.shape[0]) + jnp.arange(table.shape[0])
    return jnp.where(ids < config.num_real_tokens, logits, -jnp.inf)


def parameter(params: Params, name: str, dtype: DTypeLike, axes: Axes) -> Array:
    """Return one parameter outside the blocks in the compute type, whole along D."""
    return axes.gather(params[name].astype(dtype), _BY_NAME[name])


def _remat(step: Callable[..., Any], remat: str) -> Callable[..., Any]:
    """Make the backward pass recompute what `remat` says; gathered parameters are never kept."""
    policies = {
        "none": jax.checkpoint_policies.save_anything_except_these_names(GATHERED),
        "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
        "full": jax.checkpoint_policies.nothing_saveable,
    }
    return jax.checkpoint(step, policy=policies[remat], prevent_cse=False)
