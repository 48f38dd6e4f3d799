"""The one table of a model's parameters: where each lives in the tree, its shape, and its Hugging Face name.

Initialization, loading, saving, publishing and sharding all read `PARAMETERS`; a parameter is added or
renamed here and nowhere else.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from forebay.models.config import ModelConfig


class Parameter(NamedTuple):
    """One row of the table.

    Args:
        name: Key in the parameter tree; block parameters live under `layers`, stacked on a leading axis.
        hf_name: Name of the Hugging Face tensor; `{layer}` is the index of the block.
        axes: Logical axes of the array, without the layer axis; `sharding.MESH_AXES` says how each is split.
        num_input_axes: How many leading axes are contracted with the activations. Hugging Face keeps a linear
            map as [outputs, inputs]; the tree keeps it as [*inputs, *outputs]. 0 means that both sides agree.
    """

    name: str
    hf_name: str
    axes: tuple[str, ...]
    num_input_axes: int = 0

    @property
    def in_layers(self) -> bool:
        """Whether there is one of it per block."""
        return "{layer}" in self.hf_name

    def shape(self, config: ModelConfig) -> tuple[int, ...]:
        """Return the shape of one block's array (no layer axis)."""
        sizes = axis_sizes(config)
        return tuple(sizes[axis] for axis in self.axes)

    def hf_shape(self, config: ModelConfig) -> tuple[int, ...]:
        """Return the shape of the Hugging Face tensor."""
        shape = self.shape(config)
        if not self.num_input_axes:
            return shape
        return math.prod(shape[self.num_input_axes :]), math.prod(shape[: self.num_input_axes])


PARAMETERS: tuple[Parameter, ...] = (
    Parameter("embedding", "model.embed_tokens.weight", ("vocab", "embed")),
    Parameter("attention_norm", "model.layers.{layer}.input_layernorm.weight", ("embed",)),
    Parameter("q_proj", "model.layers.{layer}.self_attn.q_proj.weight", ("embed", "heads", "head"), 1),
    Parameter("k_proj", "model.layers.{layer}.self_attn.k_proj.weight", ("embed", "kv_heads", "head"), 1),
    Parameter("v_proj", "model.layers.{layer}.self_attn.v_proj.weight", ("embed", "kv_heads", "head"), 1),
    Parameter("o_proj", "model.layers.{layer}.self_attn.o_proj.weight", ("heads", "head", "embed"), 2),
    Parameter("mlp_norm", "model.layers.{layer}.post_attention_layernorm.weight", ("embed",)),
    Parameter("gate_proj", "model.layers.{layer}.mlp.gate_proj.weight", ("embed", "mlp"), 1),
    Parameter("up_proj", "model.layers.{layer}.mlp.up_proj.weight", ("embed", "mlp"), 1),
    Parameter("down_proj", "model.layers.{layer}.mlp.down_proj.weight", ("mlp", "embed"), 1),
    Parameter("final_norm", "model.norm.weight", ("embed",)),
    Parameter("lm_head", "lm_head.weight", ("vocab", "embed")),
)


def axis_sizes(config: ModelConfig) -> dict[str, int]:
    """Return the length of every logical axis."""
    return {
        "vocab": config.vocab_size,
        "embed": config.hidden_size,
        "heads": config.num_heads,
        "kv_heads": config.num_kv_heads,
        "head": config.head_size,
        "mlp": config.intermediate_size,
    }


def parameters_of(config: ModelConfig) -> Iterator[Parameter]:
    """Yield the rows that a model has: a tied model has no `lm_head`."""
    for parameter in PARAMETERS:
        if parameter.name != "lm_head" or not config.tie_word_embeddings:
            yield parameter


def layer_parameters() -> tuple[Parameter, ...]:
    """Return the rows that every block has."""
    return tuple(parameter for parameter in PARAMETERS if parameter.in_layers)


def place(tree: dict[str, Any], parameter: Parameter, value: Any) -> None:
    """Put `value` where `parameter` lives in a parameter tree."""
    branch = tree.setdefault("layers", {}) if parameter.in_layers else tree
    branch[parameter.name] = value


def pick(tree: dict[str, Any], parameter: Parameter) -> Any:
    """Return what lives at `parameter` in a parameter tree."""
    return (tree["layers"] if parameter.in_layers else tree)[parameter.name]
