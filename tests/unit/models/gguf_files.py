"""Tiny GGUF files, written by the gguf package in the way llama.cpp's converter does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np

from forebay.models.checkpoint_io import read_tensors
from forebay.models.config import ModelConfig, load_config
from forebay.models.frequencies import inverse_frequencies

GOLDEN = Path(__file__).parents[2] / "golden" / "models"
TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message.role }} {{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant {% endif %}"
)
TOKENS = [
    *("<|pad|>", "<|start|>", "<|end|>", *"abcdefghijklmnopqrstuvwxyz"),
    *("Ġ", "1", "2", "12", "he", "ll", "hell", "<|tool|>", "[PAD37]", "[PAD38]", "[PAD39]"),
]
KINDS = [*[3] * 3, *[1] * 33, 4, *[5] * 3]
MERGES = ["1 2", "h e", "l l", "he ll"]
_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
KEYS: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.context_length": 64,
    "llama.embedding_length": 16,
    "llama.feed_forward_length": 32,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.dimension_count": 4,
    "llama.rope.freq_base": 10_000.0,
    "llama.vocab_size": 40,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": KINDS,
    "tokenizer.ggml.merges": MERGES,
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.padding_token_id": 0,
    "tokenizer.chat_template": TEMPLATE,
}


def tensors_of(model: str) -> dict[str, np.ndarray]:
    """Return the tensors of a tiny golden model as a GGUF file has them."""
    return {_name(name): _permuted(name, tensor) for name, tensor in read_tensors(GOLDEN / model).items()}


def write(
    path: Path,
    tensors: dict[str, np.ndarray],
    kinds: dict[str, gguf.GGMLQuantizationType] | None = None,
    **changes: Any,
) -> Path:
    """Write a file; a change to None leaves the key out, and double underscores stand for points."""
    keys = KEYS | {name.replace("__", "."): value for name, value in changes.items()}
    writer = gguf.GGUFWriter(path, "llama")
    writer.kv_data[0].clear()
    for key, value in keys.items():
        _add(writer, key, value)
    for name, tensor in tensors.items():
        kind = (kinds or {}).get(name, gguf.GGMLQuantizationType.F32)
        writer.add_tensor(name, gguf.quantize(np.asarray(tensor, np.float32), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif value is not None:
        writer.add_uint32(key, value)


def _name(name: str) -> str:
    base, _, suffix = name.rpartition(".")
    if base.startswith("model.layers."):
        _, _, layer, part = base.split(".", 3)
        return f"blk.{layer}.{_NAMES[part]}.{suffix}"
    return f"{_NAMES[base]}.{suffix}"


def _permuted(name: str, tensor: np.ndarray) -> np.ndarray:
    """Order the rows of a projection as llama.cpp's converter does, in its words."""
    num_heads = 4 if "q_proj" in name else 2 if "k_proj" in name else 0
    if not num_heads:
        return tensor
    shape = (num_heads, 2, tensor.shape[0] // num_heads // 2, *tensor.shape[1:])
    return tensor.reshape(shape).swapaxes(1, 2).reshape(tensor.shape)


_ARCHITECTURES = {"mixtral": "llama", "qwen3_moe": "qwen3moe", "gemma3_text": "gemma3"}


def write_family(path: Path, family: str) -> Path:
    """Write a golden checkpoint of a family as llama.cpp's converter does, by the names that gguf knows."""
    config = load_config(GOLDEN / family)
    name = _ARCHITECTURES.get(family, family)
    kind = next(kind for kind, other in gguf.MODEL_ARCH_NAMES.items() if other == name)
    writer = gguf.GGUFWriter(path, name)
    _add_sizes(writer, config)
    names = gguf.get_tensor_name_map(kind, config.num_layers)
    tensors = read_tensors(GOLDEN / family)
    if config.experts is not None:
        tensors = _merged(tensors, config.experts.number)
    for hf_name, tensor in tensors.items():
        value = tensor.astype(np.float32)
        if "gemma" in family and hf_name.endswith("norm.weight"):
            value = value + 1
        if name == "llama":
            value = _permuted(hf_name, value)
        writer.add_tensor(names.get_name(hf_name, try_suffixes=(".weight", ".bias")), value)
    if config.rope_scaling is not None and config.rope_scaling.kind == "llama3":
        plain = config.rope_theta ** -(np.arange(0, config.head_size, 2) / config.head_size)
        writer.add_tensor("rope_freqs.weight", (plain / inverse_frequencies(config)).astype(np.float32))
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        write()
    writer.close()
    return path


def _add_sizes(writer: gguf.GGUFWriter, config: ModelConfig) -> None:
    writer.add_context_length(config.max_position)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_size)
    writer.add_value_length(config.head_size)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_vocab_size(config.vocab_size)
    writer.add_bos_token_id(config.bos_id)
    writer.add_eos_token_id(config.eos_ids[0])
    scaling = config.rope_scaling
    if scaling is not None and scaling.kind == "llama3":
        writer.add_rope_scaling_orig_ctx_len(scaling.original_max_position)
    elif scaling is not None:
        writer.add_rope_scaling_type(gguf.RopeScalingType(scaling.kind))
        writer.add_rope_scaling_factor(scaling.factor)
        writer.add_rope_scaling_orig_ctx_len(scaling.original_max_position)
    if config.unit_offset_norms:
        writer.add_sliding_window(next(kind.window for kind in config.pattern if kind.window))
    if config.attention_softcap is not None:
        writer.add_attn_logit_softcapping(config.attention_softcap)
        writer.add_final_logit_softcapping(config.final_softcap)
    if config.experts is not None:
        writer.add_expert_count(config.experts.number)
        writer.add_expert_used_count(config.experts.per_token)
        writer.add_expert_feed_forward_length(config.experts.width)


def _merged(tensors: dict[str, np.ndarray], num_experts: int) -> dict[str, np.ndarray]:
    """Stack the experts of each block under the name that gguf knows them by."""
    merged = {name: tensor for name, tensor in tensors.items() if ".experts." not in name}
    for name in (name for name in tensors if ".experts.0." in name):
        every = [tensors[name.replace(".experts.0.", f".experts.{number}.")] for number in range(num_experts)]
        merged[name.replace(".experts.0.", ".experts.")] = np.stack(every)
    return merged
