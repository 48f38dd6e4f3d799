"""Adapters against PEFT on transformers in float32: logits, gradients, merged weights, files.

`scripts/golden_lora.py` made the adapters and the expected values, on the models of `test_families`.
"""

from __future__ import annotations

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from forebay.models.checkpoint_io import SINGLE_FILE
from forebay.models.hf import from_hf_tensors, to_hf_tensors
from forebay.models.lora import init_adapters, with_adapters
from forebay.models.lora_files import (
    CONFIG_FILE,
    TENSOR_FILE,
    load_adapters,
    read_adapter_settings,
    save_adapters,
)
from forebay.models.lora_layout import to_peft_tensors
from forebay.models.params import Params
from forebay.models.settings import ComputeSettings, LoraSettings
from forebay.weights.adapters import merge
from tests.golden import test_families as families

ADAPTERS = Path(__file__).parent / "lora"
FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "mixtral", "qwen3_moe")
DENSE = ComputeSettings(attention="dense")
of_families = pytest.mark.parametrize("family", FAMILIES)
# What others compute around an adapter differs; what adapters themselves do, these have all of.
of_most = pytest.mark.parametrize(
    "family",
    [
        pytest.param(family, marks=() if family in ("qwen2", "gemma2") else pytest.mark.soak)
        for family in FAMILIES
    ],
)


def expected(family: str, kind: str) -> dict[str, np.ndarray]:
    found = load_file(ADAPTERS / family / "expected.safetensors")
    return {
        name.removeprefix(f"{kind}."): value for name, value in found.items() if name.startswith(f"{kind}.")
    }


@of_most
def test_logits_and_gradients_are_those_of_peft(family: str) -> None:
    config, base = families.model(family)
    lora = read_adapter_settings(ADAPTERS / family)
    rows = families.row(families.expected(family)["tokens"])

    def loss(adapters: Params) -> tuple[jax.Array, jax.Array]:
        whole = with_adapters(base, adapters, lora)
        logits, logprobs = families.scored(whole, rows, config, DENSE)
        return -logprobs.sum() / (logprobs.shape[1] - 1), logits

    run = jax.jit(jax.grad(loss, has_aux=True), compiler_options=families.QUICK)
    gradients, logits = run(load_adapters(ADAPTERS / family, config, lora))
    wanted = load_file(ADAPTERS / family / "expected.safetensors")["logits"]
    families.assert_close(logits[0], wanted)
    assert np.abs(logits[0] - families.expected(family)["logits"]).max() > 0.01 * np.abs(wanted).max()
    got = to_peft_tensors(gradients, config, lora)
    of_peft = expected(family, "gradient")
    assert set(got) == set(of_peft)
    for name, gradient in got.items():
        families.assert_close(gradient, of_peft[name], name)


@of_families
def test_merged_weights_are_those_of_peft(family: str) -> None:
    config, base = families.model(family)
    lora = read_adapter_settings(ADAPTERS / family)
    adapters = to_peft_tensors(load_adapters(ADAPTERS / family, config, lora), config, lora)
    tensors = to_hf_tensors(base, config)
    merged = merge(tensors, adapters, lora.scale)
    wanted = expected(family, "merged")
    assert wanted
    for name, weight in wanted.items():
        families.assert_close(merged[name], weight, name)
    changed = {name for name in tensors if merged[name] is not tensors[name]}
    assert changed == {
        name.removeprefix("base_model.model.").replace(".lora_A", "") for name in adapters if "lora_A" in name
    }


def test_merged_weights_compute_what_adapters_do() -> None:
    config, base = families.model("llama")
    lora = read_adapter_settings(ADAPTERS / "llama")
    adapters = load_adapters(ADAPTERS / "llama", config, lora)
    rows = families.row(families.expected("llama")["tokens"])
    tensors = merge(to_hf_tensors(base, config), to_peft_tensors(adapters, config, lora), lora.scale)
    merged = from_hf_tensors(tensors, config)
    beside = families.scored(with_adapters(base, adapters, lora), rows, config, DENSE)
    inside = families.scored(merged, rows, config, DENSE)
    np.testing.assert_allclose(inside[1], beside[1], atol=2e-5)


def test_new_adapters_change_no_bit() -> None:
    config, base = families.model("llama")
    lora = read_adapter_settings(ADAPTERS / "llama")
    rows = families.row(families.expected("llama")["tokens"])
    whole = with_adapters(base, init_adapters(config, lora, jax.random.key(0)), lora)
    for got, wanted in zip(
        families.scored(whole, rows, config, DENSE),
        families.scored(base, rows, config, DENSE),
        strict=True,
    ):
        np.testing.assert_array_equal(got, wanted)


@of_families
def test_written_adapters_are_read_back(family: str, tmp_path: Path) -> None:
    config, _ = families.model(family)
    lora = read_adapter_settings(ADAPTERS / family)
    adapters = load_adapters(ADAPTERS / family, config, lora)
    save_adapters(tmp_path / "a", adapters, config, lora, base=family)
    assert read_adapter_settings(tmp_path / "a") == lora
    ours, theirs = load_file(tmp_path / "a" / TENSOR_FILE), load_file(ADAPTERS / family / TENSOR_FILE)
    assert {name: value.tobytes() for name, value in ours.items()} == {
        name: value.tobytes() for name, value in theirs.items()
    }
    written = json.loads((tmp_path / "a" / CONFIG_FILE).read_text())
    of_peft = json.loads((ADAPTERS / family / CONFIG_FILE).read_text())
    written["target_modules"].sort()
    of_peft["target_modules"].sort()
    assert {name: of_peft[name] for name in written} == written


def test_written_adapters_are_read_by_peft(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    peft = pytest.importorskip("peft")
    config, _ = families.model("qwen2")
    lora = read_adapter_settings(ADAPTERS / "qwen2")
    save_adapters(tmp_path / "a", load_adapters(ADAPTERS / "qwen2", config, lora), config, lora)
    base = transformers.AutoModelForCausalLM.from_pretrained(
        families.MODELS / "qwen2", attn_implementation="eager", dtype=torch.float32
    )
    model = peft.PeftModel.from_pretrained(base, tmp_path / "a").eval()
    with torch.no_grad():
        logits = model(torch.from_numpy(families.expected("qwen2")["tokens"][None])).logits[0]
    families.assert_close(logits.numpy(), load_file(ADAPTERS / "qwen2" / "expected.safetensors")["logits"])


def test_adapters_on_a_model_of_text_and_images_have_the_names_of_its_text(tmp_path: Path) -> None:
    base = families.MODELS / "gemma3"
    config, _ = families.model("gemma3")
    lora = LoraSettings(rank=2, targets=("q_proj", "down_proj"))
    adapters = jax.tree.map(np.asarray, init_adapters(config, lora, jax.random.key(0)))
    save_adapters(tmp_path / "a", adapters, config, lora, base=str(base))
    # transformers keeps the older names in files, and calls modules by the newer ones.
    modules = {
        name.replace("language_model.model.", "model.language_model.").removesuffix(".weight")
        for name in load_file(base / SINGLE_FILE)
        if name.startswith("language_model.") and name.endswith(("q_proj.weight", "down_proj.weight"))
    }
    named = {name.rpartition(".lora_")[0] for name in load_file(tmp_path / "a" / TENSOR_FILE)}
    assert named == {f"base_model.model.{module}" for module in modules}
    back = load_adapters(tmp_path / "a", config, lora)
    jax.tree.map(np.testing.assert_array_equal, back, adapters)
