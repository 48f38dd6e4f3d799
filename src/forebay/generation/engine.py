"""The model over slots: a fixed set of compiled programs for prefill, decoding, and copying cache rows.

Legend: S slots, M context, B steps of a decode block, R rows of a prefill, P tokens of a chunk, W window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from forebay.errors import ConfigError
from forebay.generation.sampler import sample
from forebay.generation.settings import GeneratorSettings
from forebay.generation.slots import DecodeBatch, Decoded, PrefillChunk, decode_batch
from forebay.models.config import ModelConfig
from forebay.models.decode import KVCache, decode_params, decode_step, init_cache, prefill
from forebay.models.hf import from_hf_tensors
from forebay.models.params import Params

_TOKEN_AXIS = 2  # of the arrays of a KVCache


class JaxExecutor:
    """Implements `Executor` with JAX.

    Every program has static shapes and is run once by `warm_up`: prefill for each (chunk, window), a decode
    block for each (number of slots, window), a save and a restore for each window. A window bounds the cached
    tokens that attention reads. The smallest shapes that hold what is live are used; programs of different
    shapes may round differently, which is the only way in which other requests can touch a request's tokens.

    Args:
        config: The model.
        settings: Slots, context, shapes.
        weights: From `prepare_weights`.

    Raises:
        ConfigError: The context is longer than the model's.
    """

    def __init__(self, config: ModelConfig, settings: GeneratorSettings, weights: Params) -> None:
        check_context(config, settings)
        self._settings = settings
        self._params = weights
        self._cache = init_cache(config, settings.slots, settings.context, jnp.dtype(settings.compute_dtype))
        self._decode = jax.jit(
            partial(_decode_block, config=config, block=settings.decode_block),
            static_argnames="window",
            donate_argnums=1,
        )
        self._prefill = jax.jit(partial(_prefill, config=config), static_argnames="window", donate_argnums=1)
        self._save = jax.jit(_save, static_argnames="window")
        self._restore = jax.jit(_restore, donate_argnums=0)

    @property
    def row_bytes(self) -> int:
        """Bytes of one saved row at full length."""
        return sum(side.nbytes for side in jax.tree.leaves(self._cache)) // self._settings.slots

    def warm_up(self) -> None:
        """Compile and run every program; nothing compiles afterwards."""
        settings = self._settings
        idle = decode_batch([], settings.slots, settings.max_stop_tokens)
        for window in settings.windows:
            for chunk in settings.chunks:
                if chunk <= window:
                    self._run_prefill([], chunk, window)
            for rows in settings.decode_rows:
                self._run_decode(idle, rows, window)
            row = self._save(self._cache, np.int32(0), window=window)
            self._cache = self._restore(self._cache, row, np.int32(0))
        jax.block_until_ready(self._cache)

    def load(self, weights: Params) -> None:
        """Use these weights from the next call on."""
        self._params = weights

    def prefill(self, chunks: Sequence[PrefillChunk]) -> None:
        """Compute prompt tokens, at most `prefill_rows` chunks of one padded length in a call."""
        by_size: dict[int, list[PrefillChunk]] = {}
        for chunk in chunks:
            size = next(size for size in self._settings.chunks if size >= len(chunk.tokens))
            by_size.setdefault(size, []).append(chunk)
        rows = self._settings.prefill_rows
        for size, group in by_size.items():
            for first in range(0, len(group), rows):
                part = group[first : first + rows]
                end = max(chunk.start + len(chunk.tokens) for chunk in part)
                self._run_prefill(part, size, self._window(max(end, size)))

    def decode(self, batch: DecodeBatch) -> Decoded:
        """Sample up to a block of tokens in every slot that has any remaining."""
        steps = np.minimum(batch.remaining, self._settings.decode_block)
        end = int(np.max(np.where(batch.remaining > 0, batch.lengths + steps, 0)))
        last = int(np.flatnonzero(batch.remaining)[-1])
        rows = next(rows for rows in self._settings.decode_rows if rows > last)
        return self._run_decode(batch, rows, self._window(end))

    def save(self, slot: int, length: int) -> KVCache:
        """Return a copy of a slot's first tokens, padded to a window."""
        return self._save(self._cache, np.int32(slot), window=self._window(length))

    def restore(self, row: KVCache, slot: int) -> None:
        """Put a saved row into a slot."""
        self._cache = self._restore(self._cache, row, np.int32(slot))

    def _window(self, num_tokens: int) -> int:
        return next(window for window in self._settings.windows if window >= num_tokens)

    def _run_prefill(self, chunks: Sequence[PrefillChunk], size: int, window: int) -> None:
        rows = self._settings.prefill_rows
        tokens = np.zeros((rows, size), np.int32)
        slots = np.full(rows, self._settings.slots, np.int32)  # beyond the last slot: an unused row
        starts, lengths = np.zeros(rows, np.int32), np.ones(rows, np.int32)
        for row, chunk in enumerate(chunks):
            tokens[row, : len(chunk.tokens)] = chunk.tokens
            slots[row], starts[row], lengths[row] = chunk.slot, chunk.start, len(chunk.tokens)
        self._cache = self._prefill(self._params, self._cache, tokens, slots, starts, lengths, window=window)

    def _run_decode(self, batch: DecodeBatch, rows: int, window: int) -> Decoded:
        first = DecodeBatch._make(part[:rows] for part in batch)
        self._cache, decoded = self._decode(self._params, self._cache, first, window=window)
        return Decoded(*(np.asarray(part) for part in decoded))


