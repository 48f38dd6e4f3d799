"""Settings of the forward pass and of the device mesh; no JAX is imported here."""

from __future__ import annotations

import math
from typing import Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

ALL_LINEAR: Final = "all-linear"
Projection = Literal["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
Target = Literal["all-linear", "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
PROJECTIONS: Final[tuple[Projection, ...]] = (
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "gate_proj",
    "up_proj",
    "down_proj",
)


class ComputeSettings(BaseModel):
    """How the passes are computed; none of it changes what is computed, beyond rounding."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    compute_dtype: Literal["float32", "bfloat16"] = Field(
        "float32", description="Type of activations and matrix products; master weights stay float32."
    )
    remat: Literal["none", "elementwise", "dots", "full"] = Field(
        "none",
        description="What the backward pass recomputes. elementwise: what is neither a matrix product nor "
        "attention, which on a CPU is faster than reading it back; dots: attention too; full: every block.",
    )
    attention: Literal["auto", "dense", "blockwise", "splash", "fused"] = Field(
        "auto",
        description="auto is blockwise on a CPU, splash on a TPU and fused on a GPU; dense is the reference. "
        "A kernel that the devices cannot run is refused at the start.",
    )
    attention_block_tokens: int = Field(64, ge=8, description="Tokens per block of blockwise attention.")
    loss_chunk_tokens: int = Field(
        1024, ge=8, description="Tokens whose logits exist at the same time while the loss is computed."
    )
    max_unrolled_layers: int = Field(
        8, ge=0, description="Models with at most this many blocks are written out: faster steps than a loop."
    )


class MeshSettings(BaseModel):
    """Sizes of the device mesh; their product is the number of devices."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    data: int = Field(1, ge=1, description="Copies of the parameters; each takes its share of the rows.")
    fsdp: int = Field(1, ge=1, description="Shards of the parameters; each also takes its share of the rows.")
    context: int = Field(1, ge=1, description="Shards of the tokens of every row, for very long rows.")
    tensor: int = Field(
        1, ge=1, description="Shards of the heads, the feed-forward width, the vocabulary, and of tokens."
    )
    expert: int = Field(
        1, ge=1, description="Shards of the experts; each also takes its share of the rows, as fsdp does."
    )

    @property
    def num_devices(self) -> int:
        """Number of devices that the mesh needs."""
        return self.data * self.fsdp * self.context * self.tensor * self.expert

    @property
    def row_multiple(self) -> int:
        """Number that the rows of every bucket must be a multiple of."""
        return self.data * self.fsdp * self.expert

    @property
    def length_multiple(self) -> int:
        """Number that the length of every bucket must be a multiple of."""
        return self.tensor if self.context == 1 else math.lcm(2 * self.context, self.context * self.tensor)


class LoraSettings(BaseModel):
    """Adapters (LoRA) that are trained in place of the model, whose own weights stay as they are."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rank: int | None = Field(
        None, ge=1, description="Inner width of every adapter. None: no adapters, the whole model is trained."
    )
    alpha: float = Field(
        32.0, gt=0, allow_inf_nan=False, description="What adapters add is multiplied by alpha / rank."
    )
    rslora: bool = Field(
        False, description="Multiply by alpha / sqrt(rank) instead, which suits high ranks (rsLoRA)."
    )
    targets: tuple[Target, ...] = Field(
        (ALL_LINEAR,),
        description="Projections that get adapters, in every block: q_proj, k_proj, v_proj, o_proj, "
        "gate_proj, up_proj, down_proj; all-linear is all of them.",
    )
    path: str | None = Field(
        None,
        description="Adapters to begin with, a directory as PEFT writes it; rank, alpha, rslora and targets "
        "must be theirs. None draws new ones, which change nothing at first.",
    )

    @field_validator("targets", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value

    @field_validator("targets")
    @classmethod
    def _names_something(cls, value: tuple[Target, ...]) -> tuple[Target, ...]:
        if not value:
            raise ValueError(f'is empty. Name projections: {", ".join(PROJECTIONS)}; or "{ALL_LINEAR}".')
        return value

    @model_validator(mode="after")
    def _has_a_rank(self) -> Self:
        if self.rank is None and (given := self.model_fields_set - {"rank"}):
            idle = [name for name in sorted(given) if getattr(self, name) != _default(self, name)]
            if idle:
                raise ValueError(
                    f"model.lora.{idle[0]} is set, but without model.lora.rank there are no adapters. "
                    f"Set model.lora.rank, or remove model.lora.{idle[0]}."
                )
        return self

    @property
    def projections(self) -> tuple[Projection, ...]:
        """The projections that get adapters, in the order of a block."""
        return tuple(name for name in PROJECTIONS if ALL_LINEAR in self.targets or name in self.targets)

    @property
    def scale(self) -> float:
        """What adapters add is multiplied by."""
        rank = self.rank or 1
        return self.alpha / (math.sqrt(rank) if self.rslora else rank)


def _default(settings: BaseModel, name: str) -> Any:
    return type(settings).model_fields[name].default


class ModelSettings(BaseModel):
    """Which model is trained: a Hugging Face directory, a GGUF file, or a new one of a given size."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str | None = Field(
        None,
        description="Hugging Face directory with config.json and safetensors, a GGUF file, or package:NAME "
        "for the GGUF file in an installed Python package; none draws a new model.",
    )
    tokenizer: str = Field(
        "small", description='Directory with tokenizer.json; "small" is the built-in character tokenizer.'
    )
    hidden_size: int = Field(128, ge=8, description="New model: width of the residual stream.")
    intermediate_size: int = Field(352, ge=8, description="New model: width of the feed-forward layer.")
    num_layers: int = Field(4, ge=1, description="New model: blocks.")
    num_heads: int = Field(4, ge=1, description="New model: query heads.")
    num_kv_heads: int = Field(2, ge=1, description="New model: key and value heads.")
    max_position: int = Field(512, ge=16, description="New model: longest sequence, tokens.")
    vocab_multiple: int = Field(
        16, ge=1, description="New model: the vocabulary is padded to a multiple of this."
    )
    router_aux_coef: float | None = Field(
        None,
        ge=0,
        description="Mixture of experts: weight of the load-balancing loss. None: 0 in reinforcement "
        "learning, what the model's own config.json says in supervised training.",
    )
    router_z_coef: float = Field(
        0.0, ge=0, description="Mixture of experts: weight of the z-loss, which keeps router logits small."
    )
    lora: LoraSettings = LoraSettings()

    @property
    def adapters(self) -> LoraSettings | None:
        """The adapters that are trained in place of the model; None if the model itself is."""
        return None if self.lora.rank is None else self.lora
