"""The one table of a model's parameters: where each lives in the tree, its shape, and its Hugging Face name.

Initialization, loading, saving, publishing and sharding all read `PARAMETERS`; a parameter is added or
renamed here and nowhere else. Which rows a model has follows from what it computes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from forebay.models.config import ModelConfig


class Parameter(NamedTuple):
    """One row of the table.

    Args:
        name: Key in the parameter tree; block parameters live under `layers`, stacked on a leading axis. Ends
            in `_norm` for the scale of a norm and in `_bias` for a bias.
        hf_name: Name of the Hugging Face tensor; `{layer}` is the index of the block. With `{expert}` there
            is one tensor per expert, and the array has an axis of experts before all others.
        axes: Logical axes of the array, without the layer axis; `mesh_axes.PARAMETER_AXES` says how each is
            split.
        num_input_axes: How many leading axes are contracted with the activations. Hugging Face keeps a linear
            map as [outputs, inputs]; the tree keeps it as [*inputs, *outputs]. 0: Hugging Face keeps a bias
            flat, and the rest as the tree does. An axis of experts is not counted.
        of: Which models have it.
    """

    name: str
    hf_name: str
    axes: tuple[str, ...]
    num_input_axes: int = 0
    of: Callable[[ModelConfig], bool] = lambda config: True

    @property
    def in_layers(self) -> bool:
        """Whether there is one of it per block."""
        return "{layer}" in self.hf_name

    @property
    def in_experts(self) -> bool:
        """Whether there is one of it per expert."""
        return "{expert}" in self.hf_name

    @property
    def is_norm(self) -> bool:
        """Whether it is the scale of a norm."""
        return self.name.endswith("_norm")

    @property
    def is_bias(self) -> bool:
        """Whether it is added and not multiplied."""
        return self.name.endswith("_bias")

    def shape(self, config: ModelConfig) -> tuple[int, ...]:
        """Return the shape of one block's array (no layer axis)."""
        sizes = axis_sizes(config)
        return tuple(sizes[axis] for axis in self.axes)

    def stacked_shape(self, config: ModelConfig) -> tuple[int, ...]:
        """Return the shape of the array in the tree, layer axis included."""
        return (config.num_layers, *self.shape(config)) if self.in_layers else self.shape(config)

    def hf_shape(self, config: ModelConfig) -> tuple[int, ...]:
        """Return the shape of a Hugging Face tensor."""
        shape = self.shape(config)[1:] if self.in_experts else self.shape(config)
        if self.num_input_axes:
            return math.prod(shape[self.num_input_axes :]), math.prod(shape[: self.num_input_axes])
        return (math.prod(shape),) if self.is_bias else shape

    def hf_tensors(self, config: ModelConfig, layer: int) -> Iterator[tuple[tuple[int, ...], str]]:
        """Yield where in the array each Hugging Face tensor of one block goes, and its name.

        Args:
            config: The model.
            layer: Index of the block; it does not matter to what is in none.
        """
        block = (layer,) if self.in_layers else ()
        if not self.in_experts:
            yield block, self.hf_name.format(layer=layer)
            return
        for expert in range(config.experts.number if config.experts else 0):
            yield (*block, expert), self.hf_name.format(layer=layer, expert=expert)


def _has_bias(config: ModelConfig) -> bool:
    return config.attention_bias


def _has_head_norms(config: ModelConfig) -> bool:
    return config.head_norms


def _has_post_norms(config: ModelConfig) -> bool:
    return config.post_norms


def _has_no_post_norms(config: ModelConfig) -> bool:
    return not config.post_norms


def _is_dense(config: ModelConfig) -> bool:
    return config.experts is None


def _is_mixtral(config: ModelConfig) -> bool:
    return config.experts is not None and config.family == "mixtral"


def _is_other_mixture(config: ModelConfig) -> bool:
    return config.experts is not None and config.family != "mixtral"


def _is_untied(config: ModelConfig) -> bool:
    return not config.tie_word_embeddings


def _of_experts(
    router: str, experts: str, names: tuple[str, str, str], of: Callable[[ModelConfig], bool]
) -> tuple[Parameter, ...]:
    """Return the rows of a mixture of experts, by a family's names of gate, up and down."""
    gate, up, down = (f"{experts}.{{expert}}.{name}.weight" for name in names)
    return (
        Parameter("router", f"{router}.weight", ("embed", "router"), 1, of),
        Parameter("expert_gate", gate, ("experts", "embed", "mlp"), 1, of),
        Parameter("expert_up", up, ("experts", "embed", "mlp"), 1, of),
        Parameter("expert_down", down, ("experts", "mlp", "embed"), 1, of),
    )


