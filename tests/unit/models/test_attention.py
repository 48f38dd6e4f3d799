from __future__ import annotations

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from forebay.models.attention import attention, attention_mask, dense_attention
from forebay.models.settings import ComputeSettings
from tests.unit.models import tiny
from tests.unit.models.attention_cases import DENSE, RULES, case, relative_errors, results

C45 = json.loads((Path(__file__).parents[2] / "golden" / "expected.json").read_text())["C45"]["expect"]
LENGTHS = [[13, 20, 1, 6], [50], [9, 9, 9, 9]]


def heads(num_heads: int, width: int, seed: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), (len(LENGTHS), width, num_heads, 8))


def test_c45_mask() -> None:
    segment_ids, positions = tiny.packed_row([3, 4], 8)
    mask = np.asarray(attention_mask(jnp.asarray(segment_ids)[None]))[0]
    assert segment_ids.tolist() == C45["segments"]
    assert positions.tolist() == C45["positions"]
    assert mask.astype(int).tolist() == C45["mask_rows"]
    assert mask.sum() == C45["allowed_pairs"]


def test_dense_against_a_loop_in_float64() -> None:
    q, k, v = heads(4, 12, 0), heads(2, 12, 1), heads(2, 12, 2)
    segment_ids = np.stack([tiny.packed_row([5, 4], 12)[0]] * 3)
    got = np.asarray(dense_attention(q, k, v, attention_mask(jnp.asarray(segment_ids))))
    q64, k64, v64 = (np.asarray(array, np.float64) for array in (q, k, v))
    for row, token, head in [(0, 0, 0), (1, 4, 3), (2, 5, 1), (0, 8, 2)]:
        seen = [s for s in range(token + 1) if segment_ids[row, s] == segment_ids[row, token]]
        scores = np.array([q64[row, token, head] @ k64[row, s, head // 2] for s in seen]) / np.sqrt(8)
        weights = np.exp(scores - scores.max())
        expected = weights / weights.sum() @ np.stack([v64[row, s, head // 2] for s in seen])
        np.testing.assert_allclose(got[row, token, head], expected, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("rule", "num_heads", "num_kv_heads", "block_tokens"),
    [("plain", 4, 2, 8), ("window", 3, 1, 16), ("softcap", 2, 2, 64), ("window and softcap", 4, 2, 16)],
)
def test_blockwise_equals_dense_in_value_and_gradient(
    rule: str, num_heads: int, num_kv_heads: int, block_tokens: int
) -> None:
    packed = case(LENGTHS, 51, num_heads, num_kv_heads)
    settings = ComputeSettings(attention="blockwise", attention_block_tokens=block_tokens)
    errors = relative_errors(results(packed, settings, RULES[rule]), results(packed, DENSE, RULES[rule]))
    assert max(errors) < 1e-6


def test_bfloat16_blockwise_is_as_near_to_float32_as_dense_is() -> None:
    exact = results(case(LENGTHS, 50, 4, 2), DENSE, {})
    packed = case(LENGTHS, 50, 4, 2, jnp.bfloat16)
    blockwise = relative_errors(results(packed, ComputeSettings(attention="blockwise"), {}), exact)
    dense = relative_errors(results(packed, DENSE, {}), exact)
    assert max(blockwise) < 0.02
    assert max(blockwise) < 1.5 * max(dense)


@pytest.mark.parametrize(("rule", "seen"), [({"window": 3}, 3), ({}, 20)])
def test_a_window_counts_the_token_itself(rule: dict[str, int], seen: int) -> None:
    """Equal scores mix the mean of what is seen: of one-hot values, 1 / seen each."""
    width = 20
    q = k = jnp.zeros((1, width, 1, width))
    mixed = attention(q, k, jnp.eye(width)[None, :, None], jnp.ones((1, width), jnp.int32), DENSE, **rule)
    expected = np.zeros(width)
    expected[width - seen :] = 1 / seen
    np.testing.assert_allclose(mixed[0, -1, 0], expected, atol=1e-6)


def test_softcap_and_scale_against_a_loop_in_float64() -> None:
    packed = case([[5, 4]], 12, 2, 1)
    mixed = attention(*packed[:3], packed.segment_ids, DENSE, softcap=1.5, scale=0.7)
    q, k, v = (np.asarray(value, np.float64)[0] for value in packed[:3])
    scores = 1.5 * np.tanh(0.7 * np.array([q[8, 1] @ k[token, 0] for token in range(5, 9)]) / 1.5)
    weights = np.exp(scores) / np.exp(scores).sum()
    np.testing.assert_allclose(mixed[0, 8, 1], weights @ v[5:9, 0], rtol=2e-5)


def test_blockwise_skips_what_is_not_seen() -> None:
    """Poisoned keys of earlier segments and of padding never reach a result or a gradient."""
    width = 64
    segment_ids = jnp.asarray(tiny.packed_row([16, 16, 16], width)[0])[None]
    q, k, v = (heads(count, width, seed)[:1] for count, seed in ((4, 0), (2, 1), (2, 2)))
    poisoned = k.at[:, :32].set(jnp.nan).at[:, 48:].set(jnp.nan)
    settings = ComputeSettings(attention="blockwise", attention_block_tokens=16)

    def third(q: jax.Array, k: jax.Array) -> jax.Array:
        return attention(q, k, v, segment_ids, settings)[:, 32:48]

    np.testing.assert_array_equal(third(q, poisoned), third(q, k))
    assert (attention(q, k, v, segment_ids, settings)[:, 48:] == 0).all()


def test_blockwise_never_looks_at_blocks_outside_the_window() -> None:
    width = 64
    segment_ids = jnp.ones((1, width), jnp.int32)
    q, k, v = (heads(count, width, seed)[:1] for count, seed in ((4, 0), (2, 1), (2, 2)))
    poisoned = k.at[:, :32].set(jnp.nan)
    settings = ComputeSettings(attention="blockwise", attention_block_tokens=16)

    def last(k: jax.Array) -> jax.Array:
        return attention(q, k, v, segment_ids, settings, window=16)[:, 48:]

    np.testing.assert_array_equal(last(poisoned), last(k))


def test_memory_of_blockwise_is_linear_in_the_row() -> None:
    def peak_bytes(width: int) -> int:
        shape = jax.ShapeDtypeStruct((1, width, 2, 8), jnp.float32)
        ids = jax.ShapeDtypeStruct((1, width), jnp.int32)
        settings = ComputeSettings(attention="blockwise")
        grad = jax.grad(lambda q, k, v, ids: attention(q, k, v, ids, settings).sum(), (0, 1, 2))
        return jax.jit(grad).lower(shape, shape, shape, ids).compile().memory_analysis().temp_size_in_bytes

    assert peak_bytes(4096) < 4.5 * peak_bytes(1024)
