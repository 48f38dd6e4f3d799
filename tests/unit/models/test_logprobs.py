from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from forebay.models import logprobs as module
from forebay.models.config import ModelConfig
from forebay.models.logprobs import is_target, token_logprobs
from forebay.models.settings import ComputeSettings
from forebay.models.transformer import forward, output_logits, output_table
from tests.unit.models import tiny

CASES = json.loads((Path(__file__).parents[2] / "golden" / "expected.json").read_text())


@functools.partial(jax.jit, static_argnames=("config", "compute"))
def score(params, tokens, segment_ids, temperature, config=tiny.CONFIG, compute=ComputeSettings()):
    starts = jnp.where(
        segment_ids != jnp.pad(segment_ids, ((0, 0), (1, 0)))[:, :-1], jnp.arange(tokens.shape[1]), 0
    )
    positions = jnp.arange(tokens.shape[1]) - jax.lax.cummax(starts, axis=1)
    return token_logprobs(
        params, config, tokens, segment_ids, positions.astype(jnp.int32), temperature, compute=compute
    )


def oracle(
    tokens: np.ndarray, temperature: float, config: ModelConfig = tiny.CONFIG
) -> tuple[np.ndarray, np.ndarray]:
    """Return logprob of tokens[1:] and the entropies, in float64, from the model's logits."""
    row = jnp.asarray(tokens)[None]
    hidden = forward(tiny.params(), config, row, jnp.ones_like(row), jnp.arange(len(tokens))[None])
    logits = np.asarray(output_logits(hidden, output_table(tiny.params(), hidden.dtype), config), np.float64)[
        0
    ]
    logits = logits[:, : config.num_real_tokens] / temperature
    logp = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    entropy = -(np.exp(logp) * logp).sum(-1)
    return logp[np.arange(len(tokens) - 1), tokens[1:]], entropy[:-1]


def test_c06_logprobs_are_aligned_to_the_token_they_score() -> None:
    tokens = np.array([1, 2, 3, 4, 5], np.int32)
    logprobs, entropy = score(tiny.params(), tokens[None], jnp.ones((1, 5), jnp.int32), jnp.ones((1, 5)))
    expected = oracle(tokens, 1.0)
    np.testing.assert_allclose(logprobs[0, 1:], expected[0], rtol=1e-5)
    np.testing.assert_allclose(entropy[0, 1:], expected[1], rtol=1e-5)
    assert logprobs[0, 0] == 0
    # the mask [0,0,0,1,1] of the targets selects both response tokens, the first one too
    mask = np.array(CASES["C06"]["expect"]["target_mask"], bool)
    np.testing.assert_allclose(logprobs[0][mask].sum(), expected[0][2:].sum(), rtol=1e-5)


def test_c08_an_end_token_is_scored_where_padding_has_the_same_id() -> None:
    eos = 2
    tokens = np.array([[3, 5, 6, eos, eos, eos]], np.int32)
    segment_ids = jnp.array([[1, 1, 1, 1, 0, 0]])
    logprobs, _ = score(tiny.params(), tokens, segment_ids, jnp.ones((1, 6)))
    np.testing.assert_allclose(logprobs[0, 1:4], oracle(tokens[0, :4], 1.0)[0], rtol=1e-5)
    assert is_target(segment_ids)[0].tolist() == [False, True, True, True, False, False]
    assert (logprobs[0, 4:] == 0).all()


@pytest.mark.parametrize("temperature", ["1.0", "0.6", "1.5"])
def test_c26_temperature_is_part_of_the_distribution(temperature: str) -> None:
    config = dataclasses.replace(tiny.CONFIG, vocab_size=4, num_real_tokens=4, hidden_size=4)
    logits = jnp.array([CASES["C26"]["input"]["logits"]] * 4)
    logprobs, entropy = module._scores(
        logits, jnp.arange(4), jnp.full(4, float(temperature)), jnp.eye(4), config, module.UNSHARDED
    )
    np.testing.assert_allclose(logprobs, CASES["C26"]["expect"]["table"][temperature], atol=1e-6)
    if temperature == "0.6":
        np.testing.assert_allclose(entropy, CASES["C26"]["expect"]["entropy_T06"], atol=1e-5)


