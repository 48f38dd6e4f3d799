"""GGUF models: what a model is, read from the metadata of its file as a Hugging Face configuration says it.

References:
    llama.cpp, `src/llama-model.cpp`, `llama_model::load_hparams`, for keys that a file leaves out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, NoReturn

import numpy as np

from forebay.errors import ModelError
from forebay.models.config import ModelConfig
from forebay.models.frequencies import inverse_frequencies
from forebay.models.gguf_file import GgufFile, read_tensor
from forebay.models.gguf_tensors import ROPE_FACTORS
from forebay.models.hf_config import ANOTHER_FAMILY, ANOTHER_MODEL

_ROWS: Final = "token_embd.weight"
# Keys of features that the forward pass does not compute, and the values that switch them off.
_REFUSED: Final[dict[str, tuple[object, ...]]] = {
    "attention.sliding_window": (0,),
    "attention.clamp_kqv": (0.0,),
    "attention.scale": (),
    "attn_logit_softcapping": (0.0,),
    "final_logit_softcapping": (0.0,),
    "expert_count": (0,),
    "expert_shared_count": (0,),
    "leading_dense_block_count": (0,),
    "rope.scaling.attn_factor": (1.0,),
    "rope.scaling.yarn_attn_factor": (1.0,),
    "rope.scaling.yarn_ext_factor": (1.0,),
    "rope.scaling.yarn_log_multiplier": (0.0,),
    "logit_scale": (),
    "residual_scale": (),
    "embedding_scale": (),
    "use_parallel_residual": (False,),
}


class Architecture(NamedTuple):
    """How an architecture of llama.cpp is said in a Hugging Face configuration.

    Attributes:
        model_type: Of Hugging Face.
        read: Which of the refused keys it reads.
        entry: Returns its own part of the configuration.
    """

    model_type: str
    read: tuple[str, ...] = ()
    entry: Callable[[_Keys], dict[str, Any]] = lambda keys: {}


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
    hidden_size = keys.integer("embedding_length")
    head_size = keys.integer("attention.key_length", hidden_size // max(num_heads, 1))
    for name in ("attention.value_length", "rope.dimension_count"):
        keys.require(name, head_size)
    vocab_size = _num_rows(file)
    keys.require("vocab_size", vocab_size)
    entry = {
        "model_type": keys.architecture.model_type,
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "intermediate_size": keys.integer("feed_forward_length"),
        "num_hidden_layers": keys.num_layers(len(file.tensors)),
        "num_attention_heads": num_heads,
        "num_key_value_heads": keys.integer("attention.head_count_kv", num_heads),
        "head_dim": head_size,
        "max_position_embeddings": keys.integer("context_length"),
        "rms_norm_eps": keys.number("attention.layer_norm_rms_epsilon"),
        "rope_theta": keys.number("rope.freq_base", 10_000.0),
        "rope_scaling": keys.rope_scaling(),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "bos_token_id": file.metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": file.metadata.get("tokenizer.ggml.eos_token_id"),
        **keys.architecture.entry(keys),
    }
    config = ModelConfig.from_hf(entry, num_real_tokens)
    if ROPE_FACTORS in file.tensors:
        _check_rope_factors(file, config)
    return config


def _num_rows(file: GgufFile) -> int:
    if _ROWS not in file.tensors:
        raise ModelError(f"{file.path} has no tensor {_ROWS}", remedy="Download the file again.")
    return file.tensors[_ROWS].shape[0]


def _check_rope_factors(file: GgufFile, config: ModelConfig) -> None:
    """Check that frequencies are divided as Llama 3 divides them, by the factors that a file lists."""
    listed = read_tensor(file, ROPE_FACTORS)
    exponents = np.arange(0, config.head_size, 2, dtype=np.float64) / config.head_size
    factors = config.rope_theta**-exponents / inverse_frequencies(config)
    if listed.shape != factors.shape or not np.allclose(listed, factors, rtol=1e-3):
        raise ModelError(
            f"unsupported tensor {ROPE_FACTORS} in {file.path}: it divides frequencies as Llama 3 does not",
            remedy="Use the model's Hugging Face directory, whose rope_scaling says how.",
        )


class _Keys:
    """The metadata of one architecture, by the part of the key after its name."""

    def __init__(self, file: GgufFile) -> None:
        self._file, self._path, self._metadata = file, file.path, file.metadata
        self._name = str(self._metadata.get("general.architecture"))
        if self._name not in ARCHITECTURES:
            raise ModelError(
                f"unsupported general.architecture in {file.path}",
                got=repr(self._metadata.get("general.architecture")),
                limit=", ".join(map(repr, ARCHITECTURES)),
                remedy=ANOTHER_FAMILY,
            )
        self.architecture = ARCHITECTURES[self._name]
        if self._name == "llama" and self.get("expert_count"):
            self.architecture = _MIXTRAL
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
            value = self.get(name)
            if value is not None and value not in harmless and name not in self.architecture.read:
                self._refuse(name, value, " or ".join(map(repr, harmless)) or "none")

    def rope_scaling(self) -> dict[str, Any] | None:
        """Return the stretch of the rotary wavelengths, as Hugging Face says it."""
        kind = self.get("rope.scaling.type") or "none"
        if kind == "none":
            return self._llama3() if ROPE_FACTORS in self._file.tensors else None
        if kind not in ("linear", "yarn"):
            self._refuse("rope.scaling.type", kind, "'none', 'linear' or 'yarn'")
        entry: dict[str, Any] = {"rope_type": kind, "factor": self.number("rope.scaling.factor")}
        if kind == "yarn":
            entry |= {
                "original_max_position_embeddings": self.integer("rope.scaling.original_context_length"),
                "beta_fast": self.number("rope.scaling.yarn_beta_fast", 32.0),
                "beta_slow": self.number("rope.scaling.yarn_beta_slow", 1.0),
            }
        return entry

    def integer(self, name: str, default: int | None = None) -> int:
        """Return a whole number."""
        value = self.get(name, default)
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
        value = self.get(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            self._refuse(name, value, "a number")
        return float(str(np.float32(value)))

    def require(self, name: str, expected: int) -> None:
        """Refuse a number that should be another one, if it is there at all."""
        if self.get(name, expected) != expected:
            self._refuse(name, self.get(name), expected)

    def get(self, name: str, default: Any = None) -> Any:
        """Return a value, or a default where the file leaves it out."""
        return self._metadata.get(f"{self._name}.{name}", default)

    def _llama3(self) -> dict[str, Any]:
        """Return Llama 3's stretch, whose factor is that of the slowest channel; the file says no more."""
        return {
            "rope_type": "llama3",
            "factor": float(read_tensor(self._file, ROPE_FACTORS).max()),
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": self.integer("rope.scaling.original_context_length", 8192),
        }

    def _refuse(self, name: str, got: object, limit: object) -> NoReturn:
        key = f"{self._name}.{name}"
        if got is None:
            raise ModelError(f"{self._path} has no {key}", remedy="Download the file again.")
        raise ModelError(
            f"unsupported {key} in {self._path}", got=_short(got), limit=limit, remedy=ANOTHER_MODEL
        )


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _experts(keys: _Keys) -> dict[str, Any]:
    entry = {"num_experts_per_tok": keys.integer("expert_used_count")}
    if keys.architecture is _MIXTRAL:
        return entry | {"num_local_experts": keys.integer("expert_count")}
    return entry | {
        "num_experts": keys.integer("expert_count"),
        "moe_intermediate_size": keys.integer("expert_feed_forward_length"),
        "norm_topk_prob": True,  # llama.cpp always does
    }


