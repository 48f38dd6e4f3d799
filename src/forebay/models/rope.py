"""Rotary position embedding.

Legend: B rows, T tokens, H heads, K head size.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from forebay.models.config import ModelConfig
from forebay.models.frequencies import attention_factor, inverse_frequencies
from forebay.models.layer_kinds import LayerKind

_MODEL = LayerKind()


class Rotation(NamedTuple):
    """Cosine and sine of every position's angles, computed once per forward pass and used by every block."""

    cos: Float[Array, "*B 1 half"]
    sin: Float[Array, "*B 1 half"]


def rotation(config: ModelConfig, positions: Int[Array, "*B"], kind: LayerKind = _MODEL) -> Rotation:
    """Compute the rotation of every position.

    Args:
        config: The model.
        positions: [...] int32, position within the token's own sequence.
        kind: The block.
    """
    angles = positions[..., None, None].astype(jnp.float32) * inverse_frequencies(config, kind)
    factor = attention_factor(config, kind)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    return Rotation(cos, sin) if factor == 1.0 else Rotation(cos * factor, sin * factor)


def rotations(config: ModelConfig, positions: Int[Array, "*B"]) -> dict[LayerKind, Rotation]:
    """Compute the rotation of every position for each kind of block; kinds with the same base share it.

    Args:
        config: The model.
        positions: [...] int32, position within the token's own sequence.
    """
    by_base = {kind.rope_theta: kind for kind in config.pattern}
    turns = {base: rotation(config, positions, kind) for base, kind in by_base.items()}
    return {kind: turns[kind.rope_theta] for kind in config.pattern}


def rotate(heads: Float[Array, "*B H K"], by: Rotation) -> Float[Array, "*B H K"]:
    """Rotate channel k with channel k + K/2 (the pairing of Hugging Face checkpoints)."""
    first, second = jnp.split(heads.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([first * by.cos - second * by.sin, second * by.cos + first * by.sin], axis=-1)
    return turned.astype(heads.dtype)
