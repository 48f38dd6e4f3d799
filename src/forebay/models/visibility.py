"""Which tokens of packed rows see one another: the one rule that every kind of attention keeps.

A query sees a key of its own segment that is not later and, with a window, not too far back. Padding neither
sees nor is seen. Blocks of tokens are judged by the ranges of their segment ids and indices: what no token of
a block can see is never computed.

Legend: T tokens, S keys, J blocks of queries, I blocks of keys, C tokens of a block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

_NO_SEGMENT = 2**30


@dataclass(frozen=True, slots=True)
class ScoreRule:
    """How scores are made from products of queries and keys; fixed when a program is compiled.

    Args:
        scale: Factor of the product of a query and a key.
        window: Number of latest tokens that a query sees, itself included; None: all earlier ones.
        softcap: Scores become `softcap * tanh(score / softcap)`; None: they stay.

    References:
        Gemma Team 2024, Gemma 2, section 2 (logit soft-capping, local sliding window).
    """

    scale: float
    window: int | None = None
    softcap: float | None = None

    def score(self, product: Float[Array, "..."]) -> Float[Array, "..."]:
        """Return the scores of products of queries with keys, float32."""
        scaled = product * self.scale
        return scaled if self.softcap is None else self.softcap * jnp.tanh(scaled / self.softcap)

    def product_gradient(
        self, score_gradient: Float[Array, "..."], score: Float[Array, "..."]
    ) -> Float[Array, "..."]:
        """Return the gradient of the products, from that of the scores and the scores themselves."""
        if self.softcap is None:
            return score_gradient * self.scale
        return score_gradient * (1 - jnp.square(score / self.softcap)) * self.scale


class Places(NamedTuple):
    """Where tokens stand.

    Attributes:
        segments: int32, segment ids; 0 = padding.
        order: int32, place in the whole row; within a segment, its order is position order.
    """

    segments: Int[Array, "..."]
    order: Int[Array, "..."]


def sees(queries: Places, keys: Places, window: int | None) -> Bool[Array, "*B T S"]:
    """Return which query (second last axis) sees which key (last axis)."""
    columns = Places(*(value[..., :, None] for value in queries))
    rows = Places(*(value[..., None, :] for value in keys))
    return sees_places(columns, rows, window)


def sees_places(queries: Places, keys: Places, window: int | None) -> Bool[Array, "..."]:
    """Return which query sees which key, of places that broadcast against one another."""
    ahead = queries.order - keys.order
    seen = (queries.segments == keys.segments) & (queries.segments != 0) & (ahead >= 0)
    return seen if window is None else seen & (ahead < window)


def visible_blocks(queries: Places, keys: Places, window: int | None) -> Bool[Array, "J I"]:
    """Return which blocks of queries may see a key in which blocks of keys.

    Never False for a pair of blocks that share something to see. True for no other where segment ids rise
    along the row, as packing makes them.

    Args:
        queries: [J, C].
        keys: [I, C].
        window: Number of latest tokens that a query sees.
    """
    q_lowest, q_highest = _segment_range(queries)
    k_lowest, k_highest = _segment_range(keys)
    visible = (q_lowest[:, None] <= k_highest) & (k_lowest <= q_highest[:, None])
    visible &= queries.order.max(axis=-1)[:, None] >= keys.order.min(axis=-1)
    if window is not None:
        visible &= queries.order.min(axis=-1)[:, None] - keys.order.max(axis=-1) < window
    return visible


def _segment_range(places: Places) -> tuple[Int[Array, " J"], Int[Array, " J"]]:
    lowest = jnp.where(places.segments == 0, _NO_SEGMENT, places.segments).min(axis=-1)
    return lowest, places.segments.max(axis=-1)


def visible_lists(visible: Bool[Array, "*B J I"]) -> tuple[Int[Array, "*B J I"], Int[Array, "*B J"]]:
    """Return for each block the ones that it may see first, in order, and how many they are."""
    order = jnp.argsort(~visible, axis=-1, stable=True).astype(jnp.int32)
    return order, visible.sum(axis=-1, dtype=jnp.int32)