def _windows(keys: _Keys, num_layers_of_27b: int) -> dict[str, Any]:
    """Return what Gemma computes and its files do not say: llama.cpp knows the largest by its layers."""
    head_size = keys.integer("attention.key_length")
    if keys.integer("block_count") == num_layers_of_27b:
        head_size = keys.integer("embedding_length") // keys.integer("attention.head_count")
    return {
        "sliding_window": keys.integer("attention.sliding_window"),
        "query_pre_attn_scalar": head_size,
    }


def _gemma2(keys: _Keys) -> dict[str, Any]:
    return {
        **_windows(keys, 46),
        "attn_logit_softcapping": keys.number("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": keys.number("final_logit_softcapping", 30.0),
    }


def _gemma3(keys: _Keys) -> dict[str, Any]:
    cap = keys.number("final_logit_softcapping", 0.0)
    return {
        **_windows(keys, 62),
        "sliding_window_pattern": keys.integer("attention.sliding_window_pattern", 6),
        "rope_local_base_freq": keys.number("rope.freq_base_swa", 10_000.0),
        "final_logit_softcapping": cap or None,
    }


_OF_EXPERTS: Final = ("expert_count",)
_MIXTRAL: Final = Architecture("mixtral", _OF_EXPERTS, _experts)
ARCHITECTURES: Final = {
    "llama": Architecture("llama"),
    "qwen2": Architecture("qwen2"),
    "qwen3": Architecture("qwen3"),
    "qwen3moe": Architecture("qwen3_moe", _OF_EXPERTS, _experts),
    "gemma2": Architecture(
        "gemma2",
        ("attention.sliding_window", "attn_logit_softcapping", "final_logit_softcapping"),
        _gemma2,
    ),
    "gemma3": Architecture("gemma3_text", ("attention.sliding_window", "final_logit_softcapping"), _gemma3),
}
