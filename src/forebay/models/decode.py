"""Decoding: a key-value cache of fixed slots, chunked prefill, and one step for all slots.

Legend: S slots, M cached tokens per slot, N key-value heads, H query heads, K head size, P tokens of a chunk,
R rows of a prefill, V vocabulary.

Blocks are written out and each has its own cache arrays: looping over stacked caches copies them at every
token. Heads come before tokens in the cache, so that attention reads it in place; with tokens first it was
transposed at every token, which took most of the step on a CPU.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, DTypeLike, Float, Int

from forebay.models.attention import MASKED
from forebay.models.config import ModelConfig
from forebay.models.params import Params, cast, split_layers
from forebay.models.rope import rotations
from forebay.models.sharding import UNSHARDED
from forebay.models.transformer import block, embed, output_logits, output_table, rms_norm


class KVCache(NamedTuple):
    """Rotated keys and values of every slot, one array per block."""

    keys: tuple[Float[Array, "S N M K"], ...]
    values: tuple[Float[Array, "S N M K"], ...]


def init_cache(
    config: ModelConfig, num_slots: int, max_length: int, dtype: DTypeLike = jnp.float32
) -> KVCache:
    """Return an empty cache; what a slot holds beyond its length is never read."""
    shape = (num_slots, config.num_kv_heads, max_length, config.head_size)

    def arrays() -> tuple[Array, ...]:
        return tuple(jnp.zeros(shape, dtype) for _ in range(config.num_layers))

    return KVCache(arrays(), arrays())


def decode_params(params: Params, dtype: DTypeLike = jnp.float32) -> Params:
    """Prepare a tree for `prefill` and `decode_step`, once per weight load: compute type, blocks split."""
    return split_layers(cast(params, dtype))


def prefill(
    params: Params,
    config: ModelConfig,
    cache: KVCache,
    tokens: Int[Array, "R P"],
    slots: Int[Array, " R"],
    starts: Int[Array, " R"],
    lengths: Int[Array, " R"],
    *,
    window: int | None = None,
) -> tuple[KVCache, Float[Array, "R V"]]:
    """Write chunks of prompts into their slots; each chunk sees what its slot already holds before `starts`.

    Args:
        params: From `decode_params`.
        config: The model.
        cache: Current cache; donate it.
        tokens: [R, P] int32; chunk r is `tokens[r, : lengths[r]]`, the rest is ignored.
        slots: [R] int32; distinct, except that any value >= S marks an unused row.
        starts: [R] int32, tokens that the slot already holds; 0 for a new prompt.
        lengths: [R] int32, tokens of the chunk, 1 to P; `starts + lengths <= M`.
        window: Static; reads only the first `window` cached tokens. Needs `starts + lengths <= window`.

    Returns:
        The cache, and float32 logits after the last token of each chunk (padding ids at -inf). Only the
        logits of a prompt's last chunk predict its first new token.
    """
    num_slots, _, max_length, _ = cache.keys[0].shape
    offsets = jnp.arange(tokens.shape[1])
    positions = starts[:, None] + offsets
    # Tokens past the chunk's end go out of bounds, where a scatter drops them.
    columns = jnp.where(offsets < lengths[:, None], positions, max_length + offsets)
    visible = jnp.arange(window or max_length) <= positions[:, :, None]
    rows = jnp.minimum(slots, num_slots - 1)

    x, cache = _run(params, config, cache, tokens, positions, (slots[:, None], columns), (rows, visible))
    last = jnp.take_along_axis(x, jnp.maximum(lengths - 1, 0)[:, None, None], axis=1)[:, 0]
    return cache, output_logits(last, output_table(params, x.dtype), config)


def decode_step(
    params: Params,
    config: ModelConfig,
    cache: KVCache,
    tokens: Int[Array, " S"],
    lengths: Int[Array, " S"],
    *,
    window: int | None = None,
) -> tuple[KVCache, Float[Array, "S V"]]:
    """Append one token to every slot and return the logits of the next.

    Args:
        params: From `decode_params`.
        config: The model.
        cache: Current cache; donate it.
        tokens: [S] int32, the newest token of each slot, not yet in the cache.
        lengths: [S] int32, tokens that the slot already holds, which is also where `tokens` is written. A
            slot that is idle may be given anything: what is written there is beyond its length and is
            overwritten before it is read. A value >= M writes nothing.
        window: Static; reads only the first `window` cached tokens. Needs `lengths < window` in slots that
            matter.

    Returns:
        The cache, and float32 logits [S, V] with padding ids at -inf.
    """
    num_slots, _, max_length, _ = cache.keys[0].shape
    visible = jnp.arange(window or max_length) <= lengths[:, None, None]
    where = (jnp.arange(num_slots)[:, None], lengths[:, None])
    x, cache = _run(params, config, cache, tokens[:, None], lengths[:, None], where, (None, visible))
    return cache, output_logits(x[:, 0], output_table(params, x.dtype), config)


def _run(
    params: Params,
    config: ModelConfig,
    cache: KVCache,
    tokens: Int[Array, "R P"],
    positions: Int[Array, "R P"],
    where: tuple[Array, Array],
    seen: tuple[Array | None, Array],
) -> tuple[Float[Array, "R P D"], KVCache]:
    """Run all blocks; write keys and values at `where`, attend to the rows and tokens named by `seen`."""
    turns = rotations(config, positions.reshape(-1))
    rows, visible = seen
    visible_to = {kind: _within(visible, positions, kind.window) for kind in turns}
    slots, columns = where
    x = embed(params["embedding"], tokens.reshape(-1), config, UNSHARDED)
    # Idle slots are routed too: experts drop no token, so it changes nothing for the others.
    is_real = jnp.ones(tokens.size, bool)
    written: list[tuple[Array, Array]] = []
    kinds = config.layer_kinds
    for kind, layer, *sides in zip(kinds, params["layers"], cache.keys, cache.values, strict=True):

        def attend(
            q: Array, k: Array, v: Array, sides: list[Array] = sides, visible: Array = visible_to[kind]
        ) -> tuple[Array, tuple[Array, ...]]:
            new = (heads.reshape(*tokens.shape, *heads.shape[1:]) for heads in (k, v))
            cached = tuple(
                side.at[slots, :, columns].set(heads.astype(side.dtype), mode="drop")
                for side, heads in zip(sides, new, strict=True)
            )
            read = (side if rows is None else side[rows] for side in cached)
            keys, values = (side[:, :, : visible.shape[-1]] for side in read)
            mixed = _cached_attention(q.reshape(*tokens.shape, *q.shape[1:]), keys, values, visible, config)
            return mixed.reshape(q.shape), cached

        x, pair, _ = block(x, layer, config, turns[kind], attend, is_real, UNSHARDED)
        written.append(pair)
    x = rms_norm(x, params["final_norm"], config)
    return x.reshape(*tokens.shape, -1), KVCache(*map(tuple, zip(*written, strict=True)))


def _within(
    visible: Bool[Array, "R P W"], positions: Int[Array, "R P"], window: int | None
) -> Bool[Array, "R P W"]:
    """Return which cached tokens a block with a window sees; the cache keeps the others, too."""
    if window is None:
        return visible
    return visible & (jnp.arange(visible.shape[-1]) > positions[:, :, None] - window)


def _cached_attention(
    q: Float[Array, "R P H K"],
    keys: Float[Array, "R N W K"],
    values: Float[Array, "R N W K"],
    visible: Bool[Array, "R P W"],
    config: ModelConfig,
) -> Float[Array, "R P H K"]:
    """Mix cached values; float32 softmax, as in training."""
    num_rows, num_tokens, num_heads, head_size = q.shape
    grouped = q.reshape(num_rows, num_tokens, keys.shape[1], -1, head_size).transpose(0, 2, 3, 1, 4)
    queries = grouped.reshape(num_rows, keys.shape[1], -1, head_size)
    scores = jnp.einsum("rnqk,rnwk->rnqw", queries, keys, preferred_element_type=jnp.float32)
    seen = jnp.tile(visible, (1, num_heads // keys.shape[1], 1))[:, None]
    scores = scores * config.attention_scale
    if config.attention_softcap is not None:
        scores = config.attention_softcap * jnp.tanh(scores / config.attention_softcap)
    scores = jnp.where(seen, scores, MASKED)
    weights = jax.nn.softmax(scores, axis=-1).astype(values.dtype)
    mixed = jnp.einsum("rnqw,rnwk->rnqk", weights, values).reshape(grouped.shape)
    return mixed.transpose(0, 3, 1, 2, 4).reshape(q.shape)
