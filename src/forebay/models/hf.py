"""Hugging Face tensors to the parameter tree and back: NumPy only, no files and no JAX."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from forebay.errors import ModelError
from forebay.models.config import ModelConfig
from forebay.models.layout import Parameter, parameters_of, pick, place

_IGNORED_SUFFIXES = (".rotary_emb.inv_freq",)
# How a model of text and images names its text, and the name of that in a text model.
_TEXT_PREFIXES = {"language_model.": "", "model.language_model.": "model."}
_IMAGE_PREFIXES = tuple(
    f"{outer}{part}." for outer in ("", "model.") for part in ("vision_tower", "multi_modal_projector")
)
_HEAD, _EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
_MAX_NAMED = 6


def hf_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return name and shape of every Hugging Face tensor of a model, in file order."""
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in range(-1, config.num_layers):
        for parameter in parameters_of(config):
            if parameter.in_layers == (layer >= 0):
                for _, name in parameter.hf_tensors(config, layer):
                    shapes[name] = parameter.hf_shape(config)
    return shapes


def text_names(names: Iterable[str]) -> dict[str, str]:
    """Return the name that each tensor of a checkpoint has in a text model.

    Of a model of text and images, those of the text are renamed and those of images left out; a text model's
    are returned as they are, so that whatever else it holds is found to be unexpected.

    Args:
        names: Names in the files.

    Example:
        >>> text_names(["language_model.model.norm.weight", "vision_tower.head.weight"])
        {'language_model.model.norm.weight': 'model.norm.weight'}
    """
    names = list(names)
    if not any(name.startswith(tuple(_TEXT_PREFIXES)) for name in names):
        return {name: name for name in names}
    return {name: _text_name(name) for name in names if not name.startswith(_IMAGE_PREFIXES)}


def _text_name(name: str) -> str:
    prefix = next((prefix for prefix in _TEXT_PREFIXES if name.startswith(prefix)), None)
    return name if prefix is None else _TEXT_PREFIXES[prefix] + name.removeprefix(prefix)


def from_hf_tensors(
    tensors: Mapping[str, np.ndarray], config: ModelConfig, dtype: DTypeLike = np.float32
) -> dict[str, Any]:
    """Build a parameter tree from Hugging Face tensors.

    Args:
        tensors: Arrays by Hugging Face name, any float type. A tied model may carry an `lm_head.weight` equal
            to its embedding, which is left out.
        config: The model they belong to.
        dtype: Type of the returned arrays.

    Returns:
        The tree of `layout.PARAMETERS`, NumPy arrays; arrays under `layers` have a leading axis of
        `num_layers`.

    Raises:
        ModelError: Tensors that are missing, unexpected or of another shape, all named; or a tied model whose
            head is another one than its embedding.
    """
    check_shapes({name: tensor.shape for name, tensor in tensors.items()}, config)
    if config.tie_word_embeddings and _HEAD in tensors:
        _refuse_other_head(tensors)
    tree: dict[str, Any] = {}
    for parameter in parameters_of(config):
        value = np.empty(parameter.stacked_shape(config), dtype)
        for layer in range(config.num_layers if parameter.in_layers else 1):
            for index, name in parameter.hf_tensors(config, layer):
                part = value[index]
                part[...] = _from_hf(tensors[name], parameter).reshape(part.shape)
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
                for index, name in parameter.hf_tensors(config, layer):
                    tensors[name] = _to_hf(host[parameter.name][index], parameter, config)
    return tensors


def without_padding(
    tensors: Mapping[str, np.ndarray], config: ModelConfig
) -> tuple[dict[str, np.ndarray], ModelConfig]:
    """Cut off the rows of embedding and head that no token has.

    Nothing here ever samples them, but other programs do not know that: a model that was never pretrained
    with them gives them odds like those of any token.

    Args:
        tensors: Of a model, by Hugging Face name.
        config: The model.

    Returns:
        Tensors and configuration of a model of `num_real_tokens` ids, which computes the same.
    """
    real = config.num_real_tokens
    cut = {name: tensor[:real] if name in (_EMBEDDING, _HEAD) else tensor for name, tensor in tensors.items()}
    return cut, replace(config, vocab_size=real)


def check_shapes(shapes: Mapping[str, tuple[int, ...]], config: ModelConfig) -> None:
    """Check that tensors are those of a model.

    Args:
        shapes: Shapes by Hugging Face name.
        config: The model they should belong to.

    Raises:
        ModelError: Tensors that are missing, unexpected or of another shape; all are named.
    """
    expected = hf_shapes(config)
    if config.tie_word_embeddings and _HEAD in shapes:
        expected[_HEAD] = expected[_EMBEDDING]
    problems = [f"missing {name}" for name in expected if name not in shapes]
    problems += [
        f"unexpected {name}"
        for name in shapes
        if name not in expected and not name.endswith(_IGNORED_SUFFIXES)
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


def _refuse_other_head(tensors: Mapping[str, np.ndarray]) -> None:
    if (tensors[_HEAD] != tensors[_EMBEDDING]).any():
        raise ModelError(
            f"tie_word_embeddings is true, but {_HEAD} holds other numbers than {_EMBEDDING}",
            remedy="Set tie_word_embeddings to false in config.json to keep both, or take the head out.",
        )


def _from_hf(tensor: np.ndarray, parameter: Parameter) -> np.ndarray:
    return tensor.T if parameter.num_input_axes else tensor


def _to_hf(value: np.ndarray, parameter: Parameter, config: ModelConfig) -> np.ndarray:
    shape = parameter.hf_shape(config)
    if not parameter.num_input_axes:
        return np.ascontiguousarray(value).reshape(shape)
    return np.ascontiguousarray(value.reshape(shape[::-1]).T)
