"""GGUF models: configuration and tensors of a Llama-family decoder under their Hugging Face names.

llama.cpp rotates neighboring channels where Hugging Face rotates channel i with channel i + K/2, so the rows
of query and key projections come in another order, which is undone here.
"""

from __future__ import annotations

import re
from typing import Any, Final, NoReturn

import numpy as np

from forebay.errors import ModelError
from forebay.models.config import ANOTHER_FAMILY, ModelConfig, RopeScaling
from forebay.models.gguf_file import GgufFile, check_gguf, read_tensors
from forebay.models.hf import check_shapes

ARCHITECTURE: Final = "llama"
_ANOTHER_MODEL: Final = (
    "Choose a model without it: computing it as if it were not there would give wrong numbers."
)
_ROWS: Final = "token_embd.weight"
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
_BLOCK: Final = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
# Keys of features that the forward pass does not compute, and the values that switch them off.
_REFUSED: Final = {
    "expert_count": (0,),
    "attention.sliding_window": (0,),
    "attention.clamp_kqv": (0.0,),
    "attention.scale": (),
    "rope.scaling.attn_factor": (1.0,),
    "logit_scale": (),
    "residual_scale": (),
    "embedding_scale": (),
    "use_parallel_residual": (False,),
}


def gguf_config(file: GgufFile, num_real_tokens: int | None = None) -> ModelConfig:
    """Read what a model is from the metadata of its file.

    Args:
        file: The header.
        num_real_tokens: Size of the tokenizer's vocabulary; by default the rows of the embedding.

    Raises:
        ModelError: Another architecture, a missing or malformed key, or a feature that is not supported; the
            message names the key.
    """
    keys = _Keys(file)
    keys.refuse_unsupported()
    num_heads = keys.integer("attention.head_count")
    num_kv_heads = keys.integer("attention.head_count_kv", num_heads)
    hidden_size = keys.integer("embedding_length")
    head_size = keys.integer("attention.key_length", hidden_size // max(num_heads, 1))
    for name in ("attention.value_length", "rope.dimension_count"):
        keys.require(name, head_size)
    vocab_size = _num_rows(file)
    keys.require("vocab_size", vocab_size)
    eos_id = file.metadata.get("tokenizer.ggml.eos_token_id")
    return ModelConfig(
        vocab_size=vocab_size,
        num_real_tokens=num_real_tokens or vocab_size,
        hidden_size=hidden_size,
        intermediate_size=keys.integer("feed_forward_length"),
        num_layers=keys.num_layers(len(file.tensors)),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_size=head_size,
        max_position=keys.integer("context_length"),
        rms_norm_eps=keys.number("attention.layer_norm_rms_epsilon"),
        rope_theta=keys.number("rope.freq_base", 10_000.0),
        rope_scaling=keys.rope_scaling(),
        tie_word_embeddings="output.weight" not in file.tensors,
        bos_id=file.metadata.get("tokenizer.ggml.bos_token_id"),
        eos_ids=() if eos_id is None else (eos_id,),
    )


def check_model_file(file: GgufFile, config: ModelConfig) -> None:
    """Check that a file holds the tensors of a model, whole; none is read.

    Raises:
        ModelError: The file is cut short, or tensors are missing, unexpected or of another shape.
        ConfigError: Tensors are quantized and the `gguf` package is not installed.
    """
    check_shapes({hf_name(name): tensor.shape for name, tensor in file.tensors.items()}, config)
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
    num_heads = {"attn_q": config.num_heads, "attn_k": config.num_kv_heads}
    tensors: dict[str, np.ndarray] = {}
    for name, tensor in read_tensors(file).items():
        match = _BLOCK.fullmatch(name)
        heads = num_heads.get(match[2]) if match else None
        tensors[hf_name(name)] = tensor if heads is None else unpermute(tensor, heads)
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


def hf_name(name: str) -> str:
    """Return the Hugging Face name of a GGUF tensor; a name that has none is returned as it is.

    Example:
        >>> hf_name("blk.3.attn_q.weight")
        'model.layers.3.self_attn.q_proj.weight'
    """
    match = _BLOCK.fullmatch(name)
    if match and match[2] in _NAMES:
        return f"model.layers.{int(match[1])}.{_NAMES[match[2]]}.{match[3]}"
    base, _, suffix = name.rpartition(".")
    return f"{_NAMES[base]}.{suffix}" if base in _NAMES else name


def _num_rows(file: GgufFile) -> int:
    if _ROWS not in file.tensors:
        raise ModelError(f"{file.path} has no tensor {_ROWS}", remedy="Download the file again.")
    return file.tensors[_ROWS].shape[0]


class _Keys:
    """The metadata of one architecture, by the part of the key after its name."""

    def __init__(self, file: GgufFile) -> None:
        self._path, self._metadata = file.path, file.metadata
        if self._metadata.get("general.architecture") != ARCHITECTURE:
            raise ModelError(
                f"unsupported general.architecture in {file.path}",
                got=repr(self._metadata.get("general.architecture")),
                limit=repr(ARCHITECTURE),
                remedy=ANOTHER_FAMILY,
            )
        if "rope_freqs.weight" in file.tensors:
            raise ModelError(
                f"unsupported tensor rope_freqs.weight in {file.path}: frequencies stretched one by one",
                remedy="Use the model's Hugging Face directory, whose rope_scaling says how.",
            )
        self.require_whole()

    def require_whole(self) -> None:
        """Refuse one part of a model that was split over several files."""
        if self._metadata.get("split.count", 1) > 1:
            raise ModelError(
                f"{self._path} is one of several files of a model",
                got=f"split.count={self._metadata['split.count']}",
                remedy="Merge them with llama-gguf-split --merge.",
            )

    def refuse_unsupported(self) -> None:
        """Refuse features that the forward pass does not compute."""
        for name, harmless in _REFUSED.items():
            value = self._get(name)
            if value is not None and value not in harmless:
                self._refuse(name, value, " or ".join(map(repr, harmless)) or "none")

    def rope_scaling(self) -> RopeScaling | None:
        """Return the stretch of the rotary wavelengths."""
        kind = self._get("rope.scaling.type") or "none"
        if kind == "none":
            return None
        if kind != "linear":
            self._refuse("rope.scaling.type", kind, "'none' or 'linear'")
        return RopeScaling("linear", self.number("rope.scaling.factor"))

    def integer(self, name: str, default: int | None = None) -> int:
        """Return a whole number."""
        value = self._get(name, default)
        if not isinstance(value, int) or isinstance(value, bool):
            # A list says that blocks differ from one another.
            self._refuse(name, value, "one integer")
        return value

    def num_layers(self, num_tensors: int) -> int:
        """Return the number of blocks, each of which has tensors."""
        value = self.integer("block_count")
        if value > num_tensors:
            self._refuse("block_count", value, f"{num_tensors} tensors")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """Return the shortest decimal that is the float32 in the file, as a `config.json` spells it."""
        value = self._get(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            self._refuse(name, value, "a number")
        return float(str(np.float32(value)))

    def require(self, name: str, expected: int) -> None:
        """Refuse a number that should be another one, if it is there at all."""
        if self._get(name, expected) != expected:
            self._refuse(name, self._get(name), expected)

    def _get(self, name: str, default: Any = None) -> Any:
        return self._metadata.get(f"{ARCHITECTURE}.{name}", default)

    def _refuse(self, name: str, got: object, limit: object) -> NoReturn:
        key = f"{ARCHITECTURE}.{name}"
        if got is None:
            raise ModelError(f"{self._path} has no {key}", remedy="Download the file again.")
        raise ModelError(
            f"unsupported {key} in {self._path}", got=_short(got), limit=limit, remedy=_ANOTHER_MODEL
        )


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
