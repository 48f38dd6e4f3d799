"""The table of adapters: two matrices beside a projection, derived from its row in `layout.PARAMETERS`.

A projection computes `x W`. With an adapter it computes `x W + scale (x A) B`; A leads from its inputs to
`rank` numbers, B from these to its outputs, and W stays as it is. Files hold them under PEFT's names. No JAX
is imported here.

References:
    Hu et al. 2021, LoRA, eq. 3; Kalajdzievski 2023, rsLoRA, for the scale.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from forebay.errors import ConfigError, ModelError
from forebay.models.config import ModelConfig
from forebay.models.hf import text_names
from forebay.models.layout import PARAMETERS, Parameter, axis_sizes, parameters_of, pick, place
from forebay.models.settings import PROJECTIONS, LoraSettings

PEFT_PREFIX: Final = "base_model.model."
_RANK = "rank"
_MAX_NAMED = 6


def _rows_beside(projection: Parameter) -> tuple[Parameter, Parameter]:
    inputs = projection.num_input_axes
    stem = PEFT_PREFIX + projection.hf_name.removesuffix(".weight")
    return (
        Parameter(
            f"{projection.name}_a", f"{stem}.lora_A.weight", (*projection.axes[:inputs], _RANK), inputs
        ),
        Parameter(f"{projection.name}_b", f"{stem}.lora_B.weight", (_RANK, *projection.axes[inputs:]), 1),
    )


# A and B of every projection that may have them; block by block beside the parameters, float32.
ADAPTERS: Final[tuple[Parameter, ...]] = tuple(
    row for projection in PARAMETERS if projection.name in PROJECTIONS for row in _rows_beside(projection)
)


def adapters_of(lora: LoraSettings) -> Iterator[Parameter]:
    """Yield the rows of the adapters that are asked for."""
    wanted = {f"{name}_{side}" for name in lora.projections for side in "ab"}
    return (row for row in ADAPTERS if row.name in wanted)


def check_targets(lora: LoraSettings, config: ModelConfig) -> None:
    """Refuse adapters on projections that a model does not have.

    Raises:
        ConfigError: The model has experts in place of the feed-forward layer.
    """
    there = {parameter.name for parameter in parameters_of(config)}
    missing = [name for name in lora.projections if name not in there]
    if missing:
        attention = [name for name in PROJECTIONS if name in there]
        raise ConfigError(
            f"{config.family} has experts in place of {', '.join(missing)}, and experts get no adapters",
            got=f"model.lora.targets={list(lora.targets)}",
            limit=", ".join(attention),
            remedy=f"Set model.lora.targets={attention}.".replace("'", '"'),
        )


def adapter_shape(row: Parameter, config: ModelConfig, lora: LoraSettings) -> tuple[int, ...]:
    """Return the shape of an adapter's array in the tree, layer axis included."""
    sizes: dict[str, int] = {**axis_sizes(config), _RANK: lora.rank or 0}
    return (config.num_layers, *(sizes[axis] for axis in row.axes))


def num_adapter_parameters(config: ModelConfig, lora: LoraSettings) -> int:
    """Return how many numbers the adapters of a model have."""
    return sum(math.prod(adapter_shape(row, config, lora)) for row in adapters_of(lora))


def to_peft_tensors(
    adapters: Mapping[str, Any], config: ModelConfig, lora: LoraSettings
) -> dict[str, np.ndarray]:
    """Return adapters under PEFT's names, [outputs, inputs] as linear maps there.

    Args:
        adapters: Their tree, arrays that NumPy can read.
        config: The model that they belong to.
        lora: Which they are.
    """
    tensors: dict[str, np.ndarray] = {}
    for row in adapters_of(lora):
        stacked = np.asarray(pick(dict(adapters), row))
        for layer, value in enumerate(stacked):
            inputs = math.prod(value.shape[: row.num_input_axes])
            tensors[row.hf_name.format(layer=layer)] = np.ascontiguousarray(value.reshape(inputs, -1).T)
    return tensors


