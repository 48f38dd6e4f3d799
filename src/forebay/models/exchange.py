"""Rows to the shards of their experts and back, by all-to-all in rounds: no row is dropped.

A shard knows only while it runs how many of its rows go to which other one, and an exchange has a fixed
size. So it is done in rounds, of which even shards need two, and as many more run as any shard needs. Small
rounds need little memory, and what uneven shards waste is a part of one; in the worst case, everything to one
shard, there are more rounds but no more memory.

The backward pass does each round again, and keeps nothing of it but what came in.

Legend: S tokens of a shard, X experts per token, E experts, D model width, P shards of experts, C rows that a
    round takes from one shard to another.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from forebay.models.experts import Experts
from forebay.models.row_moves import Slots, collect, permuted, spread
from forebay.models.sharding import Axes

# (matrices, rows [M, D] sorted by expert, rows of each of the shard's experts) -> outputs [M, D].
Outputs = Callable[[Any, Array, Array], Array]


class Sorted(NamedTuple):
    """A shard's rows, one per token and expert, sorted by expert.

    Attributes:
        order: [S X] int32, index of each row among all.
        ranks: [S X] int32, where each row comes.
        sizes: [E] int32, rows of each expert.
    """

    order: Int[Array, " SX"]
    ranks: Int[Array, " SX"]
    sizes: Int[Array, " E"]


class _Way(NamedTuple):
    """How rows travel; the same for all rounds.

    Attributes:
        axis: Mesh axis of the experts.
        capacity: C.
        outputs: Applies a shard's experts.
    """

    axis: str
    capacity: int
    outputs: Outputs


class _Cut(NamedTuple):
    """Which rows go to which shard.

    Attributes:
        rows: This shard's.
        experts: [S, X] int32.
        ends: [P, E / P] int32, where the rows of each expert end.
        first: [P] int32, where the rows for each shard begin.
        needed: [] int32, how many rounds it takes, the same on all shards of the mesh.
    """

    rows: Sorted
    experts: Int[Array, "S X"]
    ends: Int[Array, "P E_own"]
    first: Int[Array, " P"]
    needed: Int[Array, ""]


def sorted_by_expert(experts: Int[Array, "S X"], num_experts: int) -> Sorted:
    """Sort the rows of a shard; those of no expert come last.

    Args:
        experts: int32, ids of the experts of every token; E or more where there is none.
        num_experts: E.
    """
    ids = experts.reshape(-1)
    order = jnp.argsort(ids)
    sizes = (ids[:, None] == jnp.arange(num_experts)).sum(axis=0, dtype=jnp.int32)
    return Sorted(order, jnp.argsort(order), sizes)


def exchanged(
    h: Float[Array, "S D"],
    experts: Int[Array, "S X"],
    weights: Float[Array, "S X"],
    matrices: Any,
    sizes: Experts,
    axes: Axes,
    outputs: Outputs,
) -> tuple[Float[Array, "S D"], Float[Array, ""]]:
    """Mix the outputs of experts that are split over the expert axis, in equal consecutive parts.

    Args:
        h: Rows to send.
        experts: int32, ids of the experts of every token; E or more where there is none.
        weights: float32, what each output is multiplied by.
        matrices: This shard's experts, a tree of arrays.
        sizes: Sizes of the mixture.
        axes: Mesh axes this runs under; `expert` is one of them.
        outputs: Applies this shard's experts.

    Returns:
        [S, D] float32, and how many of this shard's rows the usual rounds had no room for, float32.
    """
    assert axes.expert is not None
    num_shards = jax.lax.axis_size(axes.expert)
    capacity = sizes.round_rows(h.shape[0], num_shards)
    rows = sorted_by_expert(experts, sizes.number)
    ends = jnp.cumsum(rows.sizes).reshape(num_shards, -1)
    first = jnp.concatenate([jnp.zeros_like(ends[:1, -1]), ends[:-1, -1]])
    waiting = ends[:, -1] - first
    # The same for all shards of the mesh: none enters an exchange that another one skips.
    needed = jax.lax.pmax(-(-waiting.max() // capacity), axes.names)
    way = _Way(axes.expert, capacity, outputs)
    mixed = _all_rounds(way, h, weights, matrices, _Cut(rows, experts, ends, first, needed))
    usual = capacity * sizes.usual_rounds(h.shape[0], num_shards)
    return mixed, jnp.maximum(waiting - usual, 0).sum().astype(jnp.float32)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _all_rounds(way: _Way, h: Array, weights: Array, matrices: Any, cut: _Cut) -> Float[Array, "S D"]:
    return _added_up(
        lambda number: _round(way, h, weights, matrices, cut, number),
        jnp.zeros_like(h, dtype=jnp.float32),
        cut.needed,
    )


def _all_rounds_forward(way: _Way, *inputs: Any) -> tuple[Array, Any]:
    return _all_rounds(way, *inputs), inputs


def _all_rounds_backward(way: _Way, inputs: Any, d_mixed: Array) -> tuple[Any, ...]:
    *moving, cut = inputs

    def mixed(number: Array, h: Array, weights: Array, matrices: Any) -> Array:
        return _round(way, h, weights, matrices, cut, number)

    def gradients(number: Array) -> Any:
        return jax.vjp(functools.partial(mixed, number), *moving)[1](d_mixed)

    return *_added_up(gradients, jax.tree.map(jnp.zeros_like, tuple(moving)), cut.needed), None


_all_rounds.defvjp(_all_rounds_forward, _all_rounds_backward)


def _added_up(of_round: Callable[[Array], Any], zeros: Any, num_rounds: Array) -> Any:
    def add(state: tuple[Array, Any]) -> tuple[Array, Any]:
        number, total = state
        return number + 1, jax.tree.map(jnp.add, total, of_round(number))

    return jax.lax.while_loop(lambda state: state[0] < num_rounds, add, (jnp.int32(0), zeros))[1]


def _round(
    way: _Way, h: Array, weights: Array, matrices: Any, cut: _Cut, number: Array
) -> Float[Array, "S D"]:
    """Send the rows of one round, apply the experts to those that arrive, and mix what comes back."""
    slots, counts = _sent_in(way, cut, number)
    sent = spread(h, slots)
    arrived = _swap(sent.reshape(-1, way.capacity, h.shape[1]), way.axis)
    arrived_counts = _swap(counts, way.axis)
    order, inverse = _merged(arrived_counts, way.capacity)
    outputs = way.outputs(
        matrices, permuted(arrived.reshape(sent.shape), order, inverse), arrived_counts.sum(axis=0)
    )
    returned = _swap(permuted(outputs, inverse, order).reshape(arrived.shape), way.axis)
    return collect(returned.reshape(sent.shape), weights, slots)


def _sent_in(way: _Way, cut: _Cut, number: Array) -> tuple[Slots, Int[Array, "P E_own"]]:
    """Return which rows a round sends, and how many of them are for each expert."""
    capacity, num_own = way.capacity, cut.ends.shape[1]
    begin = cut.first + number * capacity
    stop = jnp.clip(cut.ends[:, -1], begin, begin + capacity)
    places = begin[:, None] + jnp.arange(capacity)
    is_used = places < stop[:, None]
    choices = cut.rows.order[jnp.where(is_used, places, 0)]

    shard = jnp.minimum(cut.experts // num_own, begin.shape[0] - 1)
    place = cut.rows.ranks.reshape(shard.shape) - begin[shard]
    is_placed = (place >= 0) & (place < capacity) & (cut.experts < cut.ends.size)
    slots = Slots(
        choices.reshape(-1),
        is_used.reshape(-1),
        jnp.where(is_placed, shard * capacity + place, 0),
        is_placed,
    )
    begins = jnp.concatenate([cut.first[:, None], cut.ends[:, :-1]], axis=1)
    bounded = [jnp.clip(edges, begin[:, None], stop[:, None]) for edges in (begins, cut.ends)]
    return slots, bounded[1] - bounded[0]


def _merged(counts: Int[Array, "P E_own"], capacity: int) -> tuple[Int[Array, " PC"], Int[Array, " PC"]]:
    """Return the order that brings the rows of each expert together, and its inverse; no sort is needed.

    Args:
        counts: Rows of each expert that came from each shard; each shard's lie sorted, from its first slot.
        capacity: Slots of each shard.
    """
    # What is in no slot counts as rows of one expert more, which come last.
    counts = jnp.concatenate([counts, capacity - counts.sum(axis=1, keepdims=True)], axis=1)
    begin = jnp.cumsum(counts, axis=1) - counts
    by_expert = counts.T.reshape(-1)
    first = (jnp.cumsum(by_expert) - by_expert).reshape(counts.shape[::-1]).T
    inverse = _moved(jnp.arange(capacity), begin, counts, first - begin)
    shards = jnp.arange(counts.shape[0])[:, None] * capacity
    flat = (value.reshape(1, -1) for value in (first, counts, shards + begin - first))
    return _moved(jnp.arange(inverse.size), *flat).reshape(-1), inverse.reshape(-1)


def _moved(
    places: Int[Array, " N"], begin: Int[Array, "P R"], sizes: Int[Array, "P R"], shift: Int[Array, "P R"]
) -> Int[Array, "P N"]:
    """Move places by the shift of the run that each is in."""
    after = places[:, None] - begin[:, None]
    return places + jnp.where((after >= 0) & (after < sizes[:, None]), shift[:, None], 0).sum(axis=-1)


def _swap(parts: Array, axis: str) -> Array:
    """Give part i to shard i, and get one from each."""
    return jax.lax.all_to_all(parts, axis, split_axis=0, concat_axis=0)
