"""Rotary frequencies with the stretches of `RopeScaling`: NumPy only.

Legend: K head size.
"""

from __future__ import annotations

import math

import numpy as np

from forebay.models.config import ModelConfig
from forebay.models.layer_kinds import LayerKind
from forebay.models.rope_scaling import RopeScaling

_MODEL = LayerKind()


def inverse_frequencies(config: ModelConfig, kind: LayerKind = _MODEL) -> np.ndarray:
    """Return the angle per position of every channel pair, [K / 2] float32, radians.

    Args:
        config: Gives `head_size`, `rope_theta` and `rope_scaling`.
        kind: The block; one with a base of its own is not stretched.

    References:
        Su et al. 2021, RoFormer, eq. 15; the llama3 stretch as in the Llama 3.1 reference code
        (`apply_scaling`) and `transformers.modeling_rope_utils`; Peng et al. 2023, YaRN, section 3.2.
    """
    exponents = np.arange(0, config.head_size, 2, dtype=np.float64) / config.head_size
    if kind.rope_theta is not None:
        return (kind.rope_theta**-exponents).astype(np.float32)
    frequencies = config.rope_theta**-exponents
    scaling = config.rope_scaling
    if scaling is None:
        return frequencies.astype(np.float32)
    if scaling.kind == "linear":
        return (frequencies / scaling.factor).astype(np.float32)
    kept = _kept_by_yarn(config, scaling) if scaling.kind == "yarn" else _kept_by_llama3(frequencies, scaling)
    return (frequencies * (kept + (1.0 - kept) / scaling.factor)).astype(np.float32)


def attention_factor(config: ModelConfig, kind: LayerKind = _MODEL) -> float:
    """Return what rotated queries and keys are longer by: more than 1 where YaRN stretches.

    Args:
        config: Gives `rope_scaling`.
        kind: The block; one with a base of its own is not stretched.

    References:
        Peng et al. 2023, YaRN, eq. 22.
    """
    scaling = config.rope_scaling
    if scaling is None or scaling.kind != "yarn" or kind.rope_theta is not None:
        return 1.0
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    return 0.1 * math.log(scaling.factor) + 1.0 if scaling.factor > 1 else 1.0


def _kept_by_llama3(frequencies: np.ndarray, scaling: RopeScaling) -> np.ndarray:
    """Return how much of each frequency stays as it is, 0 to 1."""
    turns = scaling.original_max_position * frequencies / (2 * np.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    return np.clip((turns - low) / (high - low), 0.0, 1.0)


def _kept_by_yarn(config: ModelConfig, scaling: RopeScaling) -> np.ndarray:
    """Return the same: a ramp over channels, from the one that turns `beta_fast` times in the old context."""
    size = config.head_size

    def channel(turns: float) -> float:
        wavelength = scaling.original_max_position / (turns * 2 * math.pi)
        return size * math.log(wavelength) / (2 * math.log(config.rope_theta))

    first = max(math.floor(channel(scaling.beta_fast)), 0)
    last = min(math.ceil(channel(scaling.beta_slow)), size - 1)
    ramp = (np.arange(size // 2) - first) / ((last - first) or 0.001)
    return 1.0 - np.clip(ramp, 0.0, 1.0)
