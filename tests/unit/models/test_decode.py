from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from forebay.models.decode import KVCache, decode_params, decode_step, init_cache, prefill
from forebay.models.transformer import forward, output_logits, output_table
from tests.unit.models import tiny

SLOTS, MAX_LENGTH = 3, 32
TOKENS = np.random.default_rng(0).integers(0, 37, 20).astype(np.int32)
step = jax.jit(functools.partial(decode_step, config=tiny.CONFIG), static_argnames="window")
fill = jax.jit(functools.partial(prefill, config=tiny.CONFIG), static_argnames="window")


@functools.cache
def expected_logits() -> np.ndarray:
    row, params = jnp.asarray(TOKENS)[None], tiny.params()
    hidden = forward(params, tiny.CONFIG, row, jnp.ones_like(row), jnp.arange(20)[None])
    return np.asarray(output_logits(hidden, output_table(params, hidden.dtype), tiny.CONFIG))[0]


def chunk(start: int, stop: int, width: int = 8) -> np.ndarray:
    return np.pad(TOKENS[start:stop], (0, width - (stop - start)), constant_values=5)


def ints(*values: int) -> jax.Array:
    return jnp.array(values, jnp.int32)


def filled_with_garbage() -> KVCache:
    """A cache as earlier episodes leave it; what is there must never be read."""
    cache = init_cache(tiny.CONFIG, SLOTS, MAX_LENGTH)
    return jax.tree.map(lambda leaf: jnp.full_like(leaf, 1e4), cache)


@pytest.mark.parametrize("window", [None, 24])
def test_prefill_in_chunks_and_decode_equal_the_training_forward(window: int | None) -> None:
    params, cache = decode_params(tiny.params()), filled_with_garbage()
    unused = SLOTS  # a row that nobody needs
    cache, first = fill(
        params,
        cache=cache,
        tokens=np.stack([chunk(0, 8), chunk(0, 1)]),
        slots=ints(1, unused),
        starts=ints(0, 0),
        lengths=ints(8, 1),
        window=window,
    )
    cache, second = fill(
        params,
        cache=cache,
        tokens=np.stack([chunk(0, 3), chunk(8, 13)]),
        slots=ints(0, 1),
        starts=ints(0, 8),
        lengths=ints(3, 5),
        window=window,
    )
    expected = expected_logits()
    np.testing.assert_allclose(first[0], expected[7], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(second, expected[[2, 12]], rtol=1e-4, atol=1e-4)
    for offset in range(7):
        # slot 0 goes on from token 3 and slot 1 from token 13; slot 2 is idle and full
        newest = ints(TOKENS[3 + offset], TOKENS[13 + offset], 9)
        cache, logits = step(
            params,
            cache=cache,
            tokens=newest,
            lengths=ints(3 + offset, 13 + offset, MAX_LENGTH),
            window=window,
        )
        np.testing.assert_allclose(logits[:2], expected[[3 + offset, 13 + offset]], rtol=1e-4, atol=1e-4)
    assert all((side[2] == 1e4).all() for side in jax.tree.leaves(cache))


def test_a_chunk_writes_only_its_own_tokens() -> None:
    cache, _ = fill(
        decode_params(tiny.params()),
        cache=filled_with_garbage(),
        tokens=chunk(0, 5)[None],
        slots=ints(2),
        starts=ints(MAX_LENGTH - 5),
        lengths=ints(5),
    )
    for side in jax.tree.leaves(cache):
        assert (side[:2] == 1e4).all()
        assert (side[2, :, : MAX_LENGTH - 5] == 1e4).all()
        assert (side[2, :, MAX_LENGTH - 5 :] != 1e4).all()


def test_c82_padding_ids_cannot_be_sampled() -> None:
    params = decode_params(tiny.params())
    _, logits = step(
        params, cache=init_cache(tiny.CONFIG, SLOTS, 8), tokens=ints(1, 2, 3), lengths=ints(0, 0, 0)
    )
    assert logits.shape == (SLOTS, 40)
    assert jnp.isneginf(logits[:, 37:]).all()
    assert jnp.isfinite(logits[:, :37]).all()


def test_bfloat16_is_close() -> None:
    params = decode_params(tiny.params(scale=4.0), jnp.bfloat16)
    cache = init_cache(tiny.CONFIG, SLOTS, 8, jnp.bfloat16)
    _, logits = step(params, cache=cache, tokens=ints(1, 2, 3), lengths=ints(0, 0, 0))
    exact = step(
        decode_params(tiny.params(scale=4.0)),
        cache=init_cache(tiny.CONFIG, SLOTS, 8),
        tokens=ints(1, 2, 3),
        lengths=ints(0, 0, 0),
    )[1]
    assert logits.dtype == jnp.float32
    np.testing.assert_allclose(logits[:, :37], exact[:, :37], atol=5e-2)
