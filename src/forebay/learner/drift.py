"""The price of drift: how far the policy may move away from the data that is under way, and what for.

Data that is S versions old says nothing about the S steps since it was sampled. A learning rate that is fine
on fresh data can lead far away in those steps, and further before anything comes back: what does harm is not
the gradient of a batch but the sum of steps that nobody has checked. Each batch that comes back is one: it
was sampled before those steps and took no part in them, so that its advantages say what they were worth.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from forebay.objectives.inputs import LossSums

# Five steps are looked at together: one batch says little about what was gained.
_DECAY = 0.8


class DriftState(NamedTuple):
    """What the steps before have shown; float32 scalars.

    Attributes:
        gain: Average gain per token, reward.
        drift: Average divergence from the policy that sampled, nats a token.
        scale: What the last learning rate was multiplied with.
    """

    gain: Float[Array, ""]
    drift: Float[Array, ""]
    scale: Float[Array, ""]


def price_drift(price: float, free_nats: float) -> optax.GradientTransformationExtraArgs:
    """Lower the learning rate where the policy drifts from its data and nothing is gained by it.

    The rate is multiplied with `min(1, (gain / price + free) / drift)`. Gain is the mean of
    `(current / behavior - 1) A`, what the reward has grown by since the batch was sampled, to first order;
    drift is k3, an estimate of KL(behavior || current), nats a token; both averaged over about five steps.
    What is known of the reward's growth, at least `gain - C drift`, rises linearly and falls quadratically
    with the length of the steps: the best length is proportional to gain / drift. On fresh data nothing
    drifts, and the factor is 1. With several epochs a batch flatters the steps that it took part in.

    Args:
        price: Reward that a nat of drift has to bring, per token.
        free_nats: Drift that is free, nats a token.

    Returns:
        The last part of an optimizer. Its `update` is told the sums of the step as `sums`; without them it
        changes nothing.

    References:
        Schulman et al. 2015, Trust Region Policy Optimization, theorem 1 (the bound, after Kakade and
        Langford 2002), https://arxiv.org/abs/1502.05477; Song et al. 2026, Staleness-Learning Rate Scaling
        Laws for Asynchronous RLHF (a stable rate falls with the lag), https://arxiv.org/abs/2607.01083. The
        rule itself is this package's own.
    """

    def init(params: Any) -> DriftState:
        return DriftState(jnp.zeros(()), jnp.zeros(()), jnp.ones(()))

    def update(
        updates: Any, state: DriftState, params: Any = None, *, sums: LossSums | None = None, **_: Any
    ) -> tuple[Any, DriftState]:
        if sums is None:
            return updates, state
        tokens = jnp.maximum(sums.tokens, 1.0)
        gain = _DECAY * state.gain + (1.0 - _DECAY) * sums.gain_sum / tokens
        drift = _DECAY * state.drift + (1.0 - _DECAY) * sums.k3_sum / tokens
        allowed = jnp.maximum(gain, 0.0) / price + free_nats
        scale = jnp.minimum(1.0, allowed / jnp.maximum(drift, free_nats))
        return jax.tree.map(lambda one: one * scale, updates), DriftState(gain, drift, scale)

    return optax.GradientTransformationExtraArgs(init, update)


def rate_scale(opt_state: optax.OptState) -> Float[Array, ""]:
    """Return what the last learning rate was multiplied with; 1 for an optimizer without a price of drift."""
    for state in jax.tree.leaves(opt_state, is_leaf=lambda one: isinstance(one, DriftState)):
        if isinstance(state, DriftState):
            return state.scale
    return jnp.ones(())