def adapter_entry(lora: LoraSettings, base: str | None) -> dict[str, Any]:
    """Return the `adapter_config.json` object of adapters, as PEFT writes it.

    Args:
        lora: Which they are.
        base: Where the model that they belong to can be found.
    """
    alpha = int(lora.alpha) if lora.alpha == int(lora.alpha) else lora.alpha
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "inference_mode": True,
        "r": lora.rank,
        "lora_alpha": alpha,
        "use_rslora": lora.rslora,
        "target_modules": list(lora.projections),
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "modules_to_save": None,
    }


def beside_images(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return adapters under the names that PEFT knows them by on a model of text and images.

    Args:
        tensors: By the names that they have on a text model.

    Example:
        >>> list(beside_images({"base_model.model.model.layers.0.mlp.up_proj.lora_A.weight": np.zeros(1)}))
        ['base_model.model.model.language_model.layers.0.mlp.up_proj.lora_A.weight']
    """
    text, of_text = PEFT_PREFIX + "model.", PEFT_PREFIX + "model.language_model."
    return {of_text + name.removeprefix(text): tensor for name, tensor in tensors.items()}


def from_peft_tensors(
    tensors: Mapping[str, np.ndarray], config: ModelConfig, lora: LoraSettings
) -> dict[str, Any]:
    """Build a tree of adapters from PEFT's tensors.

    Args:
        tensors: By PEFT's names; of a model of text and images, those of the text under its names there.
        config: The model that they should belong to.
        lora: Which they should be.

    Returns:
        Float32 NumPy arrays with a leading axis of `num_layers`.

    Raises:
        ModelError: Tensors that are missing, unexpected or of another shape; all are named.
    """
    named = _of_text(tensors)
    check_adapter_shapes({name: tensor.shape for name, tensor in named.items()}, config, lora)
    tree: dict[str, Any] = {}
    for row in adapters_of(lora):
        value = np.empty(adapter_shape(row, config, lora), np.float32)
        for layer, part in enumerate(value):
            part[...] = named[row.hf_name.format(layer=layer)].T.reshape(part.shape)
        place(tree, row, value)
    return tree


def check_adapter_shapes(
    shapes: Mapping[str, tuple[int, ...]], config: ModelConfig, lora: LoraSettings
) -> None:
    """Check that tensors are adapters on a model.

    Args:
        shapes: Shapes by PEFT's name.
        config: The model.
        lora: Which adapters they should be.

    Raises:
        ModelError: Tensors that are missing, unexpected or of another shape; all are named.
    """
    shapes = _of_text(shapes)
    expected: dict[str, tuple[int, ...]] = {}
    for row in adapters_of(lora):
        shape = adapter_shape(row, config, lora)[1:]
        inputs = math.prod(shape[: row.num_input_axes])
        matrix = (math.prod(shape) // inputs, inputs)
        expected |= dict.fromkeys((row.hf_name.format(layer=n) for n in range(config.num_layers)), matrix)
    problems = [f"missing {name}" for name in expected if name not in shapes]
    problems += [f"unexpected {name}" for name in shapes if name not in expected]
    problems += [
        f"{name} has shape {list(shapes[name])} instead of {list(shape)}"
        for name, shape in expected.items()
        if name in shapes and tuple(shapes[name]) != shape
    ]
    if problems:
        more = f" and {len(problems) - _MAX_NAMED} more" if len(problems) > _MAX_NAMED else ""
        raise ModelError(
            f"the adapters do not fit the model: {'; '.join(problems[:_MAX_NAMED])}{more}",
            remedy="Use adapters that were made for this model, with the rank and targets under model.lora.",
        )


def _of_text(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Name what belongs to the text of a model of text and images as in a text model; keep all else."""
    inner = {name.removeprefix(PEFT_PREFIX): name for name in tensors}
    renamed = text_names(inner)
    return {PEFT_PREFIX + renamed.get(name, name): tensors[whole] for name, whole in inner.items()}