def test_c26_every_token_has_its_own_temperature_and_greedy_counts_as_one() -> None:
    tokens = np.arange(6, dtype=np.int32)
    temperature = jnp.array([[0.0, 0.6, 1.5, 0.0, 1.0, 0.3]])
    logprobs, _ = score(tiny.params(), tokens[None], jnp.ones((1, 6), jnp.int32), temperature)
    expected = [oracle(tokens, value)[0][t] for t, value in enumerate([0.6, 1.5, 1.0, 1.0, 0.3])]
    np.testing.assert_allclose(logprobs[0, 1:], expected, rtol=1e-5)


def test_c82_padding_ids_have_no_share_of_the_distribution() -> None:
    logits = jnp.array([CASES["C82"]["input"]["logits"]])
    table = jnp.eye(40)
    for real, expected in ((37, -8.961879), (40, -13.065755)):
        config = dataclasses.replace(tiny.CONFIG, hidden_size=40, num_real_tokens=real)
        logprob, entropy = module._scores(
            logits, jnp.array([12]), jnp.ones(1), table, config, module.UNSHARDED
        )
        np.testing.assert_allclose(logprob, expected, atol=1e-5)
        assert np.isfinite(entropy).all()
        masked = output_logits(logits, table, config)[0]
        assert int(jnp.isneginf(masked).sum()) == 40 - real
        assert (jnp.argmax(masked) <= 36) == (real == 37)


def test_c82_gradients_of_padding_rows_are_zero() -> None:
    params, rows = tiny.params(), tiny.train_rows([[12, 9]], 24)
    untied = dataclasses.replace(tiny.CONFIG, tie_word_embeddings=False)
    params = {**params, "lm_head": params["embedding"]}

    def loss(params):
        logprobs, entropy = score(params, rows.tokens, rows.segment_ids, rows.temperature, config=untied)
        return logprobs.sum() + entropy.sum()

    gradient = jax.grad(loss)(params)["lm_head"]
    assert (gradient[37:] == 0).all()
    assert jnp.isfinite(gradient).all()
    assert (jnp.abs(gradient[:37]).max(axis=1) > 0).all()


def test_c50_chunked_equals_unchunked_in_loss_and_gradient() -> None:
    rows, params = tiny.train_rows([[12, 9], [20], [3, 3, 3]], 24), tiny.params(scale=2.0)
    weights = jnp.asarray(rows.advantages)

    def loss(params, chunk_tokens):
        compute = ComputeSettings(loss_chunk_tokens=chunk_tokens)
        logprobs, entropy = score(params, rows.tokens, rows.segment_ids, rows.temperature, compute=compute)
        return ((logprobs + 0.1 * entropy) * weights).sum() / 72

    whole, chunked = (jax.value_and_grad(loss)(params, chunk) for chunk in (1024, 16))
    np.testing.assert_allclose(whole[0], chunked[0], rtol=1e-6)
    for a, b in zip(jax.tree.leaves(whole[1]), jax.tree.leaves(chunked[1]), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6 * float(jnp.abs(a).max()))


def test_c50_no_array_of_all_logits_exists_forward_or_backward() -> None:
    tokens, vocab, chunk = 2048, 4096, 128
    config = dataclasses.replace(tiny.CONFIG, vocab_size=vocab, num_real_tokens=vocab)

    def loss(hidden, table, targets):
        logprobs, entropy = module._chunked_scores(
            hidden, targets, jnp.ones(tokens), table, config, chunk, module.UNSHARDED
        )
        return (logprobs + entropy).sum()

    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((tokens, 16), (vocab, 16))]
    compiled = (
        jax.jit(jax.grad(loss, (0, 1))).lower(*shapes, jax.ShapeDtypeStruct((tokens,), jnp.int32)).compile()
    )
    assert f"f32[{tokens},{vocab}]" not in compiled.as_text()
    assert compiled.memory_analysis().temp_size_in_bytes < tokens * vocab * 4 / 3
