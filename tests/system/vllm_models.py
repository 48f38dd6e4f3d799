"""Tiny random checkpoints of every family, of sizes that vLLM's CPU kernels take: heads of 32.

Windows are shorter than the prompts, and every weight is drawn so that leaving it out would show.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from forebay.models.config import ModelConfig
from forebay.models.hf import from_hf_tensors, hf_shapes
from forebay.models.layout import place
from forebay.models.lora_layout import adapter_shape, adapters_of
from forebay.models.params import Params
from forebay.models.settings import LoraSettings

_SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-3,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
_SILU = {"hidden_act": "silu"}
_GEMMA = {
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 12,
    "sliding_window": 7,
    "tie_word_embeddings": True,
}
_WINDOWS = {"use_sliding_window": True, "sliding_window": 7}
# vLLM knows no head_dim of Qwen2: its heads are as wide as the residual stream divided by their number.
_QWEN2 = {"model_type": "qwen2", **_SILU, "hidden_size": 128}
_QWEN_MOE = {
    "model_type": "qwen3_moe",
    **_SILU,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
}
ENTRIES: dict[str, dict[str, Any]] = {
    "llama, rope of Llama 3": {"model_type": "llama", **_SILU, "rope_scaling": _LLAMA3},
    "llama, tied as SmolLM2": {"model_type": "llama", **_SILU, "tie_word_embeddings": True},
    "llama, linear rope": {
        "model_type": "llama",
        **_SILU,
        "rope_scaling": {"rope_type": "linear", "factor": 2.0},
    },
    "mistral, window": {"model_type": "mistral", **_SILU, "sliding_window": 7},
    "mistral, no window": {"model_type": "mistral", **_SILU, "sliding_window": None},
    "qwen2, YaRN, tied": {**_QWEN2, "rope_scaling": _YARN, "tie_word_embeddings": True},
    "qwen2, YaRN's factor given": {**_QWEN2, "rope_scaling": _YARN | {"attention_factor": 1.5}},
    "qwen2, window in every block": {**_QWEN2, **_WINDOWS, "max_window_layers": 0},
    "qwen3": {"model_type": "qwen3", **_SILU},
    "qwen3, window in every block": {"model_type": "qwen3", **_SILU, **_WINDOWS, "max_window_layers": 0},
    "qwen3_moe": {**_QWEN_MOE, "norm_topk_prob": True},
    "qwen3_moe, weights of experts as they are, window": {**_QWEN_MOE, **_WINDOWS, "norm_topk_prob": False},
    "mixtral, window": {
        "model_type": "mixtral",
        **_SILU,
        "sliding_window": 7,
        "num_local_experts": 6,
        "num_experts_per_tok": 2,
    },
    "gemma2": {
        "model_type": "gemma2",
        **_GEMMA,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 3.0,
    },
    "gemma3": {
        "model_type": "gemma3_text",
        **_GEMMA,
        "num_hidden_layers": 8,
        "sliding_window_pattern": 6,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    },
}
# Ids that no token has, as a new model has them whose vocabulary is not a multiple of 16.
PADDED = "llama, padded vocabulary"
ENTRIES[PADDED] = {"model_type": "llama", **_SILU, "num_real_tokens": 51}
# Which vLLM cannot serve, and what it says.
REFUSED = {
    f"{family}, window in the upper blocks": {
        "model_type": family,
        **_SILU,
        **_WINDOWS,
        "max_window_layers": 1,
    }
    for family in ("qwen2", "qwen3")
}
REFUSAL = "Sliding window for some but all layers is not supported"


def config_of(name: str) -> ModelConfig:
    """Return the configuration of one of `ENTRIES` or `REFUSED`."""
    return ModelConfig.from_hf(_SIZES | (ENTRIES | REFUSED)[name])


def draw(config: ModelConfig, seed: int = 0) -> Params:
    """Return a random model, float32, in which every tensor matters."""
    random = np.random.default_rng(seed)
    tensors = {}
    for name, shape in hf_shapes(config).items():
        noise = random.standard_normal(shape).astype(np.float32)
        if "norm" in name:
            tensors[name] = 0.3 * noise + np.float32(not config.unit_offset_norms)
        elif name.endswith("bias"):
            tensors[name] = 0.5 * noise
        else:
            tensors[name] = 1.2 * noise / np.sqrt(np.float32(shape[-1]))
    return from_hf_tensors(tensors, config)


def draw_adapters(config: ModelConfig, lora: LoraSettings, seed: int = 1) -> Params:
    """Return random adapters, both sides of each."""
    random = np.random.default_rng(seed)
    tree: Params = {}
    for row in adapters_of(lora):
        shape = adapter_shape(row, config, lora)
        inputs = np.prod(shape[1 : 1 + row.num_input_axes])
        place(tree, row, (random.standard_normal(shape) / np.sqrt(inputs)).astype(np.float32))
    return tree
