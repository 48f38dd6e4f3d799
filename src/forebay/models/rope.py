"""Rotary position embedding, with the frequency stretches of `RopeScaling`.

Legend: B rows, T tokens, H heads, K head size.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from forebay.models.config import ModelConfig, RopeScaling


class Rotation(NamedTuple):
    """Cosine and sine of every position's angles, computed once per forward pass and used by every block."""

    cos: Float[Array, "*B 1 half"]
    sin: Float[Array, "*B 1 half"]


def inverse_frequencies(config: ModelConfig) -> np.ndarray:
    """Return the angle per position of every channel pair, [K / 2] float32, radians.

    Args:
        config: Gives `head_size`, `rope_theta` and `rope_scaling`.

    References:
        Su et al. 2021, RoFormer, eq. 15; the llama3 stretch as in the Llama 3.1 reference code
        (`apply_scaling`) and `transformers.modeling_rope_utils`.
    """
    exponents = np.arange(0, config.head_size, 2, dtype=np.float64) / config.head_size
    frequencies = config.rope_theta**-exponents
    scaling = config.rope_scaling
    if scaling is None:
        return frequencies.astype(np.float32)
    if scaling.kind == "linear":
        return (frequencies / scaling.factor).astype(np.float32)
    return _llama3(frequencies, scaling).astype(np.float32)


def rotation(config: ModelConfig, positions: Int[Array, "*B"]) -> Rotation:
    """Compute the rotation of every position.

    Args:
        config: The model.
        positions: [...] int32, position within the token's own sequence.
    """
    angles = positions[..., None, None].astype(jnp.float32) * inverse_frequencies(config)
    return Rotation(jnp.cos(angles), jnp.sin(angles))


def rotate(heads: Float[Array, "*B H K"], by: Rotation) -> Float[Array, "*B H K"]:
    """Rotate channel k with channel k + K/2 (the pairing of Hugging Face checkpoints)."""
    first, second = jnp.split(heads.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([first * by.cos - second * by.sin, second * by.cos + first * by.sin], axis=-1)
    return turned.astype(heads.dtype)


def _llama3(frequencies: np.ndarray, scaling: RopeScaling) -> np.ndarray:
    turns = scaling.original_max_position * frequencies / (2 * np.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return frequencies * (kept + (1.0 - kept) / scaling.factor)