_BLOCK = "model.layers.{layer}."
_ATTENTION, _MLP, _MIXTRAL = f"{_BLOCK}self_attn.", f"{_BLOCK}mlp.", f"{_BLOCK}block_sparse_moe."
PARAMETERS: tuple[Parameter, ...] = (
    Parameter("embedding", "model.embed_tokens.weight", ("vocab", "embed")),
    Parameter("attention_norm", f"{_BLOCK}input_layernorm.weight", ("embed",)),
    Parameter("q_proj", f"{_ATTENTION}q_proj.weight", ("embed", "heads", "head"), 1),
    Parameter("k_proj", f"{_ATTENTION}k_proj.weight", ("embed", "kv_heads", "head"), 1),
    Parameter("v_proj", f"{_ATTENTION}v_proj.weight", ("embed", "kv_heads", "head"), 1),
    Parameter("q_bias", f"{_ATTENTION}q_proj.bias", ("heads", "head"), of=_has_bias),
    Parameter("k_bias", f"{_ATTENTION}k_proj.bias", ("kv_heads", "head"), of=_has_bias),
    Parameter("v_bias", f"{_ATTENTION}v_proj.bias", ("kv_heads", "head"), of=_has_bias),
    Parameter("q_norm", f"{_ATTENTION}q_norm.weight", ("head",), of=_has_head_norms),
    Parameter("k_norm", f"{_ATTENTION}k_norm.weight", ("head",), of=_has_head_norms),
    Parameter("o_proj", f"{_ATTENTION}o_proj.weight", ("heads", "head", "embed"), 2),
    # Gemma gives the norm after attention the name that the norm before the feed-forward layer has elsewhere.
    Parameter(
        "attention_post_norm", f"{_BLOCK}post_attention_layernorm.weight", ("embed",), of=_has_post_norms
    ),
    Parameter("mlp_norm", f"{_BLOCK}post_attention_layernorm.weight", ("embed",), of=_has_no_post_norms),
    Parameter("mlp_norm", f"{_BLOCK}pre_feedforward_layernorm.weight", ("embed",), of=_has_post_norms),
    Parameter("gate_proj", f"{_MLP}gate_proj.weight", ("embed", "mlp"), 1, of=_is_dense),
    Parameter("up_proj", f"{_MLP}up_proj.weight", ("embed", "mlp"), 1, of=_is_dense),
    Parameter("down_proj", f"{_MLP}down_proj.weight", ("mlp", "embed"), 1, of=_is_dense),
    *_of_experts(f"{_MLP}gate", f"{_MLP}experts", ("gate_proj", "up_proj", "down_proj"), _is_other_mixture),
    *_of_experts(f"{_MIXTRAL}gate", f"{_MIXTRAL}experts", ("w1", "w3", "w2"), _is_mixtral),
    Parameter("mlp_post_norm", f"{_BLOCK}post_feedforward_layernorm.weight", ("embed",), of=_has_post_norms),
    Parameter("final_norm", "model.norm.weight", ("embed",)),
    Parameter("lm_head", "lm_head.weight", ("vocab", "embed"), of=_is_untied),
)


def axis_sizes(config: ModelConfig) -> dict[str, int]:
    """Return the length of every logical axis."""
    sizes = {
        "vocab": config.vocab_size,
        "embed": config.hidden_size,
        "heads": config.num_heads,
        "kv_heads": config.num_kv_heads,
        "head": config.head_size,
        "mlp": config.intermediate_size,
    }
    if config.experts is None:
        return sizes
    number = config.experts.number
    return sizes | {"mlp": config.experts.width, "router": number, "experts": number}


def parameters_of(config: ModelConfig) -> Iterator[Parameter]:
    """Yield the rows that a model has: a tied model has no `lm_head`, for instance."""
    return (parameter for parameter in PARAMETERS if parameter.of(config))


def place(tree: dict[str, Any], parameter: Parameter, value: Any) -> None:
    """Put `value` where `parameter` lives in a parameter tree."""
    branch = tree.setdefault("layers", {}) if parameter.in_layers else tree
    branch[parameter.name] = value


def pick(tree: dict[str, Any], parameter: Parameter) -> Any:
    """Return what lives at `parameter` in a parameter tree."""
    return (tree["layers"] if parameter.in_layers else tree)[parameter.name]
