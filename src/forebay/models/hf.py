"""Hugging Face tensors to the parameter tree and back: NumPy only, no files and no JAX."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from forebay.errors import ModelError
from forebay.models.config import ModelConfig
from forebay.models.layout import Parameter, parameters_of, pick, place

_IGNORED_SUFFIXES = (".rotary_emb.inv_freq",)
_MAX_NAMED = 6


def hf_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return name and shape of every Hugging Face tensor of a model, in file order."""
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in range(-1, config.num_layers):
        for parameter in parameters_of(config):
            if parameter.in_layers == (layer >= 0):
                shapes[parameter.hf_name.format(layer=layer)] = parameter.hf_shape(config)
    return shapes


def from_hf_tensors(
    tensors: Mapping[str, np.ndarray], config: ModelConfig, dtype: DTypeLike = np.float32
) -> dict[str, Any]:
    """Build a parameter tree from Hugging Face tensors.

    Args:
        tensors: Arrays by Hugging Face name, any float type. A tied model may carry an `lm_head.weight` equal
            to its embedding; it is ignored.
        config: The model they belong to.
        dtype: Type of the returned arrays.

    Returns:
        The tree of `layout.PARAMETERS`, NumPy arrays; arrays under `layers` have a leading axis of
        `num_layers`.

    Raises:
        ModelError: Tensors that are missing, unexpected or of another shape; all are named.
    """
    check_shapes({name: tensor.shape for name, tensor in tensors.items()}, config)
    tree: dict[str, Any] = {}
    for parameter in parameters_of(config):
        if not parameter.in_layers:
            value = _from_hf(tensors[parameter.hf_name], parameter, config, dtype)
        else:
            value = np.stack(
                [
                    _from_hf(tensors[parameter.hf_name.format(layer=layer)], parameter, config, dtype)
                    for layer in range(config.num_layers)
                ]
            )
        place(tree, parameter, value)
    return tree


def to_hf_tensors(params: Mapping[str, Any], config: ModelConfig) -> dict[str, np.ndarray]:
    """Return the Hugging Face tensors of a parameter tree, in file order.

    A tied model has no `lm_head.weight`.

    Args:
        params: The tree of `layout.PARAMETERS`, arrays that NumPy can read.
        config: The model they belong to.
    """
    host = {parameter.name: np.asarray(pick(dict(params), parameter)) for parameter in parameters_of(config)}
    tensors: dict[str, np.ndarray] = {}
    for layer in range(-1, config.num_layers):
        for parameter in parameters_of(config):
            if parameter.in_layers == (layer >= 0):
                value = host[parameter.name][layer] if parameter.in_layers else host[parameter.name]
                tensors[parameter.hf_name.format(layer=layer)] = _to_hf(value, parameter, config)
    return tensors


def check_shapes(shapes: Mapping[str, tuple[int, ...]], config: ModelConfig) -> None:
    """Check that tensors are those of a model.

    Args:
        shapes: Shapes by Hugging Face name.
        config: The model they should belong to.

    Raises:
        ModelError: Tensors that are missing, unexpected or of another shape; all are named.
    """
    expected = hf_shapes(config)
    ignored = {"lm_head.weight"} if config.tie_word_embeddings else set()
    problems = [f"missing {name}" for name in expected if name not in shapes]
    problems += [
        f"unexpected {name}"
        for name in shapes
        if name not in expected and name not in ignored and not name.endswith(_IGNORED_SUFFIXES)
    ]
    problems += [
        f"{name} has shape {list(shapes[name])} instead of {list(shape)}"
        for name, shape in expected.items()
        if name in shapes and shapes[name] != shape
    ]
    if problems:
        more = f" and {len(problems) - _MAX_NAMED} more" if len(problems) > _MAX_NAMED else ""
        raise ModelError(
            f"the tensors do not fit the model configuration: {'; '.join(problems[:_MAX_NAMED])}{more}",
            remedy="Check that the configuration and the tensors belong to the same model.",
        )


def _from_hf(tensor: np.ndarray, parameter: Parameter, config: ModelConfig, dtype: DTypeLike) -> np.ndarray:
    value = tensor.T if parameter.num_input_axes else tensor
    return np.ascontiguousarray(value.astype(dtype)).reshape(parameter.shape(config))


def _to_hf(value: np.ndarray, parameter: Parameter, config: ModelConfig) -> np.ndarray:
    if not parameter.num_input_axes:
        return np.ascontiguousarray(value)
    return np.ascontiguousarray(value.reshape(parameter.hf_shape(config)[::-1]).T)
