"""Every model family against transformers in float32: logits, gradients, packing, decoding, files.

`scripts/golden_families.py` made the checkpoints and the expected values; windows are shorter than the text.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from forebay.models.checkpoint_io import load_model, read_tensors, save_model
from forebay.models.config import ModelConfig
from forebay.models.decode import KVCache, decode_params, decode_step, init_cache, prefill
from forebay.models.hf import from_hf_tensors, to_hf_tensors
from forebay.models.logprobs import hidden_logprobs
from forebay.models.params import Params
from forebay.models.router_loss import RouterLoss, router_loss
from forebay.models.settings import ComputeSettings
from forebay.models.sharding import UNSHARDED
from forebay.models.transformer import forward, output_logits, output_table, token_states

MODELS = Path(__file__).parent / "models"
FAMILIES = (
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "mixtral",
    "qwen3_moe",
    "gemma2",
    "gemma3_text",
    "gemma3",
)
Rows = tuple[jax.Array, jax.Array, jax.Array]
QUICK = {"xla_backend_optimization_level": 0}  # most of the time goes into compiling
BLOCKWISE = ComputeSettings(attention="blockwise", attention_block_tokens=8)
pytestmark = pytest.mark.parametrize("family", FAMILIES)


@functools.cache
def expected(family: str) -> dict[str, np.ndarray]:
    return load_file(MODELS / family / "expected.safetensors")


@functools.cache
def model(family: str) -> tuple[ModelConfig, Params]:
    return load_model(MODELS / family)


def assert_close(got: Any, wanted: np.ndarray, name: str = "") -> None:
    """Assert that no number is off by more than 1e-4 of the largest one."""
    assert got.shape == wanted.shape, name
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-4 * np.abs(wanted).max(), err_msg=name)


@functools.partial(jax.jit, static_argnames=("config", "compute"))
def scored(
    params: Params,
    rows: tuple[jax.Array, jax.Array, jax.Array],
    config: ModelConfig,
    compute: ComputeSettings,
) -> tuple[jax.Array, jax.Array]:
    """Return logits [B, T, V] and logprobs [B, T] of rows (tokens, segment ids, positions)."""
    hidden = forward(params, config, *rows, compute=compute)
    tokens, segments, _ = rows
    ones = jnp.ones(tokens.shape)
    states = hidden.reshape(-1, config.hidden_size)
    logprobs, _ = hidden_logprobs(params, config, states, tokens, segments, ones, compute=compute)
    return output_logits(hidden, output_table(params, hidden.dtype), config), logprobs


def row(*sequences: np.ndarray) -> Rows:
    """Return the tokens, segment ids and positions [1, T] of sequences that lie side by side."""
    segments = [np.full(len(ids), number) for number, ids in enumerate(sequences, start=1)]
    positions = [np.arange(len(ids)) for ids in sequences]
    tokens, segments, positions = (np.concatenate(parts) for parts in (sequences, segments, positions))
    return tuple(jnp.asarray(part[None], jnp.int32) for part in (tokens, segments, positions))


@functools.partial(jax.jit, static_argnames="config")
def balance_loss(params: Params, rows: Rows, config: ModelConfig) -> jax.Array:
    """Return the load-balancing loss of rows that are all one sequence; 0 in a model without experts."""
    _, routed = token_states(params, config, *rows)
    if routed is None:
        return jnp.zeros(())
    return router_loss(routed, RouterLoss(balance=1.0), jnp.asarray(float(rows[0].size)), UNSHARDED)


def test_logits_and_gradients_are_those_of_transformers(family: str) -> None:
    config, params = model(family)
    rows = row(expected(family)["tokens"])

    def loss(params: Params) -> tuple[jax.Array, jax.Array]:
        logits, logprobs = scored(params, rows, config, BLOCKWISE)
        balance = balance_loss(params, rows, config)
        return balance - logprobs.sum() / (logprobs.shape[1] - 1), (logits, balance)

    run = jax.jit(jax.grad(loss, has_aux=True), compiler_options=QUICK)
    gradients, (logits, balance) = run(params)
    np.testing.assert_allclose(balance, expected(family).get("aux_loss", 0.0), rtol=1e-4)
    assert_close(logits[0], expected(family)["logits"])
    wanted = {
        name.removeprefix("gradient.").replace("model.language_model.", "model."): gradient
        for name, gradient in expected(family).items()
        if name.startswith("gradient.")
    }
    got = to_hf_tensors(gradients, config)
    assert set(got) == set(wanted)
    for name, gradient in got.items():
        assert_close(gradient, wanted[name], name)


def test_dense_attention_and_packing_change_nothing(family: str) -> None:
    config, params = model(family)
    tokens = expected(family)["tokens"]
    _, alone = scored(params, row(tokens), config, ComputeSettings(attention="dense"))
    _, packed = scored(params, row(tokens[:9], tokens), config, ComputeSettings(attention="dense"))
    np.testing.assert_allclose(packed[0, 9:], alone[0], atol=2e-5)


def test_decoding_gives_the_logits_of_transformers(family: str) -> None:
    config, params = model(family)
    tokens, wanted = expected(family)["tokens"].astype(np.int32), expected(family)["logits"]
    fill = jax.jit(functools.partial(prefill, config=config), compiler_options=QUICK)
    step = jax.jit(functools.partial(decode_step, config=config), compiler_options=QUICK)
    split = decode_params(params)
    # A cache as another episode leaves it: nothing of it may be seen.
    cache: KVCache = jax.tree.map(lambda side: jnp.full_like(side, 1e4), init_cache(config, 1, 32))
    for start, stop in ((0, 8), (8, 13)):
        chunk = np.zeros((1, 8), np.int32)
        chunk[0, : stop - start] = tokens[start:stop]
        where = (jnp.array([value]) for value in (0, start, stop - start))
        slots, starts, lengths = where
        cache, logits = fill(split, cache=cache, tokens=chunk, slots=slots, starts=starts, lengths=lengths)
        assert_close(logits[0], wanted[stop - 1])
    for length in range(13, 24):
        cache, logits = step(split, cache=cache, tokens=tokens[length, None], lengths=jnp.array([length]))
        assert_close(logits[0], wanted[length])


def test_files_hold_the_same_bits_when_they_are_written_again(family: str, tmp_path: Path) -> None:
    config, params = model(family)
    save_model(tmp_path / "m", config, to_hf_tensors(params, config), dtype="bfloat16")
    original, written = read_tensors(MODELS / family), read_tensors(tmp_path / "m")
    assert {name: tensor.tobytes() for name, tensor in written.items()} == {
        name: tensor.tobytes() for name, tensor in original.items()
    }
    assert load_model(tmp_path / "m")[0] == config
    tree = from_hf_tensors(written, config)
    assert sum(leaf.size for leaf in jax.tree.leaves(tree)) == config.num_parameters


def test_written_directories_are_read_by_transformers(family: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config, params = model(family)
    save_model(tmp_path / "m", config, to_hf_tensors(params, config))
    loaded, info = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "m", attn_implementation="eager", dtype=torch.float32, output_loading_info=True
    )
    assert not any(info.values()), info
    entry = json.loads((tmp_path / "m" / "config.json").read_text())
    assert type(loaded).__name__ == entry["architectures"][0]
    with torch.no_grad():
        logits = loaded.eval()(torch.from_numpy(expected(family)["tokens"][None])).logits[0]
    assert_close(logits.numpy(), expected(family)["logits"])