def check_context(config: ModelConfig, settings: GeneratorSettings) -> None:
    """Refuse a context that the model was not made for.

    Raises:
        ConfigError: `settings.context` exceeds the model's longest sequence.
    """
    if settings.context > config.max_position:
        raise ConfigError(
            "generator.context exceeds the longest sequence of the model",
            got=settings.context,
            limit=config.max_position,
            remedy=f"Set generator.context to at most {config.max_position}.",
        )


def prepare_weights(
    tensors: Mapping[str, np.ndarray], config: ModelConfig, settings: GeneratorSettings
) -> Params:
    """Return weights that an executor can load, on the device.

    Args:
        tensors: Arrays by Hugging Face name.
        config: The model they belong to.
        settings: Gives the type.

    Raises:
        ModelError: The tensors do not fit the configuration.
    """
    tree = from_hf_tensors(tensors, config)
    return jax.device_put(decode_params(tree, jnp.dtype(settings.compute_dtype)))


def _prefill(
    params: Params,
    cache: KVCache,
    tokens: Int[Array, "R P"],
    slots: Int[Array, " R"],
    starts: Int[Array, " R"],
    lengths: Int[Array, " R"],
    *,
    config: ModelConfig,
    window: int,
) -> KVCache:
    """Fill the cache; the logits are not used, so the compiler drops the output head."""
    return prefill(params, config, cache, tokens, slots, starts, lengths, window=window)[0]


def _decode_block(
    params: Params, cache: KVCache, batch: DecodeBatch, *, config: ModelConfig, block: int, window: int
) -> tuple[KVCache, tuple[Int[Array, "B S"], Float[Array, "B S"], Int[Array, " S"]]]:
    """Decode `block` tokens in the first slots; one that stops or has nothing remaining idles to the end.

    The part of the cache that the block may touch is cut out once and put back once: cutting it in every step
    costs more.
    """
    rows = batch.tokens.shape[0]
    part = jax.tree.map(lambda side: side[:rows, :, :window], cache)
    tokens, lengths, remaining, seeds, stops, temperature, top_p, top_k = map(jnp.asarray, batch)

    def step(
        carry: tuple[KVCache, Array, Array, Array], _: None
    ) -> tuple[tuple[KVCache, Array, Array, Array], tuple[Array, Array, Array]]:
        cache, tokens, lengths, remaining = carry
        active = remaining > 0
        # An idle slot writes beyond the window, that is nowhere.
        where = jnp.where(active, lengths, window)
        cache, logits = decode_step(params, config, cache, tokens, where)
        drawn, logprobs = sample(logits, seeds, lengths + 1, temperature, top_p, top_k)
        stopped = (drawn[:, None] == stops).any(axis=-1)
        remaining = jnp.where(active & ~stopped, remaining - 1, 0)
        tokens = jnp.where(active, drawn, tokens)
        return (cache, tokens, lengths + active, remaining), (drawn, logprobs, active)

    carry, sampled = jax.lax.scan(step, (part, tokens, lengths, remaining), length=block)
    drawn, logprobs, active = sampled
    return jax.tree.map(_put_back, cache, carry[0]), (drawn, logprobs, active.sum(axis=0, dtype=jnp.int32))


def _put_back(side: Array, part: Array) -> Array:
    return jax.lax.dynamic_update_slice(side, part, (0, 0, 0, 0))


def _save(cache: KVCache, slot: Int[Array, ""], *, window: int) -> KVCache:
    def cut(side: Array) -> Array:
        row = jax.lax.dynamic_slice_in_dim(side, slot, 1, axis=0)
        return jax.lax.slice_in_dim(row, 0, window, axis=_TOKEN_AXIS)

    return jax.tree.map(cut, cache)


def _restore(cache: KVCache, row: KVCache, slot: Int[Array, ""]) -> KVCache:
    return jax.tree.map(
        lambda side, part: jax.lax.dynamic_update_slice(side, part, (slot, 0, 0, 0)), cache, row
    )
