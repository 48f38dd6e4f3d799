from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from forebay.models.visibility import Places, ScoreRule, sees, visible_blocks, visible_lists
from tests.unit.models import tiny

BLOCK = 4


def in_blocks(places: Places) -> Places:
    return Places(*(value.reshape(-1, BLOCK) for value in places))


@functools.partial(jax.jit, static_argnums=1)
def seen_and_visible(places: Places, window: int | None) -> tuple[jax.Array, jax.Array]:
    pairs = sees(places, places, window).reshape(6, BLOCK, 6, BLOCK).any(axis=(1, 3))
    return pairs, visible_blocks(in_blocks(places), in_blocks(places), window)


@pytest.mark.parametrize("window", [None, 1, 6])
@pytest.mark.parametrize("lengths", [[3, 9, 1, 7], [24], [4, 4, 4], [1] * 20, []])
def test_blocks_are_visible_exactly_where_a_token_sees_another(
    lengths: list[int], window: int | None
) -> None:
    places = Places(tiny.packed_row(lengths, 24)[0], np.arange(24, dtype=np.int32))
    seen, visible = (np.asarray(value) for value in seen_and_visible(places, window))
    assert not (seen & ~visible).any()
    # Of a window, the corner of a block can be near enough to that of another whose tokens are all too far.
    assert window == 6 or (visible == seen).all()


def test_visible_blocks_of_chunks_from_both_ends_of_a_row() -> None:
    segments = jnp.ones(16, jnp.int32)
    mine = Places(segments[:8], jnp.asarray([0, 1, 2, 3, 12, 13, 14, 15]))
    others = Places(segments[:8], jnp.asarray([4, 5, 6, 7, 8, 9, 10, 11]))
    visible = visible_blocks(in_blocks(mine), in_blocks(others), None)
    assert visible.tolist() == [[False, False], [True, True]]


def test_lists_hold_the_visible_blocks_first() -> None:
    order, count = visible_lists(jnp.asarray([[False, True, True], [True, False, True], [False] * 3]))
    assert count.tolist() == [2, 2, 0]
    assert order[0, :2].tolist() == [1, 2]
    assert order[1, :2].tolist() == [0, 2]


@pytest.mark.parametrize("rule", [ScoreRule(0.3), ScoreRule(0.3, softcap=2.0)])
def test_gradient_of_a_score(rule: ScoreRule) -> None:
    products = jnp.linspace(-9.0, 9.0, 13)
    score, back = jax.vjp(rule.score, products)
    cotangent = jnp.linspace(1.0, 2.0, 13)
    np.testing.assert_allclose(rule.product_gradient(cotangent, score), back(cotangent)[0], rtol=1e-5)
