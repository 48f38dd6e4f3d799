"""What a critic's values are trained by. Legend: B rows, T tokens."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from forebay.objectives.shapes import same_shape


def value_errors(
    values: Float[Array, "B T"],
    old_values: Float[Array, "B T"],
    targets: Float[Array, "B T"],
    *,
    clip: float | None = None,
    huber: float | None = None,
) -> Float[Array, "B T"]:
    """Return each token's value loss: half the squared distance to the target.

    `max(h(V - target), h(V_old + clip(V - V_old, -c, c) - target))`, `h(e) = e^2 / 2`. With a clip, a value
    that has already moved by c towards its target within a batch is not moved further. With `huber` d, h
    grows linearly beyond d: `d (|e| - d / 2)`.

    Args:
        values: [B, T] float32, under the critic being trained; gradients flow through it.
        old_values: [B, T] float32, at the start of the update; not looked at without a clip.
        targets: [B, T] float32.
        clip: How far a value may move within a batch; None for no bound.
        huber: Error from which the loss is linear; None for never.

    Returns:
        [B, T] float32.

    References:
        Schulman et al. 2017, Proximal Policy Optimization Algorithms, equation 9,
        https://arxiv.org/abs/1707.06347; the clip as in its published code, and Huang et al. 2022, The 37
        Implementation Details of Proximal Policy Optimization, detail 9; Huber 1964, Robust Estimation of a
        Location Parameter.
    """
    same_shape(values=values, old_values=old_values, targets=targets)
    losses = _distance(values - targets, huber)
    if clip is None:
        return losses
    near = old_values + jnp.clip(values - old_values, -clip, clip)
    return jnp.maximum(losses, _distance(near - targets, huber))


def _distance(errors: Float[Array, "B T"], huber: float | None) -> Float[Array, "B T"]:
    if huber is None:
        return 0.5 * errors**2
    # Only what lies within d is squared, so that no gradient overflows.
    within = jnp.clip(errors, -huber, huber)
    return within * (errors - 0.5 * within)
