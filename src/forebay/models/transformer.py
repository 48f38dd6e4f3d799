"""The decoder as pure functions over a tree: RMSNorm, rotary grouped-query attention, a gated feed-forward.

Training and decoding share `block`; they differ in the attention that they hand to it. What families add
(biases, norms of heads and of what a block adds, soft-caps, windows) stands where it is computed, and is left
out of the compiled program of a model that has none of it. So do adapters, where a projection has one.

Legend: B rows, T tokens, D model width, H query heads, N key-value heads, K head size, V vocabulary, L
    layers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, DTypeLike, Float, Int

from forebay.models.attention import attention
from forebay.models.config import ModelConfig
from forebay.models.feed_forward import feed_forward
from forebay.models.layer_kinds import LayerKind, LayerRun, layer_runs
from forebay.models.layout import PARAMETERS
from forebay.models.lora import ADAPTED, with_adapter
from forebay.models.lora_layout import ADAPTERS
from forebay.models.moe import EXPERT_PRODUCTS, RouterSums, mixture
from forebay.models.params import Params
from forebay.models.ring import MIXED
from forebay.models.rope import Rotation, rotate, rotations
from forebay.models.settings import ComputeSettings
from forebay.models.sharding import UNSHARDED, Axes

Attend = Callable[[Array, Array, Array], tuple[Array, Any]]
Step = Callable[[Array, Params, int | None], tuple[Array, RouterSums | None]]
_BY_NAME = {parameter.name: parameter for parameter in (*PARAMETERS, *ADAPTERS)}


def forward(
    params: Params,
    config: ModelConfig,
    tokens: Int[Array, "B T"],
    segment_ids: Int[Array, "B T"],
    positions: Int[Array, "B T"],
    *,
    compute: ComputeSettings = ComputeSettings(),
) -> Float[Array, "B T D"]:
    """Return the normed last hidden state of packed rows on one device.

    Args:
        params: Parameter tree with stacked blocks.
        config: The model.
        tokens: [B, T] int32.
        segment_ids: [B, T] int32; tokens see only earlier tokens of their own segment; 0 is padding.
        positions: [B, T] int32, restarting at 0 in every segment.
        compute: Types, remat and the kind of attention.
    """
    states, _ = token_states(params, config, tokens, segment_ids, positions, compute=compute)
    return states.reshape(*tokens.shape, -1)


def token_states(
    params: Params,
    config: ModelConfig,
    tokens: Int[Array, "B T"],
    segment_ids: Int[Array, "B T"],
    positions: Int[Array, "B T"],
    *,
    compute: ComputeSettings = ComputeSettings(),
    axes: Axes = UNSHARDED,
) -> tuple[Float[Array, "S D"], RouterSums | None]:
    """Return the normed last hidden state of this shard's tokens, one row after the other.

    Args:
        params: Parameter tree with stacked blocks; inside a `shard_map`, the local shards.
        config: The model.
        tokens: [B, T] int32, whole rows, as the other two.
        segment_ids: [B, T] int32; tokens see only earlier tokens of their own segment; 0 is padding.
        positions: [B, T] int32, restarting at 0 in every segment.
        compute: Types, remat and the kind of attention.
        axes: Mesh axes this runs under.

    Returns:
        [S, D]: of all tokens; under `axes`, those that `own_tokens` gives and the tensor shard's part of
        them.
        What the routers of all blocks did with these tokens; None in a model without experts.
    """
    dtype = jnp.dtype(compute.compute_dtype)
    own = axes.own_tokens(tokens)
    turns = rotations(config, axes.own_tokens(positions).reshape(-1))
    is_real = axes.own_tokens(segment_ids).reshape(-1) != 0

    def step_of(kind: LayerKind) -> Step:
        def attend(q: Array, k: Array, v: Array) -> tuple[Array, None]:
            q_rows, k_rows, v_rows = (heads.reshape(*own.shape, *heads.shape[1:]) for heads in (q, k, v))
            mixed = attention(
                q_rows,
                k_rows,
                v_rows,
                segment_ids,
                compute,
                scale=config.attention_scale,
                window=kind.window,
                softcap=config.attention_softcap,
                axes=axes,
            )
            return mixed.reshape(q.shape), None

        def step(x: Array, layers: Params, index: int | None) -> tuple[Array, RouterSums | None]:
            layer = layers if index is None else {name: leaf[index] for name, leaf in layers.items()}
            whole = {name: axes.gather(leaf, _BY_NAME[name], dtype) for name, leaf in layer.items()}
            x, _, routed = block(x, whole, config, turns[kind], attend, is_real, axes)
            return x, routed

        return _remat(step, compute.remat)

    # Tokens in one axis: the gradients of weights then are plain matrix products, without transposed copies.
    x = embed(parameter(params, "embedding", dtype, axes), own.reshape(-1), config, axes)
    steps = {kind: step_of(kind) for kind in turns}
    unroll = config.num_layers <= compute.max_unrolled_layers
    runs = layer_runs(config.layer_kinds)
    routed = []
    for run, layers in zip(runs, _cut(params["layers"], runs), strict=True):
        x, routed_in_run = _run(x, [steps[kind] for kind in run.pattern], layers, unroll)
        routed.append(routed_in_run)
    sums = jax.tree.map(lambda *parts: jnp.concatenate(parts), *routed)
    return rms_norm(x, parameter(params, "final_norm", dtype, axes), config), sums


def _cut(layers: Params, runs: tuple[LayerRun, ...]) -> list[Params]:
    """Cut stacked parameters into those of each run; the transpose puts their gradients side by side."""
    sizes = [run.num_layers for run in runs]
    parts = {name: jax.lax.split(leaf, sizes) if len(runs) > 1 else [leaf] for name, leaf in layers.items()}
    return [{name: part[index] for name, part in parts.items()} for index in range(len(runs))]


def _run(
    x: Float[Array, "*B D"], steps: list[Step], layers: Params, unroll: bool
) -> tuple[Float[Array, "*B D"], RouterSums | None]:
    """Loop over a pattern's repetitions, with its blocks written out.

    A block takes its parameters out of the period's itself: the backward pass then finds them where they are,
    and no copy of them is kept.
    """
    if len(steps) == 1:  # nothing to take out, so nothing that could be copied
        return jax.lax.scan(lambda x, layer: steps[0](x, layer, None), x, layers, unroll=unroll)

    def period(x: Array, layers: Params) -> tuple[Array, RouterSums | None]:
        routed = []
        for index, step in enumerate(steps):
            x, routed_in_block = step(x, layers, index)
            routed.append(routed_in_block)
        return x, jax.tree.map(lambda *blocks: jnp.stack(blocks), *routed)

    periods = {name: leaf.reshape(-1, len(steps), *leaf.shape[1:]) for name, leaf in layers.items()}
    x, routed = jax.lax.scan(period, x, periods, unroll=unroll)
    return x, jax.tree.map(lambda sums: sums.reshape(-1, *sums.shape[2:]), routed)


def block(
    x: Float[Array, "*B D"],
    layer: Params,
    config: ModelConfig,
    turn: Rotation,
    attend: Attend,
    is_real: Bool[Array, " S_all"],
    axes: Axes,
) -> tuple[Float[Array, "*B D"], Any, RouterSums | None]:
    """Apply one decoder block.

    Args:
        x: Residual stream.
        layer: The block's parameters, whole along D.
        config: The model.
        turn: Rotation of every token.
        attend: Maps rotated queries, rotated keys and values to the mixed heads and whatever it wants
            returned.
        is_real: Which tokens are no padding; experts are for these.
        axes: Mesh axes this runs under.

    Returns:
        The new residual stream, the second result of `attend`, and what the router of experts did.
    """
    h = axes.enter(rms_norm(x, layer["attention_norm"], config))
    q, k, v = (_heads(h, layer, name) for name in ("q", "k", "v"))
    if config.head_norms:
        q, k = rms_norm(q, layer["q_norm"], config), rms_norm(k, layer["k_norm"], config)
    mixed, kept = attend(rotate(q, turn), rotate(k, turn), v)
    added = jnp.einsum("...hk,hkd->...d", mixed, layer["o_proj"])
    added = axes.leave(with_adapter(added, mixed, layer, "o_proj"))
    if config.post_norms:
        added = rms_norm(added, layer["attention_post_norm"], config)
    x = x + added
    h = rms_norm(x, layer["mlp_norm"], config)
    routed = None
    if config.experts is None:
        added = feed_forward(h, layer, config, axes)
    else:
        added, routed = mixture(h, layer, config.experts, is_real, axes)
    if config.post_norms:
        added = rms_norm(added, layer["mlp_post_norm"], config)
    return x + added, kept, routed


def _heads(h: Float[Array, "*B D"], layer: Params, name: str) -> Float[Array, "*B H K"]:
    heads = jnp.einsum("...d,dhk->...hk", h, layer[f"{name}_proj"])
    heads = with_adapter(heads, h, layer, f"{name}_proj")
    return heads + layer[f"{name}_bias"] if f"{name}_bias" in layer else heads


def rms_norm(x: Float[Array, "*B D"], scale: Float[Array, " D"], config: ModelConfig) -> Float[Array, "*B D"]:
    """Divide by the root mean square, computed in float32, and scale.

    References:
        Zhang and Sennrich 2019, Root Mean Square Layer Normalization, eq. 4.
    """
    wide = x.astype(jnp.float32)
    normed = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + config.rms_norm_eps)
    if config.unit_offset_norms:
        return (normed * (1.0 + scale.astype(jnp.float32))).astype(x.dtype)
    return normed.astype(x.dtype) * scale


def embed(
    table: Float[Array, "V D"], tokens: Int[Array, " S_all"], config: ModelConfig, axes: Axes
) -> Float[Array, "S D"]:
    """Look tokens up in a table whose rows may be split over the tensor axis, as its tokens are then."""
    local = tokens - axes.vocab_start(table.shape[0])
    inside = (local >= 0) & (local < table.shape[0])
    rows = _rows_of(table, jnp.where(inside, local, 0), table.shape[0])
    x = axes.leave(jnp.where(inside[..., None], rows, 0))
    return x * jnp.asarray(config.hidden_size**0.5, x.dtype) if config.scaled_embedding else x


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _rows_of(table: Float[Array, "V D"], ids: Int[Array, " S"], num_rows: int) -> Float[Array, "S D"]:
    """Take rows of a table; the gradients of a frequent one are added in float32, lest the last be lost."""
    return jnp.take(table, ids, axis=0)


def _rows_of_forward(table: Array, ids: Array, num_rows: int) -> tuple[Array, Array]:
    return _rows_of(table, ids, num_rows), ids


def _rows_of_backward(num_rows: int, ids: Array, d_rows: Array) -> tuple[Array, None]:
    zeros = jnp.full_like(d_rows, 0, shape=(num_rows, d_rows.shape[1]), dtype=jnp.float32)
    return zeros.at[ids].add(d_rows.astype(jnp.float32)).astype(d_rows.dtype), None


_rows_of.defvjp(_rows_of_forward, _rows_of_backward)


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
        config: Gives `num_real_tokens` and the soft-cap.
        axes: Mesh axes this runs under.
    """
    logits = jnp.einsum("...d,vd->...v", hidden, table, preferred_element_type=jnp.float32)
    if config.final_softcap is not None:
        logits = config.final_softcap * jnp.tanh(logits / config.final_softcap)
    if config.num_real_tokens == config.vocab_size:
        return logits
    ids = axes.vocab_start(table.shape[0]) + jnp.arange(table.shape[0])
    return jnp.where(ids < config.num_real_tokens, logits, -jnp.inf)


def parameter(params: Params, name: str, dtype: DTypeLike, axes: Axes) -> Array:
    """Return one parameter outside the blocks in the compute type, whole along D."""
    return axes.gather(params[name], _BY_NAME[name], dtype)


def _remat(step: Callable[..., Any], remat: str) -> Callable[..., Any]:
    """Make the backward pass recompute what `remat` says; what was gathered is never kept."""
    of_matrices = jax.checkpoint_policies.save_from_both_policies(
        jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
        jax.checkpoint_policies.save_only_these_names(EXPERT_PRODUCTS, ADAPTED),
    )

    def is_gathered(primitive: Any) -> bool:
        return primitive.name == "all_gather"

    products = jax.checkpoint_policies.save_from_both_policies(
        of_matrices, lambda primitive, *_, **__: primitive.name == "reduce_scatter"
    )
    policies = {
        "none": lambda primitive, *_, **__: not is_gathered(primitive),
        "elementwise": jax.checkpoint_policies.save_from_both_policies(
            products, jax.checkpoint_policies.save_only_these_names(MIXED)
        ),
        "dots": products,
        "full": jax.checkpoint_policies.nothing_saveable,
    }
    return jax.checkpoint(step, policy=policies[remat], prevent_cse=False, static_argnums=2)
