"""The parameter tree: plain nested dicts of arrays, blocks stacked on a leading axis.

    {"embedding": [V, D], "layers": {"q_proj": [L, D, H, K], ...}, "final_norm": [D], "lm_head": [V, D]}

`layout.PARAMETERS` is the full list.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike

from forebay.models.config import ModelConfig
from forebay.models.layout import Parameter, parameters_of, place

Params = dict[str, Any]
_INIT_STD = 0.02


def init_params(config: ModelConfig, key: Array, dtype: DTypeLike = jnp.float32) -> Params:
    """Draw a new model.

    Norms scale by 1, biases are 0, projections into the residual stream N(0, 0.02 / sqrt(2 L)), the rest
    N(0, 0.02).

    Args:
        config: The model.
        key: A JAX random key; the same key gives the same numbers on every mesh.
        dtype: Type of the arrays.

    References:
        Radford et al. 2019 (GPT-2), section 2.3, for the scale of the residual projections.
    """
    params: Params = {}
    for number, parameter in enumerate(parameters_of(config)):
        place(params, parameter, _draw(parameter, jax.random.fold_in(key, number), config, dtype))
    return params


def abstract_params(config: ModelConfig, dtype: DTypeLike) -> Params:
    """Return the shapes of a model's parameters, all in one type."""
    params: Params = {}
    for parameter in parameters_of(config):
        place(params, parameter, jax.ShapeDtypeStruct(parameter.stacked_shape(config), jnp.dtype(dtype)))
    return params


def _draw(parameter: Parameter, key: Array, config: ModelConfig, dtype: DTypeLike) -> Array:
    shape = parameter.stacked_shape(config)
    if parameter.is_norm or parameter.is_bias:
        is_one = parameter.is_norm and not config.unit_offset_norms
        return jnp.full(shape, 1.0 if is_one else 0.0, dtype)
    into_residual = parameter.name in ("o_proj", "down_proj", "expert_down")
    std = _INIT_STD / (2 * config.num_layers) ** 0.5 if into_residual else _INIT_STD
    return (std * jax.random.normal(key, shape)).astype(dtype)


def split_layers(params: Params) -> Params:
    """Return the tree with `layers` as a tuple of one dict per block, for programs that write the blocks out.

    Decoding uses it: slicing stacked weights inside a loop copies them at every token.
    """
    num_layers = jax.tree.leaves(params["layers"])[0].shape[0]
    layers = tuple(
        {name: leaf[index] for name, leaf in params["layers"].items()} for index in range(num_layers)
    )
    return {**params, "layers": layers}


def cast(params: Params, dtype: DTypeLike) -> Params:
    """Return a copy of the tree in another type, as JAX arrays."""
    return jax.tree.map(lambda leaf: jnp.array(leaf, dtype), params)
