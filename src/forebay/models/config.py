"""What a model is: the sizes and constants of a Llama-family decoder, read from a Hugging Face `config.json`.

A feature that the forward pass does not compute is refused by name here, because ignoring one (a rope
scaling, a bias) gives wrong numbers without an error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from forebay.errors import ModelError

CONFIG_FILE = "config.json"
ANOTHER_FAMILY = "Choose a model of the Llama family: another architecture computes something else."
_ANOTHER_MODEL = "Choose a model without it: computing it as if it were not there would give wrong numbers."
_REQUIRED_VALUES: dict[str, tuple[object, ...]] = {
    "attention_bias": (False, None),
    "mlp_bias": (False, None),
    "hidden_act": ("silu", None),
    "sliding_window": (None,),
    "pretraining_tp": (1, None),
    "quantization_config": (None,),
}


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are stretched beyond the context a model was pretrained on.

    Args:
        kind: `linear` divides every frequency by `factor`; `llama3` divides only the slow ones.
        factor: The stretch, >= 1.
        low_freq_factor: `llama3`: wavelengths above `original_max_position / low_freq_factor` are divided
            whole.
        high_freq_factor: `llama3`: wavelengths below `original_max_position / high_freq_factor` are kept.
        original_max_position: `llama3`: the context of the pretraining, tokens.
    """

    kind: Literal["linear", "llama3"]
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192

    def to_hf(self) -> dict[str, Any]:
        """Return the `rope_scaling` entry of a Hugging Face configuration."""
        entry: dict[str, Any] = {"rope_type": self.kind, "factor": self.factor}
        if self.kind == "llama3":
            entry |= {
                "low_freq_factor": self.low_freq_factor,
                "high_freq_factor": self.high_freq_factor,
                "original_max_position_embeddings": self.original_max_position,
            }
        return entry


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of a decoder-only transformer with grouped-query attention, rotary positions and SwiGLU.

    Args:
        vocab_size: Rows of the embedding and columns of the logits, padding rows included.
        num_real_tokens: Ids the tokenizer knows; ids from here to `vocab_size` are padding and have
            probability 0 in the sampler and in the learner.
        hidden_size: Width of the residual stream.
        intermediate_size: Width of the feed-forward layer.
        num_layers: Number of blocks.
        num_heads: Query heads.
        num_kv_heads: Key and value heads; each serves `num_heads / num_kv_heads` query heads.
        head_size: Width of one head, even.
        max_position: Longest sequence, tokens.
        rms_norm_eps: Added to the mean square in every norm.
        rope_theta: Base of the rotary wavelengths.
        rope_scaling: Stretch of the rotary wavelengths, or None.
        tie_word_embeddings: Whether the output head is the embedding.
        bos_id: Id that starts a text, or None.
        eos_ids: Ids that end a turn.

    Raises:
        ModelError: Sizes that contradict one another.
    """

    vocab_size: int
    num_real_tokens: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    max_position: int
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    tie_word_embeddings: bool = True
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in _SIZES:
            if getattr(self, name) < 1:
                raise ModelError(f"model {name} must be positive", got=getattr(self, name))
        if self.num_real_tokens > self.vocab_size:
            raise ModelError(
                "the tokenizer has more ids than the model has embedding rows",
                got=self.num_real_tokens,
                limit=self.vocab_size,
                remedy="Use the tokenizer that belongs to this model.",
            )
        if self.num_heads % self.num_kv_heads:
            raise ModelError(
                f"num_heads {self.num_heads} is not a multiple of num_kv_heads", got=self.num_kv_heads
            )
        if self.head_size % 2:
            raise ModelError(
                "head_size must be even, because rotary positions pair channels", got=self.head_size
            )

    @property
    def num_parameters(self) -> int:
        """Number of trained numbers."""
        heads = 2 * self.num_heads + 2 * self.num_kv_heads
        block = self.hidden_size * (heads * self.head_size + 3 * self.intermediate_size + 2)
        embeddings = (1 if self.tie_word_embeddings else 2) * self.vocab_size * self.hidden_size
        return embeddings + self.num_layers * block + self.hidden_size

    def to_hf(self) -> dict[str, Any]:
        """Return the Hugging Face `config.json` object; `from_hf` reads it back unchanged."""
        entry: dict[str, Any] = {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "torch_dtype": "float32",
            "bos_token_id": self.bos_id,
            "eos_token_id": self.eos_ids[0] if len(self.eos_ids) == 1 else list(self.eos_ids) or None,
            "rope_scaling": self.rope_scaling.to_hf() if self.rope_scaling else None,
        }
        entry |= {hf_name: getattr(self, name) for name, hf_name in _HF_NAMES.items()}
        if self.num_real_tokens != self.vocab_size:
            entry["num_real_tokens"] = self.num_real_tokens
        return entry

    @classmethod
    def from_hf(cls, entry: Mapping[str, Any], num_real_tokens: int | None = None) -> ModelConfig:
        """Read a Hugging Face configuration object.

        Args:
            entry: The parsed `config.json`.
            num_real_tokens: Size of the tokenizer's vocabulary; by default what the entry says, else
                `vocab_size`.

        Raises:
            ModelError: A missing key, a wrong type, or a feature that is not supported, named.
        """
        _refuse_unsupported(entry)
        values = dict(_OPTIONAL_HF_VALUES) | dict(entry)
        heads = _integer(values, "num_attention_heads")
        values.setdefault("num_key_value_heads", heads)
        if values.get("head_dim") is None:
            values["head_dim"] = _integer(values, "hidden_size") // heads
        rope = values.get("rope_parameters") or {}
        values["rope_theta"] = rope.get("rope_theta", values["rope_theta"])
        real = num_real_tokens or values.get("num_real_tokens") or values.get("vocab_size")
        eos = values.get("eos_token_id")
        return cls(
            **{name: _integer(values, _HF_NAMES[name]) for name in _SIZES if name in _HF_NAMES},
            num_real_tokens=_integer({"num_real_tokens": real}, "num_real_tokens"),
            rms_norm_eps=float(values["rms_norm_eps"]),
            rope_theta=float(values["rope_theta"]),
            rope_scaling=_rope_scaling(values.get("rope_scaling") or rope),
            tie_word_embeddings=bool(values["tie_word_embeddings"]),
            bos_id=values.get("bos_token_id"),
            eos_ids=() if eos is None else tuple(eos) if isinstance(eos, list) else (eos,),
        )


_HF_NAMES = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "head_size": "head_dim",
    "max_position": "max_position_embeddings",
    "rms_norm_eps": "rms_norm_eps",
    "rope_theta": "rope_theta",
    "tie_word_embeddings": "tie_word_embeddings",
}
_SIZES = (
    "vocab_size",
    "num_real_tokens",
    "hidden_size",
    "intermediate_size",
    "num_layers",
    "num_heads",
    "num_kv_heads",
    "head_size",
    "max_position",
)
# What transformers assumes for a llama entry that leaves the key out.
_OPTIONAL_HF_VALUES = {
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}


def load_config(directory: Path, num_real_tokens: int | None = None) -> ModelConfig:
    """Read `config.json` of a model directory.

    Args:
        directory: A Hugging Face model directory.
        num_real_tokens: Size of the tokenizer's vocabulary, where it is smaller than the model's.

    Raises:
        ModelError: The directory or the file is missing, is not JSON, or asks for an unsupported feature.
    """
    path = directory / CONFIG_FILE
    if not path.is_file():
        kind = "model directory" if not directory.is_dir() else "model configuration"
        raise ModelError(
            f"{kind} not found: {path}",
            remedy="Point the model path at a directory with config.json and *.safetensors files.",
        )
    try:
        entry = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path} is not valid JSON: {error}", remedy="Download the model again.") from error
    if not isinstance(entry, dict):
        raise ModelError(f"{path} must hold a JSON object", got=type(entry).__name__)
    return ModelConfig.from_hf(entry, num_real_tokens)


def _integer(values: Mapping[str, Any], key: str) -> int:
    value = values.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ModelError(f"model configuration needs an integer {key}", got=repr(value))
    return value


def _refuse_unsupported(entry: Mapping[str, Any]) -> None:
    if entry.get("model_type") != "llama":
        raise ModelError(
            "unsupported model_type",
            got=repr(entry.get("model_type")),
            limit="'llama'",
            remedy=ANOTHER_FAMILY,
        )
    for key, allowed in _REQUIRED_VALUES.items():
        if entry.get(key) not in allowed:
            raise ModelError(
                f"unsupported model feature {key}",
                got=repr(entry[key]),
                limit=repr(allowed[0]),
                remedy=_ANOTHER_MODEL,
            )


def _rope_scaling(entry: Mapping[str, Any]) -> RopeScaling | None:
    kind = entry.get("rope_type", entry.get("type", "default"))
    if kind == "default":
        return None
    if kind not in ("linear", "llama3"):
        raise ModelError(
            "unsupported rope_scaling type", got=repr(kind), limit="'default', 'linear', 'llama3'"
        )
    needed = {
        "linear": ("factor",),
        "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    }[kind]
    missing = [key for key in needed if not isinstance(entry.get(key), int | float)]
    if missing:
        raise ModelError(
            f"rope_scaling of type {kind} needs a number for {', '.join(missing)}", got=dict(entry)
        )
    if kind == "linear":
        return RopeScaling("linear", float(entry["factor"]))
    return RopeScaling(
        "llama3",
        float(entry["factor"]),
        float(entry["low_freq_factor"]),
        float(entry["high_freq_factor"]),
        int(entry["original_max_position_embeddings"]),
    )
