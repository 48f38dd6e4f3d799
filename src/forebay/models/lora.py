"""LoRA: adapters beside frozen projections, in a tree of their own; the tree that the model runs with.

    {"layers": {"q_proj_a": [L, D, R], "q_proj_b": [L, R, H, K], ...}}

They are split over the mesh as their projection is, by the same table of axes: what leads out of the residual
stream is split over `fsdp` along it, what leads into or out of heads and the feed-forward width over `tensor`
there; the rank is never split. `lora_layout.ADAPTERS` is the full list.

Legend: L layers, D model width, H heads, K head size, R rank.
"""

from __future__ import annotations

import math
from typing import Any, Final

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array

from forebay.models.config import ModelConfig
from forebay.models.layout import place
from forebay.models.lora_layout import ADAPTERS, adapter_shape, adapters_of
from forebay.models.params import Params
from forebay.models.settings import LoraSettings
from forebay.models.sharding import parameter_spec

ADAPTED: Final = "adapted"


def with_adapter(product: Array, x: Array, layer: Params, name: str) -> Array:
    """Add what the adapter of a projection adds to its product; without one, return the product itself.

    Args:
        product: `x W`, [*B, *outputs].
        x: [*B, *inputs]; under a mesh, what the projection itself was given.
        layer: The block's parameters, whole along D; the scale is in B already.
        name: Of the projection.
    """
    if f"{name}_a" not in layer:
        return product
    a, b = layer[f"{name}_a"], layer[f"{name}_b"]
    inner = jnp.tensordot(x, a, axes=a.ndim - 1)
    # Named, so that the sum is kept for the backward pass and not both of its parts.
    return checkpoint_name(product + jnp.tensordot(inner, b, axes=1), ADAPTED)


def with_adapters(frozen: Params, trained: Params, lora: LoraSettings | None) -> Params:
    """Return the tree that the model runs with: frozen weights, and beside them what is trained.

    Args:
        frozen: The model's parameters; nothing if it is trained itself.
        trained: Adapters, and a value head if there is one; or the model's parameters.
        lora: Gives the scale, which goes into B while that is float32; None: `trained` is all there is.
    """
    if lora is None:
        return trained
    layers = {
        name: lora.scale * leaf if name.endswith("_b") else leaf for name, leaf in trained["layers"].items()
    }
    return {**frozen, **trained, "layers": {**frozen["layers"], **layers}}


def init_adapters(config: ModelConfig, lora: LoraSettings, key: Array) -> Params:
    """Draw new adapters: A uniform within 1 / sqrt(inputs), B zeros, so that they add nothing yet.

    Args:
        config: The model.
        lora: Rank and targets.
        key: A JAX random key; what an adapter is drawn from does not depend on which others there are.

    References:
        He et al. 2015, Delving Deep into Rectifiers, in PEFT's form (`kaiming_uniform_` with a = sqrt(5)).
    """
    tree: Params = {}
    for row in adapters_of(lora):
        shape = adapter_shape(row, config, lora)
        if row.name.endswith("_b"):
            place(tree, row, jnp.zeros(shape, jnp.float32))
            continue
        bound = math.prod(shape[1:-1]) ** -0.5
        own = jax.random.fold_in(key, ADAPTERS.index(row))
        place(tree, row, jax.random.uniform(own, shape, jnp.float32, -bound, bound))
    return tree


def adapter_specs(lora: LoraSettings) -> dict[str, Any]:
    """Return the partition specs of adapters, shaped like their tree."""
    specs: dict[str, Any] = {}
    for row in adapters_of(lora):
        place(specs, row, parameter_spec(row))
    return specs


def abstract_adapters(config: ModelConfig, lora: LoraSettings) -> Params:
    """Return shapes and types of adapters, shaped like their tree."""
    tree: Params = {}
    for row in adapters_of(lora):
        place(tree, row, jax.ShapeDtypeStruct(adapter_shape(row, config, lora), jnp.float32))
    return tree
