"""What is read of the `config.json` of every family, and what is refused by name."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from forebay.errors import ModelError
from forebay.models.config import ModelConfig, load_config
from forebay.models.families import FAMILIES
from forebay.models.layer_kinds import LayerKind
from forebay.models.rope_scaling import RopeScaling

GOLDEN = Path(__file__).parents[2] / "golden" / "models"
SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
# As google/gemma-3-4b-it has it: most of its text_config is what transformers assumes.
GEMMA3_4B = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3",
    "eos_token_id": [1, 106],
    "image_token_index": 262144,
    "text_config": {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "vision_config": {"hidden_size": 1152, "model_type": "siglip_vision_model"},
}
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


def entry(model_type: str, **changes: Any) -> dict[str, Any]:
    return {"model_type": model_type, **SIZES, **changes}


def read(model_type: str, **changes: Any) -> ModelConfig:
    return ModelConfig.from_hf(entry(model_type, **changes))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_written_configuration_is_read_back_unchanged(family: str) -> None:
    config = read(family)
    again = ModelConfig.from_hf(json.loads(json.dumps(config.to_hf())))
    assert again == config
    assert config.to_hf()["architectures"] == [FAMILIES[family].architecture]


def test_gemma_3_of_text_and_images_is_its_text_model() -> None:
    config = ModelConfig.from_hf(GEMMA3_4B)
    assert (config.num_heads, config.num_kv_heads, config.head_size, config.vocab_size) == (8, 4, 256, 262208)
    assert (config.rope_theta, config.rope_scaling) == (1e6, RopeScaling("linear", 8.0))
    local = LayerKind(window=1024, rope_theta=10_000.0)
    assert config.layer_kinds == ((local,) * 5 + (LayerKind(),)) * 5 + (local,) * 4
    assert (config.eos_ids, config.tie_word_embeddings, config.final_softcap) == ((1, 106), True, None)
    written = config.to_hf()
    assert (written["model_type"], written["architectures"]) == ("gemma3_text", ["Gemma3ForCausalLM"])
    assert (written["sliding_window_pattern"], written["rope_local_base_freq"]) == (6, 10_000.0)
    assert written["layer_types"][4:7] == ["sliding_attention", "full_attention", "sliding_attention"]


def test_gemma_2_assumes_what_transformers_does() -> None:
    config = ModelConfig.from_hf({"model_type": "gemma2"})
    assert (config.attention_softcap, config.final_softcap, config.query_pre_attn_scalar) == (50.0, 30.0, 256)
    assert config.pattern == (LayerKind(window=4096), LayerKind())
    assert config.num_parameters == 2_614_341_888  # as google/gemma-2-2b has


def test_windows_of_qwen_are_used_only_if_it_says_so() -> None:
    assert read("qwen2", sliding_window=8, max_window_layers=1).pattern == (LayerKind(),)
    upper = read("qwen2", use_sliding_window=True, sliding_window=8, max_window_layers=3)
    assert upper.layer_kinds == (*(LayerKind(),) * 3, LayerKind(window=8))
    assert upper.to_hf()["max_window_layers"] == 3
    assert upper.to_hf()["use_sliding_window"] is True


def test_windows_of_mistral() -> None:
    assert read("mistral").pattern == (LayerKind(window=4096),)
    assert read("mistral", sliding_window=None).pattern == (LayerKind(),)
    assert read("mistral", sliding_window=None).to_hf()["sliding_window"] is None


def test_yarn_is_read_and_written() -> None:
    config = read("qwen2", rope_scaling=YARN)
    assert config.rope_scaling == RopeScaling("yarn", 4.0, original_max_position=32768)
    assert config.to_hf()["rope_scaling"] == {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 32768,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
    }


@pytest.mark.parametrize(
    ("model_type", "changes", "named"),
    [
        ("qwen2_moe", {}, "unsupported model_type .*'qwen2_moe'"),
        ("gemma", {}, "unsupported model_type"),
        ("qwen3", {"attention_bias": True}, "attention_bias .*True"),
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor .*0.5"),
        ("llama", {"no_rope_layers": [1, 1, 1, 0]}, "no_rope_layers"),
        ("llama", {"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        ("llama", {"num_local_experts": 8}, "num_local_experts .*8"),
        ("llama", {"layer_types": ["sliding_attention"] * 4}, "layer_types"),
        ("llama", {"clip_qkv": 8.0}, "clip_qkv"),
        ("llama", {"logit_scale": 0.1}, "logit_scale"),
        ("llama", {"attention_dropout": 0.1}, "attention_dropout"),
        ("mistral", {"layer_types": ["full_attention"] * 4}, "layer_types"),
        ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("gemma2", {"hidden_activation": "gelu"}, "hidden_activation .*'gelu', limit 'gelu_pytorch_tanh'"),
        ("gemma2", {"sliding_window": None}, "integer sliding_window"),
        ("gemma2", {"layer_types": ["full_attention"] * 3}, "layer type for each of its 4 layers"),
        ("gemma2", {"layer_types": ["chunked_attention"] * 4}, "chunked_attention"),
        ("gemma3_text", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ("gemma3_text", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar must be positive"),
        ("qwen2", {"layer_types": ["sliding_attention"] * 4}, "integer sliding_window .*None"),
        ("qwen2", {"rope_scaling": YARN | {"truncate": False}}, "rope_scaling truncate"),
        ("qwen2", {"rope_scaling": YARN | {"mscale": 1.0}}, "rope_scaling mscale"),
        ("qwen2", {"rope_scaling": YARN | {"beta_fast": "x"}}, "needs a number for beta_fast"),
        ("qwen2", {"rope_scaling": {"type": "yarn", "factor": 4.0}}, "original_max_position_embeddings"),
        ("qwen2", {"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "rope_scaling type .*'dynamic'"),
        ("qwen2", {"rope_scaling": {"type": "longrope"}}, "rope_scaling type .*'longrope'"),
        ("qwen2", {"rope_parameters": {"full_attention": {}}}, "rope_parameters by type of layer"),
        (
            "gemma3_text",
            {"rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2.0}}},
            "rope scaling of sliding_attention layers",
        ),
    ],
)
def test_c81_what_is_not_computed_is_refused_by_name(
    model_type: str, changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(ModelError, match=named):
        read(model_type, **changes)


def test_c81_quantized_text_of_a_model_of_text_and_images_is_refused() -> None:
    with pytest.raises(ModelError, match="quantization_config"):
        ModelConfig.from_hf(GEMMA3_4B | {"quantization_config": {"bits": 4}})
    with pytest.raises(ModelError, match="needs a text_config"):
        ModelConfig.from_hf({"model_type": "gemma3"})


def test_a_model_that_no_program_would_load_is_not_written() -> None:
    config = load_config(GOLDEN / "mistral")
    with pytest.raises(ModelError, match="no model of type llama computes this"):
        dataclasses.replace(config, family="llama").to_hf()
