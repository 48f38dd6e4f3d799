"""Mixtures of experts read from `config.json` as published, and what is refused of them by name."""

from __future__ import annotations

from typing import Any

import pytest

from forebay.errors import ModelError
from forebay.models.config import ModelConfig
from forebay.models.experts import Experts
from forebay.models.hf import hf_shapes

MIXTRAL_8X7B = {
    "model_type": "mixtral",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "num_attention_heads": 32,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "output_router_logits": False,
    "rms_norm_eps": 1e-05,
    "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.02,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "vocab_size": 32000,
}
QWEN3_30B_A3B = {
    "model_type": "qwen3_moe",
    "attention_bias": False,
    "bos_token_id": 151643,
    "decoder_sparse_step": 1,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "max_position_embeddings": 40960,
    "max_window_layers": 48,
    "mlp_only_layers": [],
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "output_router_logits": False,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.001,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 151936,
}


@pytest.mark.parametrize(
    ("entry", "experts", "num_parameters"),
    [
        (MIXTRAL_8X7B, Experts(8, 2, 14336, True, 0.02), 46_702_792_704),
        (QWEN3_30B_A3B, Experts(128, 8, 768, True, 0.001), 30_532_122_624),
    ],
    ids=["Mixtral-8x7B", "Qwen3-30B-A3B"],
)
def test_published_models_are_read_whole(
    entry: dict[str, Any], experts: Experts, num_parameters: int
) -> None:
    config = ModelConfig.from_hf(entry)
    assert config.experts == experts
    assert config.num_parameters == num_parameters
    assert ModelConfig.from_hf(config.to_hf()) == config


def test_what_a_configuration_leaves_out_is_what_transformers_assumes() -> None:
    kept = ("model_type", "vocab_size", "hidden_size", "num_attention_heads", "num_hidden_layers")
    sizes = {"intermediate_size": 64}
    mixtral = ModelConfig.from_hf({key: MIXTRAL_8X7B[key] for key in kept} | sizes)
    assert mixtral.experts == Experts(8, 2, 64, True, 0.001)
    assert (mixtral.rope_theta, mixtral.rms_norm_eps) == (1e6, 1e-5)
    qwen = ModelConfig.from_hf({key: QWEN3_30B_A3B[key] for key in kept} | sizes)
    assert qwen.experts == Experts(128, 8, 768, False, 0.001)


def test_the_number_of_experts_is_read_under_either_of_its_names() -> None:
    renamed = {key: value for key, value in QWEN3_30B_A3B.items() if key != "num_experts"}
    config = ModelConfig.from_hf(renamed | {"num_local_experts": 16})
    assert config.experts is not None and config.experts.number == 16
    with pytest.raises(ModelError, match="num_experts and num_local_experts"):
        ModelConfig.from_hf(QWEN3_30B_A3B | {"num_local_experts": 16})


@pytest.mark.parametrize(
    ("entry", "changed", "named"),
    [
        (QWEN3_30B_A3B, {"mlp_only_layers": [0]}, "mlp_only_layers"),
        (QWEN3_30B_A3B, {"decoder_sparse_step": 2}, "decoder_sparse_step"),
        (QWEN3_30B_A3B, {"shared_expert_intermediate_size": 512}, "shared_expert_intermediate_size"),
        (QWEN3_30B_A3B, {"n_shared_experts": 1}, "n_shared_experts"),
        (QWEN3_30B_A3B, {"num_experts_per_tok": 129}, "more experts than there are"),
        (QWEN3_30B_A3B, {"model_type": "qwen2_moe"}, "qwen2_moe"),
        (QWEN3_30B_A3B, {"model_type": "deepseek_v3"}, "deepseek_v3"),
        (MIXTRAL_8X7B, {"router_jitter_noise": 0.1}, "router_jitter_noise"),
        (MIXTRAL_8X7B, {"model_type": "mistral"}, "num_local_experts"),
        (MIXTRAL_8X7B, {"num_local_experts": 0}, "number must be positive"),
    ],
    ids=lambda value: str(value) if isinstance(value, str) else "",
)
def test_c81_what_is_not_computed_is_refused_by_name(
    entry: dict[str, Any], changed: dict[str, Any], named: str
) -> None:
    with pytest.raises(ModelError, match=named):
        ModelConfig.from_hf(entry | changed)


def test_files_name_every_expert_by_itself() -> None:
    shapes = hf_shapes(ModelConfig.from_hf(MIXTRAL_8X7B))
    assert shapes["model.layers.31.block_sparse_moe.gate.weight"] == (8, 4096)
    assert shapes["model.layers.31.block_sparse_moe.experts.7.w1.weight"] == (14336, 4096)
    assert shapes["model.layers.31.block_sparse_moe.experts.7.w2.weight"] == (4096, 14336)
    assert "model.layers.0.mlp.gate_proj.weight" not in shapes
    shapes = hf_shapes(ModelConfig.from_hf(QWEN3_30B_A3B))
    assert shapes["model.layers.47.mlp.experts.127.down_proj.weight"] == (2048, 768)
    assert shapes["model.layers.0.mlp.gate.weight"] == (128, 2048)
