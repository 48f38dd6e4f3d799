"""The feed-forward half of a block: a gated linear unit as a pure function of the normed residual stream.

Legend: B anything, D model width.
"""

from __future__ import annotations

import jax
from jaxtyping import Array, Float

from forebay.models.config import ModelConfig
from forebay.models.lora import with_adapter
from forebay.models.params import Params
from forebay.models.sharding import Axes


def feed_forward(
    h: Float[Array, "*B D"], layer: Params, config: ModelConfig, axes: Axes
) -> Float[Array, "*B D"]:
    """Return what the feed-forward layer adds to the residual stream: `down(act(gate(h)) * up(h))`.

    Args:
        h: Normed residual stream.
        layer: The block's parameters, whole along D.
        config: The model.
        axes: Mesh axes this runs under.

    References:
        Shazeer 2020, GLU Variants Improve Transformer, eq. 6.
    """
    h = axes.enter(h)
    gate, up = (with_adapter(h @ layer[name], h, layer, name) for name in ("gate_proj", "up_proj"))
    wide = activate(gate, config) * up
    return axes.leave(with_adapter(wide @ layer["down_proj"], wide, layer, "down_proj"))


def activate(gate: Float[Array, "*B F"], config: ModelConfig) -> Float[Array, "*B F"]:
    """Apply the model's activation.

    References:
        Hendrycks and Gimpel 2016, Gaussian Error Linear Units, section 2, for the approximation by tanh.
    """
    return jax.nn.silu(gate) if config.activation == "silu" else jax.nn.gelu(gate, approximate=True)
