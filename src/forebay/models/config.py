"""What a model is: the sizes, constants and features of a decoder; a plain record of what is computed.

It is read from a Hugging Face `config.json` by `hf_config`, which refuses by name what is not computed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from forebay.errors import ModelError
from forebay.models import hf_config
from forebay.models.experts import Experts
from forebay.models.families import integer
from forebay.models.layer_kinds import LayerKind
from forebay.models.rope_scaling import RopeScaling

CONFIG_FILE = "config.json"


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of a decoder-only transformer with grouped-query attention and rotary positions.

    Args:
        vocab_size: Rows of the embedding and columns of the logits, padding rows included.
        num_real_tokens: Ids the tokenizer knows; ids from here to `vocab_size` are padding and have
            probability 0 in the sampler and in the learner.
        hidden_size: Width of the residual stream.
        intermediate_size: Width of the feed-forward layer; with `experts`, theirs counts.
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
        family: Whose names its files carry, a key of `families.FAMILIES`; nothing is computed from it.
        pattern: Kinds of blocks: block i is of kind `pattern[i % len(pattern)]`.
        activation: Of the feed-forward layer's gate.
        attention_bias: Whether queries, keys and values have a bias.
        head_norms: Whether queries and keys are normed, each head by itself, before they are rotated.
        post_norms: Whether what attention and the feed-forward layer return is normed before it is added.
        unit_offset_norms: Whether norms scale by 1 + weight.
        scaled_embedding: Whether embeddings are multiplied by the root of `hidden_size`.
        query_pre_attn_scalar: Scores are divided by its root; None: by that of `head_size`.
        attention_softcap: Scores s become `cap * tanh(s / cap)`; None: they stay.
        final_softcap: The same for logits.
        experts: What each block has in place of one feed-forward layer; None: it has one.

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
    family: str = "llama"
    pattern: tuple[LayerKind, ...] = (LayerKind(),)
    activation: Literal["silu", "gelu_tanh"] = "silu"
    attention_bias: bool = False
    head_norms: bool = False
    post_norms: bool = False
    unit_offset_norms: bool = False
    scaled_embedding: bool = False
    query_pre_attn_scalar: int | float | None = None
    attention_softcap: float | None = None
    final_softcap: float | None = None
    experts: Experts | None = None

    def __post_init__(self) -> None:
        for name in ("num_real_tokens", *hf_config.SIZES):
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
        for name in ("query_pre_attn_scalar", "attention_softcap", "final_softcap", "rms_norm_eps"):
            if (value := getattr(self, name)) is not None and not value > 0:
                raise ModelError(f"model {name} must be positive", got=value)
        for kind in self.pattern:
            if kind.window is not None and kind.window < 1:
                raise ModelError("a window must be positive", got=kind.window)

    @property
    def layer_kinds(self) -> tuple[LayerKind, ...]:
        """Kind of every block."""
        return tuple(self.pattern[layer % len(self.pattern)] for layer in range(self.num_layers))

    @property
    def attention_scale(self) -> float:
        """What products of queries and keys are multiplied by."""
        return float(self.query_pre_attn_scalar or self.head_size) ** -0.5

    @property
    def num_parameters(self) -> int:
        """Number of trained numbers."""
        heads = self.num_heads + 2 * self.num_kv_heads
        wide = 3 * self.intermediate_size
        if self.experts is not None:
            wide = self.experts.number * (3 * self.experts.width + 1)
        block = self.hidden_size * ((heads + self.num_heads) * self.head_size + wide)
        block += self.hidden_size * (4 if self.post_norms else 2)
        block += heads * self.head_size if self.attention_bias else 0
        block += 2 * self.head_size if self.head_norms else 0
        embeddings = (1 if self.tie_word_embeddings else 2) * self.vocab_size * self.hidden_size
        return embeddings + self.num_layers * block + self.hidden_size

    def to_hf(self) -> dict[str, Any]:
        """Return the Hugging Face `config.json` object; `from_hf` reads it back unchanged.

        Raises:
            ModelError: The model computes something that no model of its family does.
        """
        entry = hf_config.write_entry(self)
        if ModelConfig.from_hf(entry) != self:
            raise ModelError(
                f"no model of type {self.family} computes this, so its configuration cannot be written",
                remedy="Change the family, or take out the feature that it does not have.",
            )
        return entry

    @classmethod
    def from_hf(cls, entry: Mapping[str, Any], num_real_tokens: int | None = None) -> ModelConfig:
        """Read a Hugging Face configuration object.

        Args:
            entry: The parsed `config.json`; of a model of text and images, the text model is read.
            num_real_tokens: Size of the tokenizer's vocabulary; by default what the entry says, else
                `vocab_size`.

        Raises:
            ModelError: A missing key, a wrong type, or a feature that is not supported, named.
        """
        text = hf_config.text_entry(entry)
        fields = hf_config.read_fields(text)
        real = num_real_tokens or text.get("num_real_tokens") or fields["vocab_size"]
        eos = text.get("eos_token_id")
        return cls(
            num_real_tokens=integer({"num_real_tokens": real}, "num_real_tokens"),
            bos_id=text.get("bos_token_id"),
            eos_ids=() if eos is None else tuple(eos) if isinstance(eos, list) else (eos,),
            **fields,
        )


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
