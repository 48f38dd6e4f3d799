"""Logits and logprobs of tiny checkpoints, computed elsewhere in float64 and checked against transformers."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from forebay.models.checkpoint_io import load_model
from forebay.models.config import ModelConfig
from forebay.models.decode import decode_params, init_cache, prefill
from forebay.models.frequencies import inverse_frequencies
from forebay.models.hf import from_hf_tensors, to_hf_tensors
from forebay.models.logprobs import token_logprobs
from forebay.models.settings import ComputeSettings
from forebay.models.transformer import forward, output_logits, output_table

HERE = Path(__file__).parent
CASES = json.loads((HERE / "expected.json").read_text())
PROBE = [1, 5, 9, 30, 2, 17, 8, 8, 36, 12, 3, 25, 7, 19, 4, 33, 11, 6, 28, 14, 22, 10, 31, 16]
Model = tuple[ModelConfig, dict[str, Any]]


def tiny(name: str) -> Model:
    return load_model(HERE / "models" / name)


def logits(model: Model, compute: ComputeSettings = ComputeSettings()) -> np.ndarray:
    config, params = model

    @jax.jit
    def run(params: dict[str, Any], tokens: jax.Array) -> jax.Array:
        hidden = forward(params, config, tokens, jnp.ones_like(tokens), jnp.arange(24)[None], compute=compute)
        return output_logits(hidden, output_table(params, hidden.dtype), config)

    return np.asarray(run(params, jnp.array([PROBE])))[0]


def prefilled(model: Model) -> jax.Array:
    """Return the logits after the probe, as the sampler sees them."""
    config, params = model
    run = jax.jit(functools.partial(prefill, config=config))
    zero, length = jnp.array([0]), jnp.array([24])
    cache = init_cache(config, 1, 24)
    return run(
        decode_params(params), cache=cache, tokens=jnp.array([PROBE]), slots=zero, starts=zero, lengths=length
    )[1][0]


def logprobs(
    model: Model, sequences: list[list[int]], compute: ComputeSettings = ComputeSettings()
) -> np.ndarray:
    config, params = model
    tokens = jnp.array([[token for ids in sequences for token in ids]])
    segments = jnp.array([[number + 1 for number, ids in enumerate(sequences) for _ in ids]])
    positions = jnp.array([[position for ids in sequences for position in range(len(ids))]])
    run = jax.jit(functools.partial(token_logprobs, config=config, compute=compute))
    temperature = jnp.ones(tokens.shape)
    return np.asarray(
        run(params, tokens=tokens, segment_ids=segments, positions=positions, temperature=temperature)[0]
    )[0]


@pytest.mark.parametrize("attention", ["dense", "blockwise"])
def test_c80_tied_shards(attention: str) -> None:
    expected, compute = CASES["C80"]["expect"], ComputeSettings(attention=attention, attention_block_tokens=8)
    model = tiny("tiny-tied")
    got = logits(model, compute)
    np.testing.assert_allclose(got[0, :4], expected["logits_t0_first4"], atol=1e-4)
    np.testing.assert_allclose(got[23, :4], expected["logits_t23_first4"], atol=1e-4)
    assert got[23].argmax() == expected["argmax_t23"]
    np.testing.assert_allclose(logprobs(model, [PROBE], compute).sum(), expected["sum_logp_1_23"], atol=1e-4)
    assert sum(leaf.size for leaf in jax.tree.leaves(model[1])) == expected["n_params_tied"]


def test_c80_untied_head() -> None:
    expected = CASES["C80"]["expect"]["untied_logits_t23_first4"]
    np.testing.assert_allclose(logits(tiny("tiny-untied"))[23, :4], expected, atol=1e-4)


def test_c80_bfloat16() -> None:
    got = logits(tiny("tiny-tied"), ComputeSettings(compute_dtype="bfloat16"))
    assert got.dtype == np.float32
    np.testing.assert_allclose(got[23, :4], CASES["C80"]["expect"]["logits_t23_first4"], atol=5e-2)


def test_c81_rope_scaling_is_applied() -> None:
    expected, model = CASES["C81"]["expect"], tiny("tiny-rope3")
    np.testing.assert_allclose(inverse_frequencies(model[0]), expected["inv_freq"], rtol=1e-6)
    got = logits(model)
    np.testing.assert_allclose(got[23, :4], expected["logits_t23_first4"], atol=1e-4)
    np.testing.assert_allclose(got[0], logits(tiny("tiny-tied"))[0], atol=1e-5)
    np.testing.assert_allclose(logprobs(model, [PROBE]).sum(), expected["sum_logp_1_23"], atol=2e-4)


def test_c82_sampler_and_learner_mask_the_same_ids() -> None:
    params = tiny("tiny-vocab40")[1]
    config, _ = load_model(HERE / "models" / "tiny-vocab40", num_real_tokens=37)
    # rows 37..39 of a head that would win by far
    forced = params["embedding"].copy()
    forced[37:] = 100 * forced[0]
    model = config, {**params, "embedding": forced}
    learner = logprobs(model, [[*PROBE, 12]])[24]
    sampler = prefilled(model)
    expected = CASES["C82"]["expect"]["logp_token12"]
    np.testing.assert_allclose(learner, expected, atol=1e-4)
    np.testing.assert_allclose(jax.nn.log_softmax(sampler)[12], expected, atol=1e-4)
    ids = jax.random.categorical(jax.random.key(0), sampler, shape=(2000,))
    assert int(ids.max()) <= CASES["C82"]["expect"]["sampled_ids_max"]


def test_c65_the_tied_head_follows_the_embedding() -> None:
    config, params = tiny("tiny-tied")
    params["embedding"][7] += 0.5
    published = from_hf_tensors(to_hf_tensors(params, config), config)
    expected = CASES["C65"]["expect"]
    got = prefilled((config, published))
    np.testing.assert_allclose(got[7], expected["logit_t23_tok7"], atol=1e-4)
    np.testing.assert_allclose(got[:4], expected["logits_t23_first4"], atol=1e-4)


@pytest.mark.parametrize("attention", ["dense", "blockwise"])
def test_c45b_packed_equals_alone(attention: str) -> None:
    model, compute = tiny("tiny-tied"), ComputeSettings(attention=attention, attention_block_tokens=8)
    a, b = PROBE[:9], PROBE[9:20]
    packed = logprobs(model, [a, b], compute)
    np.testing.assert_allclose(packed[9:].sum(), CASES["C45b"]["expect"]["sum_logp_b"], atol=1e-4)
    np.testing.assert_allclose(packed[9:], logprobs(model, [b], compute), atol=1e-5)
    changed = logprobs(model, [[0, 36, *a[2:]], b], compute)
    np.testing.assert_array_equal(changed[9:], packed[9:])
