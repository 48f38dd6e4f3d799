"""The value head: one number per position, read from the last hidden state; trained, never published.

It lives in the parameter tree of the train state beside the model's own parameters, whose table
(`layout.PARAMETERS`) does not know it: what is published, exported or loaded has none.

Legend: B rows, T tokens, S tokens of this shard, D model width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float

from forebay.models.config import ModelConfig
from forebay.models.layout import Parameter
from forebay.models.params import Params
from forebay.models.sharding import UNSHARDED, Axes, parameter_spec

WEIGHT = Parameter("value_head", "value_head.weight", ("embed",))
BIAS = "value_bias"


def value_head_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the shape of each of the head's arrays by its name in the parameter tree."""
    return {WEIGHT.name: WEIGHT.shape(config), BIAS: ()}


def value_head_specs() -> dict[str, PartitionSpec]:
    """Return how each of them is split over the mesh: the weight as a norm's scale, the bias not at all."""
    return {WEIGHT.name: parameter_spec(WEIGHT), BIAS: PartitionSpec()}


def with_value_head(params: Mapping[str, Any], config: ModelConfig) -> Params:
    """Return a parameter tree with a new head: zeros, so that the first values are all 0.

    A head drawn at random would send noise through the model that it is read from before it knows anything.

    Args:
        params: The model's parameters.
        config: The model.
    """
    shapes = value_head_shapes(config)
    return {**params, **{name: np.zeros(shape, np.float32) for name, shape in shapes.items()}}


def without_value_head(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the model's own part of a tree that is shaped like parameters with a head."""
    return {name: leaf for name, leaf in tree.items() if name not in (WEIGHT.name, BIAS)}


def state_values(
    params: Params, hidden: Float[Array, "S D"], shape: tuple[int, int], axes: Axes = UNSHARDED
) -> Float[Array, "B T"]:
    """Return the value of the state after each position, by position: what is still to be gained there.

    `V = w h + b` in float32. `logprobs.to_targets` gives a token the value of the state it was sampled in.

    Args:
        params: Parameter tree with a value head; inside a `shard_map`, the local shards.
        hidden: [S, D], the normed last hidden state, from `token_states`.
        shape: (B, T) of the whole rows.
        axes: Mesh axes this runs under.

    Returns:
        [B, T] float32, in units of return.
    """
    weight = axes.gather(jnp.asarray(params[WEIGHT.name]), WEIGHT, jnp.float32)
    own = axes.all_tokens(hidden.astype(jnp.float32) @ weight + params[BIAS])
    return axes.whole_rows(own.reshape(shape[0], -1), shared=True)
