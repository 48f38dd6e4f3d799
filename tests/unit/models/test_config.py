from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from forebay.errors import ModelError
from forebay.models.config import ModelConfig, load_config
from forebay.models.rope_scaling import RopeScaling
from tests.unit.models import tiny

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}


def hf(**changes: Any) -> dict[str, Any]:
    return tiny.CONFIG.to_hf() | changes


def test_round_trip() -> None:
    scaled = ModelConfig.from_hf(hf(rope_scaling=LLAMA3, eos_token_id=[2, 5], tie_word_embeddings=False))
    assert ModelConfig.from_hf(tiny.CONFIG.to_hf()) == tiny.CONFIG
    assert ModelConfig.from_hf(json.loads(json.dumps(scaled.to_hf()))) == scaled
    assert scaled.rope_scaling == RopeScaling("llama3", 8.0, 1.0, 4.0, 16)
    assert scaled.eos_ids == (2, 5)


def test_what_transformers_assumes_is_filled_in() -> None:
    entry = {
        "model_type": "llama",
        "vocab_size": 32,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
    }
    config = ModelConfig.from_hf(entry)
    assert (config.num_kv_heads, config.head_size, config.rms_norm_eps) == (4, 4, 1e-6)
    assert (config.rope_theta, config.max_position, config.tie_word_embeddings) == (10_000.0, 2048, False)
    assert (config.num_real_tokens, config.eos_ids) == (32, ())


def test_rope_parameters_of_newer_files_are_read() -> None:
    entry = hf(rope_parameters=LLAMA3 | {"rope_theta": 5e5})
    del entry["rope_theta"], entry["rope_scaling"]
    config = ModelConfig.from_hf(entry)
    assert config.rope_theta == 5e5
    assert config.rope_scaling is not None
    assert config.rope_scaling.original_max_position == 16


def test_older_linear_scaling_is_read() -> None:
    assert ModelConfig.from_hf(
        hf(rope_scaling={"type": "linear", "factor": 4.0})
    ).rope_scaling == RopeScaling("linear", 4.0)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model_type": "phi3"}, "model_type (got 'phi3'"),
        ({"attention_bias": True}, "attention_bias (got True"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"hidden_act": "gelu"}, "hidden_act (got 'gelu'"),
        ({"sliding_window": 4096}, "sliding_window (got 4096"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rope_scaling type (got 'dynamic'"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 2.0}}, "low_freq_factor, high_freq_factor"),
        ({"num_hidden_layers": "two"}, "integer num_hidden_layers (got 'two'"),
        ({"num_key_value_heads": 3}, "num_heads 4 is not a multiple of num_kv_heads (got 3"),
        ({"head_dim": 5}, "head_size must be even"),
        ({"hidden_size": 0}, "hidden_size must be positive"),
    ],
)
def test_c81_what_is_not_computed_is_refused_by_name(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelError) as caught:
        ModelConfig.from_hf(hf(**changes))
    assert named in str(caught.value)


def test_a_tokenizer_larger_than_the_model_is_refused() -> None:
    with pytest.raises(ModelError, match=r"more ids .* \(got 41, limit 40\)"):
        ModelConfig.from_hf(hf(), num_real_tokens=41)


def test_a_missing_directory_and_a_damaged_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"model directory not found: .*nowhere"):
        load_config(tmp_path / "nowhere")
    with pytest.raises(ModelError, match="model configuration not found: "):
        load_config(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type":')
    with pytest.raises(ModelError, match="is not valid JSON"):
        load_config(tmp_path)


def test_number_of_parameters() -> None:
    config = load_config(Path(__file__).parents[2] / "golden" / "models" / "tiny-tied")
    assert config.num_parameters == 5280
