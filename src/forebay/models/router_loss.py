"""What routers of experts are trained by beyond the objective, and what they are measured by.

The load-balancing loss of a micro-batch is E sum_e f_e P_e: f_e is the number of tokens that went to expert
e, as a fraction of the tokens of all blocks, and P_e its mean probability. It is a product of two means over
the micro-batch, so it does not add up over parts of one as an objective does. What is kept:

- over the shards of a mesh, f_e is that of all of them together: loss and gradients equal a single device's;
- over micro-batches, each counts by its share of the batch's tokens. Cutting a batch otherwise changes f_e,
  and with it this loss; with micro-batches that are alike it stays the same.

The z-loss, the mean square of the softmax's log-denominator, adds up and depends on neither.

Legend: L layers, E experts.

References:
    Fedus et al. 2021, Switch Transformers, eq. 4-6, for the first, in the form that transformers gives it
    (`load_balancing_loss_func`: all blocks together, padding left out); Qiu et al. 2025, Demons in the
    Detail, for counting over all shards; Zoph et al. 2022, ST-MoE, eq. 5, for the second.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from forebay.models.experts import Experts
from forebay.models.mesh_axes import ROW_AXES
from forebay.models.moe import RouterSums
from forebay.models.settings import ModelSettings
from forebay.models.sharding import Axes


class RouterLoss(NamedTuple):
    """Weights of the losses of routers; 0 leaves one out.

    Attributes:
        balance: Of the load-balancing loss.
        z: Of the z-loss.
    """

    balance: float = 0.0
    z: float = 0.0

    @property
    def is_on(self) -> bool:
        """Whether there is anything to add."""
        return bool(self.balance or self.z)


NO_ROUTER_LOSS: Final = RouterLoss()


def router_loss_weights(settings: ModelSettings, pretrained: Experts | None = None) -> RouterLoss:
    """Return the weights that settings ask for.

    Args:
        settings: Of the model.
        pretrained: In supervised training, where its own weight applies unless the settings have one; None
            in reinforcement learning, whose gradient nothing should balance against: published trainers of
            mixtures leave the loss out there.
    """
    balance = settings.router_aux_coef
    if balance is None:
        balance = 0.0 if pretrained is None else pretrained.balance_coefficient
    return RouterLoss(balance, settings.router_z_coef)


def router_loss(
    sums: RouterSums, weights: RouterLoss, num_tokens: Float[Array, ""], axes: Axes
) -> Float[Array, ""]:
    """Return this shard's part of a micro-batch's loss of routers.

    Args:
        sums: Of this shard's tokens, all blocks.
        weights: Of the two losses.
        num_tokens: Tokens of the whole batch that are no padding.
        axes: Mesh axes this runs under.

    Returns:
        float32; the parts of shards with different rows add up to the loss.
    """
    num_layers, num_experts = sums.assigned.shape
    whole = jax.lax.stop_gradient(sum_shards(sums, axes))
    fraction = whole.assigned.sum(axis=0) / jnp.maximum(whole.tokens.sum(), 1.0)
    balance = num_experts * (fraction * sums.probability.sum(axis=0)).sum() / num_layers
    z = sums.squared_log_total.sum() / num_layers
    own = (weights.balance * balance + weights.z * z) / num_tokens
    within_rows = tuple(name for name in axes.names if name not in ROW_AXES)
    return jax.lax.psum(own, within_rows) if within_rows else own


def sum_shards(sums: RouterSums, axes: Axes) -> RouterSums:
    """Add up what the routers of all shards did."""
    return jax.tree.map(lambda value: jax.lax.psum(value, axes.names), sums) if axes.names else sums


def router_measures(sums: RouterSums) -> dict[str, float]:
    """Return what is reported of the routers of a whole batch.

    Args:
        sums: Of all blocks, host arrays.

    Returns:
        `balance_loss`, the number of experts of a token at best; `imbalance`, how many times the mean the
        busiest expert of a block has, mean over blocks; `imbalance_max`, of the worst block; `entropy` of a
        token's probabilities, nats; `spilled`, the fraction of rows that took further rounds of the exchange.
    """
    host: Any = jax.tree.map(lambda value: np.asarray(value, np.float64), sums)
    num_routed = max(host.tokens.sum(), 1.0)
    num_rows = max(host.assigned.sum(), 1.0)
    means = np.maximum(host.assigned.mean(axis=1), 1e-9)
    imbalance = host.assigned.max(axis=1) / means
    fraction, probability = (value.sum(axis=0) / num_routed for value in (host.assigned, host.probability))
    return {
        "balance_loss": float(host.assigned.shape[1] * (fraction * probability).sum()),
        "imbalance": float(imbalance.mean()),
        "imbalance_max": float(imbalance.max()),
        "entropy": float(host.entropy.sum() / num_routed),
        "spilled": float(host.spilled.sum() / num_rows),
    }
