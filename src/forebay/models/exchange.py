"""Rows to the shards of their experts and back, by all-to-all in rounds: no row is dropped.

A shard knows only while it runs how many of its rows go to which other one, and an exchange has a fixed
size. So each round has room for `ROOM` times as many rows per shard as there would be if all shards had as
many; what is left over goes in further rounds, which run only if any shard needs them. Balanced experts need
one round; in the worst case, everything to one shard, rounds take longer but no more memory.

Legend: S tokens of a shard, X experts per token, E experts, D model width, P shards of experts, C rows that a
    round takes from one shard to another.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from forebay.models.sharding import Axes

ROOM = 1.5
_ROW_MULTIPLE = 8
# (rows [M, D] sorted by expert, rows of each of the shard's experts) -> outputs [M, D].
Outputs = Callable[[Array, Array], Array]


class _Sorted(NamedTuple):
    """A shard's rows, one per token and expert, sorted by expert.

    Attributes:
        order: [S X] int32, index of each row among all; that of its token is `order // X`.
        ends: [E] int32, where the rows of each expert end.
        first: [P] int32, where the rows for each shard begin.
        last: [P] int32, where they end.
    """

    order: Array
    ends: Array
    first: Array
    last: Array


def exchanged(
    h: Float[Array, "S D"],
    experts: Int[Array, "S X"],
    weights: Float[Array, "S X"],
    num_experts: int,
    axes: Axes,
    outputs: Outputs,
    room: float = ROOM,
) -> tuple[Float[Array, "S D"], Float[Array, ""]]:
    """Mix the outputs of experts that are split over the expert axis, in equal consecutive parts.

    Args:
        h: Rows to send.
        experts: int32, ids of the experts of every token; E or more where there is none.
        weights: float32, what each output is multiplied by.
        num_experts: E, of all shards.
        axes: Mesh axes this runs under; `expert` is one of them.
        outputs: Applies this shard's experts.
        room: Rows that a round has room for, as a multiple of what even shards would send.

    Returns:
        [S, D] float32, and how many of this shard's rows the first round had no room for, float32.
    """
    axis = axes.expert
    assert axis is not None
    num_shards = jax.lax.axis_size(axis)
    num_tokens, per_token = experts.shape
    most = num_tokens * min(per_token, num_experts // num_shards)
    even = num_tokens * per_token / num_shards
    capacity = min(math.ceil(even * room / _ROW_MULTIPLE) * _ROW_MULTIPLE, most)
    rows = _sort(experts, num_experts, num_shards)
    waiting = rows.last - rows.first

    def sent(number: Array | int) -> Array:
        return _round(h, weights.reshape(-1), rows, number, capacity, axis, outputs)

    mixed = sent(0)
    num_rounds = -(-most // capacity)
    if num_rounds > 1:
        # The same for all shards of the mesh: none enters an exchange that another one skips.
        needed = jax.lax.pmax(-(-waiting.max() // capacity), axes.names)

        @jax.checkpoint
        def sent_if_needed(number: Array) -> Array:
            return jax.lax.cond(number < needed, sent, lambda _: jnp.zeros_like(mixed), number)

        mixed, _ = jax.lax.scan(
            lambda total, number: (total + sent_if_needed(number), None), mixed, jnp.arange(1, num_rounds)
        )
    return mixed, jnp.maximum(waiting - capacity, 0).sum().astype(jnp.float32)


def _sort(experts: Int[Array, "S X"], num_experts: int, num_shards: int) -> _Sorted:
    ids = experts.reshape(-1)
    sizes = jnp.zeros_like(ids, shape=num_experts).at[ids].add(1, mode="drop")
    ends = jnp.cumsum(sizes)
    last = ends.reshape(num_shards, -1)[:, -1]
    first = jnp.concatenate([jnp.zeros_like(last[:1]), last[:-1]])
    return _Sorted(jnp.argsort(ids), ends, first, last)


def _round(
    h: Array, weights: Array, rows: _Sorted, number: Array | int, capacity: int, axis: str, outputs: Outputs
) -> Float[Array, "S D"]:
    """Send the rows of one round, apply the experts to those that arrive, and mix what comes back."""
    num_shards = rows.first.shape[0]
    per_token = rows.order.shape[0] // h.shape[0]
    begin = rows.first + number * capacity
    places = begin[:, None] + jnp.arange(capacity)
    is_sent = places < rows.last[:, None]
    sent = jnp.where(is_sent, rows.order[jnp.minimum(places, rows.order.shape[0] - 1)], 0)
    tokens = sent // per_token
    # Of each shard's experts, how many of these rows are theirs.
    ends = rows.ends.reshape(num_shards, -1)
    begins = jnp.concatenate([rows.first[:, None], ends[:, :-1]], axis=1)
    stop = jnp.minimum(begin + capacity, rows.last)[:, None]
    counts = jnp.clip(ends, begin[:, None], stop) - jnp.clip(begins, begin[:, None], stop)

    arrived = _swap(jnp.where(is_sent[..., None], h[tokens], 0), axis)
    arrived_counts = _swap(counts, axis)
    ids = (jnp.arange(capacity)[:, None] >= jnp.cumsum(arrived_counts, axis=1)[:, None]).sum(axis=-1)
    order = jnp.argsort(ids.reshape(-1))
    flat = arrived.reshape(-1, h.shape[1])
    outputs_sorted = outputs(flat[order], arrived_counts.sum(axis=0))
    back = jnp.zeros_like(outputs_sorted).at[order].set(outputs_sorted, unique_indices=True)
    returned = _swap(back.reshape(arrived.shape), axis)

    share = jnp.where(is_sent, weights[sent], 0.0)[..., None]
    mixed = jnp.zeros_like(h, dtype=jnp.float32)
    return mixed.at[tokens].add(share * returned.astype(jnp.float32))


def _swap(parts: Array, axis: str) -> Array:
    """Give part i to shard i, and get one from each."""
    return jax.lax.all_to_all(parts, axis, split_axis=0, concat_axis=0)
