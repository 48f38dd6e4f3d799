"""GGUF tensors under their Hugging Face names and in Hugging Face order, by architecture.

llama.cpp's converter changes some of them, which is undone here: its Llama rotates neighboring channels where
Hugging Face rotates channel i with channel i + K/2, so the rows of query and key projections come in another
order; the norms of its Gemma have 1 added; and it stacks the experts of a block.

References:
    llama.cpp, `convert_hf_to_gguf.py`: `LlamaModel.permute`, `Gemma3Model.norm_shift`, `Qwen2MoeModel`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import numpy as np

from forebay.models.config import ModelConfig
from forebay.models.gguf_file import GgufFile, check_gguf, read_tensors
from forebay.models.hf import check_shapes


class TensorRules(NamedTuple):
    """How an architecture's tensors differ from those of Hugging Face.

    Attributes:
        names: Names of a block's tensors, beyond those that all architectures share.
        is_permuted: Whether the rows of query and key projections come in another order.
        added_to_norms: What its norms have more.
    """

    names: Mapping[str, str] = {}
    is_permuted: bool = False
    added_to_norms: float = 0.0


_NAMES: Final = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_HEAD_NORMS: Final = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_GEMMA: Final = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
# By the `model_type` of Hugging Face.
TENSOR_RULES: Final = {
    "llama": TensorRules(is_permuted=True),
    "mixtral": TensorRules(
        {
            "ffn_gate_inp": "block_sparse_moe.gate",
            "ffn_gate_exps": "block_sparse_moe.experts.{expert}.w1",
            "ffn_down_exps": "block_sparse_moe.experts.{expert}.w2",
            "ffn_up_exps": "block_sparse_moe.experts.{expert}.w3",
        },
        is_permuted=True,
    ),
    "qwen2": TensorRules(),
    "qwen3": TensorRules(_HEAD_NORMS),
    "qwen3_moe": TensorRules(
        {
            **_HEAD_NORMS,
            "ffn_gate_inp": "mlp.gate",
            "ffn_gate_exps": "mlp.experts.{expert}.gate_proj",
            "ffn_down_exps": "mlp.experts.{expert}.down_proj",
            "ffn_up_exps": "mlp.experts.{expert}.up_proj",
        }
    ),
    "gemma2": TensorRules(_GEMMA, added_to_norms=1.0),
    "gemma3_text": TensorRules({**_GEMMA, **_HEAD_NORMS}, added_to_norms=1.0),
}
ROPE_FACTORS: Final = "rope_freqs.weight"  # what llama3 divides frequencies by; read with the configuration
_BLOCK: Final = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


def check_model_file(file: GgufFile, config: ModelConfig) -> None:
    """Check that a file holds the tensors of a model, whole; none is read.

    Raises:
        ModelError: The file is cut short, or tensors are missing, unexpected or of another shape.
        ConfigError: Tensors are quantized and the `gguf` package is not installed.
    """
    shapes = {
        hf: tensor.shape if index is None else tensor.shape[1:]
        for name, tensor in file.tensors.items()
        if name != ROPE_FACTORS
        for index, hf in _places(name, config)
    }
    check_shapes(shapes, config)
    check_gguf(file)


def read_hf_tensors(file: GgufFile, config: ModelConfig) -> dict[str, np.ndarray]:
    """Return the file's tensors, float32, under their Hugging Face names and in Hugging Face order.

    Args:
        file: The header.
        config: The model.

    Raises:
        ModelError: The tensors are not those of the model, or the file is cut short.
        ConfigError: Tensors are quantized and the `gguf` package is not installed.
    """
    check_model_file(file, config)
    tensors: dict[str, np.ndarray] = {}
    for name, tensor in read_tensors(file).items():
        if name != ROPE_FACTORS:
            restored = _restored(name, tensor, config)
            tensors |= {
                hf: restored if index is None else restored[index] for index, hf in _places(name, config)
            }
    return tensors


def unpermute(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """Return the rows of a query or key projection in Hugging Face order.

    Row 2 i + j of a head (i < K/2, j < 2) becomes row i + j K/2.

    Args:
        rows: [H * K, D].
        num_heads: H.

    Example:
        >>> unpermute(np.arange(8)[:, None], 2).ravel().tolist()
        [0, 2, 1, 3, 4, 6, 5, 7]
    """
    return rows.reshape(num_heads, -1, 2, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def hf_name(name: str, model_type: str = "llama") -> str:
    """Return the Hugging Face name of a GGUF tensor; a name that has none is returned as it is.

    Example:
        >>> hf_name("blk.3.attn_q.weight")
        'model.layers.3.self_attn.q_proj.weight'
        >>> hf_name("blk.0.ffn_norm.weight", "gemma2")
        'model.layers.0.pre_feedforward_layernorm.weight'
    """
    names = {**_NAMES, **TENSOR_RULES[model_type].names}
    match = _BLOCK.fullmatch(name)
    if match and match[2] in names:
        return f"model.layers.{int(match[1])}.{names[match[2]]}.{match[3]}"
    base, _, suffix = name.rpartition(".")
    return f"{names[base]}.{suffix}" if base in names else name


def _places(name: str, config: ModelConfig) -> Iterator[tuple[int | None, str]]:
    """Yield which part of a GGUF tensor each Hugging Face tensor is; None: all of it."""
    hf = hf_name(name, config.family)
    if "{expert}" not in hf or config.experts is None:
        yield None, hf
        return
    for expert in range(config.experts.number):
        yield expert, hf.format(expert=expert)


def _restored(name: str, tensor: np.ndarray, config: ModelConfig) -> np.ndarray:
    rules = TENSOR_RULES[config.family]
    if rules.added_to_norms and name.endswith("norm.weight"):
        return tensor - np.float32(rules.added_to_norms)
    match = _BLOCK.fullmatch(name)
    num_heads = {"attn_q": config.num_heads, "attn_k": config.num_kv_heads}
    if rules.is_permuted and match and match[2] in num_heads:
        return unpermute(tensor, num_heads[match[2]])
    return tensor
