"""Log-probabilities of the tokens of packed rows; the one place where logits are shifted to their targets.

Shifting is done on whole rows, before a shard takes its tokens and after what was computed of them is put
together again: a target may lie in another shard.

Legend: B rows, T tokens, S tokens of this shard, D model width, V vocabulary, C tokens of one chunk.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from forebay.models.config import ModelConfig
from forebay.models.params import Params
from forebay.models.settings import ComputeSettings
from forebay.models.sharding import UNSHARDED, Axes
from forebay.models.transformer import output_logits, output_table, token_states


def token_logprobs(
    params: Params,
    config: ModelConfig,
    tokens: Int[Array, "B T"],
    segment_ids: Int[Array, "B T"],
    positions: Int[Array, "B T"],
    temperature: Float[Array, "B T"],
    *,
    compute: ComputeSettings = ComputeSettings(),
    axes: Axes = UNSHARDED,
) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
    """Return every token's logprob and entropy under softmax(logits / temperature), aligned to the token.

    `logprobs[b, t] = log p(tokens[b, t] | earlier tokens of the segment)`. A segment's first token and
    padding have no distribution here: both results are 0 there.

    Args:
        params: Parameter tree with stacked blocks; inside a `shard_map`, the local shards.
        config: The model.
        tokens: [B, T] int32.
        segment_ids: [B, T] int32, 0 = padding.
        positions: [B, T] int32, restarting in every segment.
        temperature: [B, T] float32, the temperature that the token was sampled with; <= 0 (greedy) counts as
            1.
        compute: Types, remat, attention and the chunk of the loss.
        axes: Mesh axes this runs under.

    Returns:
        logprobs: [B, T] float32, nats.
        entropy: [B, T] float32, nats, of the distribution that the token was drawn from.
    """
    hidden, _ = token_states(params, config, tokens, segment_ids, positions, compute=compute, axes=axes)
    return hidden_logprobs(
        params, config, hidden, tokens, segment_ids, temperature, compute=compute, axes=axes
    )


def hidden_logprobs(
    params: Params,
    config: ModelConfig,
    hidden: Float[Array, "S D"],
    tokens: Int[Array, "B T"],
    segment_ids: Int[Array, "B T"],
    temperature: Float[Array, "B T"],
    *,
    compute: ComputeSettings = ComputeSettings(),
    axes: Axes = UNSHARDED,
) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
    """Return what `token_logprobs` does, of hidden states that something else is read from too.

    Args:
        params: Parameter tree with stacked blocks; inside a `shard_map`, the local shards.
        config: The model.
        hidden: [S, D], from `token_states`.
        tokens: [B, T] int32, whole rows, as the other two.
        segment_ids: [B, T] int32, 0 = padding.
        temperature: [B, T] float32, the temperature that the token was sampled with; <= 0 counts as 1.
        compute: The chunk of the loss.
        axes: Mesh axes this runs under.
    """
    table = output_table(params, hidden.dtype, axes)
    targets = axes.own_tokens(_next(tokens))
    temperatures = axes.own_tokens(_next(jnp.where(temperature > 0, temperature, 1.0)))
    scores = _chunked_scores(
        axes.enter(hidden),
        targets.reshape(-1),
        temperatures.reshape(-1),
        table,
        config,
        compute.loss_chunk_tokens,
        axes,
    )
    logprobs, entropy = (
        to_targets(axes.whole_rows(score.reshape(targets.shape), shared=True), segment_ids)
        for score in scores
    )
    return logprobs, entropy


def to_targets(of_states: Float[Array, "B T"], segment_ids: Int[Array, "B T"]) -> Float[Array, "B T"]:
    """Give each token what was computed at the position before it, from which it was predicted.

    Args:
        of_states: [B, T], by position.
        segment_ids: [B, T] int32, 0 = padding.

    Returns:
        [B, T]; 0 where nothing predicts the token.
    """
    return jnp.where(is_target(segment_ids), jnp.roll(of_states, 1, axis=1), 0.0)


def is_target(segment_ids: Int[Array, "B T"]) -> Bool[Array, "B T"]:
    """Return which tokens are predicted by an earlier token of their own segment."""
    earlier = jnp.pad(segment_ids, ((0, 0), (1, 0)))[:, :-1]
    return (segment_ids != 0) & (segment_ids == earlier)


def _next(values: Array) -> Array:
    """Align to each position the value of the token that it predicts; the last column is never used."""
    return jnp.roll(values, -1, axis=1)


def _chunked_scores(
    hidden: Float[Array, "S D"],
    targets: Int[Array, " S"],
    temperature: Float[Array, " S"],
    table: Float[Array, "V D"],
    config: ModelConfig,
    chunk_tokens: int,
    axes: Axes,
) -> tuple[Float[Array, " S"], Float[Array, " S"]]:
    """Score chunk by chunk; the backward pass recomputes each chunk's logits, so [S, V] never exists.

    Where one chunk holds all tokens, its logits are kept: what comes between the passes is small, and the
    peak is that of one chunk in either case.
    """
    # The table's gradients of all chunks are added in the type that it has here, whatever the computation's.
    wide_table = table.astype(jnp.float32)

    def chunk_scores(chunk: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        return _scores(*chunk, wide_table.astype(table.dtype), config, axes)

    num_tokens = targets.shape[0]
    if num_tokens <= chunk_tokens:
        return chunk_scores((hidden, targets, temperature))
    padding = -num_tokens % chunk_tokens
    chunks = tuple(
        jnp.pad(value, ((0, padding), *((0, 0),) * (value.ndim - 1)), constant_values=fill).reshape(
            -1, chunk_tokens, *value.shape[1:]
        )
        for value, fill in ((hidden, 0), (targets, 0), (temperature, 1))
    )
    logprobs, entropy = jax.lax.map(jax.checkpoint(chunk_scores), chunks)
    return logprobs.reshape(-1)[:num_tokens], entropy.reshape(-1)[:num_tokens]


def _scores(
    hidden: Float[Array, "C D"],
    targets: Int[Array, " C"],
    temperature: Float[Array, " C"],
    table: Float[Array, "V D"],
    config: ModelConfig,
    axes: Axes,
) -> tuple[Float[Array, " C"], Float[Array, " C"]]:
    """Return logprob of the targets and entropy, from this shard's part of the vocabulary."""
    logits = output_logits(hidden, table, config, axes) / temperature[:, None]
    largest = axes.max_tensor(jax.lax.stop_gradient(logits.max(axis=-1, keepdims=True)))
    weights = jnp.exp(logits - largest)
    total = axes.sum_tensor(weights.sum(axis=-1))
    log_total = jnp.log(total) + largest[:, 0]
    ids = axes.vocab_start(table.shape[0]) + jnp.arange(table.shape[0])
    chosen = axes.sum_tensor(jnp.where(ids == targets[:, None], logits, 0.0).sum(axis=-1))
    weighted = jnp.where(ids < config.num_real_tokens, weights * logits, 0.0)
    return chosen - log_total, log_total - axes.sum_tensor(weighted.sum(axis=-1)) / total
