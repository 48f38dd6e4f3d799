"""A mixture of experts: every token goes to the few experts that its router chooses, and none is dropped.

The router computes in float32 whatever the type of the rest, in training and in decoding alike. Rows are
sorted by expert and multiplied group by group, so that an expert costs as much as it has tokens. Padding
chooses no expert and is counted nowhere. `exchange` sends rows to experts of other shards.

Legend: S tokens of a shard (all tensor shards' once they have entered), X experts per token, E experts, D
    model width, F width of one expert (a tensor shard's part), M rows, L layers.

References:
    Shazeer et al. 2017, Outrageously Large Neural Networks; Fedus et al. 2021, Switch Transformers; Jiang et
    al. 2024, Mixtral of Experts, section 2.1; Qwen Team 2025, Qwen3 Technical Report, section 2.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float, Int

from forebay.models.exchange import exchanged, sorted_by_expert
from forebay.models.experts import Experts
from forebay.models.grouped_matmul import grouped_matmul
from forebay.models.params import Params
from forebay.models.row_moves import Slots, collect, spread
from forebay.models.sharding import Axes

EXPERT_PRODUCTS = "expert_products"
_MATRICES = ("expert_gate", "expert_up", "expert_down")


class Routing(NamedTuple):
    """Where tokens go.

    Attributes:
        experts: [S, X] int32, ids of the experts of every token; E where a token goes to none.
        weights: [S, X] float32, what the output of each is multiplied by; 0 where there is none.
    """

    experts: Int[Array, "S X"]
    weights: Float[Array, "S X"]


class RouterSums(NamedTuple):
    """What the routers of a block did, added up over tokens; float32. A stack of blocks has an axis L first.

    Attributes:
        tokens: [] tokens that were routed.
        assigned: [E] tokens that went to each expert.
        probability: [E] probability of each expert; differentiable.
        squared_log_total: [] square of the logarithm of the softmax's denominator; differentiable.
        entropy: [] entropy of the probabilities, nats.
        spilled: [] rows for which the usual rounds between shards of experts had no room.
    """

    tokens: Float[Array, "*L"]
    assigned: Float[Array, "*L E"]
    probability: Float[Array, "*L E"]
    squared_log_total: Float[Array, "*L"]
    entropy: Float[Array, "*L"]
    spilled: Float[Array, "*L"]


def mixture(
    h: Float[Array, "S D"], layer: Params, experts: Experts, is_real: Bool[Array, " S_all"], axes: Axes
) -> tuple[Float[Array, "S D"], RouterSums]:
    """Return what the experts add to the residual stream, and what the router did.

    Args:
        h: Normed residual stream of this shard's tokens.
        layer: The block's parameters, whole along D; of the experts, this shard's.
        experts: Sizes and rules.
        is_real: Which tokens, of all tensor shards, are no padding.
        axes: Mesh axes this runs under; `expert` splits the experts, `tensor` the width of each.
    """
    routing, sums = route(h, layer["router"], experts, _own_part(is_real, h.shape[0], axes))
    everywhere = Routing(*(axes.enter(part) for part in routing))
    h_all = axes.enter(h)
    matrices = {name: layer[name] for name in _MATRICES}
    if axes.expert is None:
        mixed, spilled = _mixed_here(h_all, everywhere, matrices, experts), jnp.zeros_like(sums.spilled)
    else:
        mixed, spilled = exchanged(
            h_all, everywhere.experts, everywhere.weights, matrices, experts, axes, _expert_outputs
        )
        # All tensor shards exchange the same rows: each counts its share.
        spilled = spilled / (jax.lax.axis_size(axes.tensor) if axes.tensor else 1)
    return axes.leave(mixed.astype(h.dtype)), sums._replace(spilled=spilled)


def route(
    h: Float[Array, "S D"], router: Float[Array, "D E"], experts: Experts, is_real: Bool[Array, " S"]
) -> tuple[Routing, RouterSums]:
    """Choose the experts of every token: the likeliest ones of a softmax over all of them, in float32.

    Args:
        h: Normed residual stream.
        router: One column per expert.
        experts: Sizes and rules.
        is_real: Which tokens are routed and counted.
    """
    logits = jnp.einsum(
        "sd,de->se", h, router, preferred_element_type=jnp.float32, precision=jax.lax.Precision.HIGHEST
    )
    log_total = jax.nn.logsumexp(logits, axis=-1)
    probability = jnp.exp(logits - log_total[:, None])
    weights, ids = jax.lax.top_k(probability, experts.per_token)
    if experts.renormalize:
        weights = weights / weights.sum(axis=-1, keepdims=True)
    entropy = log_total - (probability * logits).sum(axis=-1)
    ids = jnp.where(is_real[:, None], ids, experts.number)
    sums = RouterSums(
        tokens=is_real.sum(dtype=jnp.float32),
        assigned=(ids[..., None] == jnp.arange(experts.number)).sum(axis=(0, 1), dtype=jnp.float32),
        probability=jnp.where(is_real[:, None], probability, 0.0).sum(axis=0),
        squared_log_total=jnp.where(is_real, log_total**2, 0.0).sum(),
        entropy=jax.lax.stop_gradient(jnp.where(is_real, entropy, 0.0).sum()),
        spilled=jnp.zeros_like(log_total, shape=()),
    )
    return Routing(ids, jnp.where(is_real[:, None], weights, 0.0)), sums


def _mixed_here(
    h: Float[Array, "S D"], routing: Routing, matrices: Params, experts: Experts
) -> Float[Array, "S D"]:
    """Mix the outputs of experts that are all on this shard; float32."""
    rows = sorted_by_expert(routing.experts, experts.number)
    is_placed = routing.experts < experts.number
    slots = Slots(
        rows.order, is_placed.reshape(-1)[rows.order], rows.ranks.reshape(is_placed.shape), is_placed
    )
    return collect(_expert_outputs(matrices, spread(h, slots), rows.sizes), routing.weights, slots)


def _expert_outputs(
    matrices: Params, rows: Float[Array, "M D"], sizes: Int[Array, " E"]
) -> Float[Array, "M D"]:
    """Apply to every row the expert of its group: a gated linear unit, as in a dense block."""
    gate, up = (_product(rows, matrices[name], sizes) for name in ("expert_gate", "expert_up"))
    return _product(jax.nn.silu(gate) * up, matrices["expert_down"], sizes)


def _product(rows: Array, matrices: Array, sizes: Array) -> Array:
    return checkpoint_name(grouped_matmul(rows, matrices, sizes), EXPERT_PRODUCTS)


def _own_part(is_real: Bool[Array, " S_all"], num_own: int, axes: Axes) -> Bool[Array, " S"]:
    if axes.tensor is None:
        return is_real
    return jax.lax.dynamic_slice_in_dim(is_real, jax.lax.axis_index(axes.tensor) * num_own, num_own)
