from __future__ import annotations

import dataclasses
import itertools
import math

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.objectives import LossInputs, ObjectiveSettings, batch_denominator, count_fresh
from forebay.objectives.build import build_objective
from tests.golden import oracle
from tests.unit.objectives.driver import run

DEFAULT = ObjectiveSettings()
EVERYTHING = ObjectiveSettings(
    preset="decoupled",
    proximal="recomputed",
    geometric_low=0.8,
    geometric_high=1.25,
    icepop_low=0.5,
    icepop_high=1.8,
    entropy_coef=0.05,
    reduction="sequence",
)
BATCH = oracle.random_batch(seed=3, lengths=[4, 7, 2, 5, 1, 6])
ROWS = 6


def by_token(grad: np.ndarray, packed: oracle.Packed) -> np.ndarray:
    return np.array([grad[place] for places in packed.place for place in places])


def fill(layout: list[list[int]], rows: int = ROWS) -> list[list[int]]:
    return layout + [[] for _ in range(rows - len(layout))]


REFERENCE = oracle.pack(BATCH, [[i] for i in range(6)], length=32)
DENOMINATOR = {
    chosen: batch_denominator(chosen, count_fresh(REFERENCE.loss_mask, REFERENCE.segment_ids))
    for chosen in (DEFAULT, EVERYTHING)
}


@pytest.mark.parametrize("chosen", [DEFAULT, EVERYTHING], ids=["default", "everything"])
@given(order=st.permutations(range(6)), cuts=st.sets(st.integers(1, 5)))
@settings(max_examples=15)
def test_packing_and_order_change_nothing(
    chosen: ObjectiveSettings, order: list[int], cuts: set[int]
) -> None:
    edges = [0, *sorted(cuts), 6]
    layout = [order[a:b] for a, b in itertools.pairwise(edges)]
    packed = oracle.pack(BATCH, fill(layout), length=32)
    loss, grad, sums = run(chosen, packed, DENOMINATOR[chosen])
    expected_loss, expected_grad, expected_sums = run(chosen, REFERENCE, DENOMINATOR[chosen])
    assert loss == pytest.approx(expected_loss, rel=1e-6, abs=1e-7)
    np.testing.assert_allclose(by_token(grad, packed), by_token(expected_grad, REFERENCE), rtol=1e-6)
    np.testing.assert_allclose(sums, expected_sums, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("chosen", [DEFAULT, EVERYTHING], ids=["default", "everything"])
@given(assignment=st.lists(st.integers(0, 2), min_size=6, max_size=6))
@settings(max_examples=10)
def test_micro_batches_add_up_to_the_batch(chosen: ObjectiveSettings, assignment: list[int]) -> None:
    parts = [
        run(
            chosen,
            oracle.pack(BATCH, fill([[i for i in range(6) if assignment[i] == part]]), length=32),
            DENOMINATOR[chosen],
        )
        for part in range(3)
    ]
    expected_loss, _, expected_sums = run(chosen, REFERENCE, DENOMINATOR[chosen])
    assert sum(loss for loss, _, _ in parts) == pytest.approx(expected_loss, rel=1e-6, abs=1e-7)
    added = [sum(values) for values in zip(*(sums for _, _, sums in parts), strict=True)]
    np.testing.assert_allclose(added, expected_sums, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("poison", [math.inf, -math.inf, 0.0])
def test_masked_positions_are_never_looked_at(poison: float) -> None:
    layout = [[0, 1], [2, 3, 4], [5]]
    results = [
        run(EVERYTHING, oracle.pack(BATCH, fill(layout), 32, fill_with), DENOMINATOR[EVERYTHING])
        for fill_with in (math.nan, poison)
    ]
    assert results[0][0] == results[1][0]
    np.testing.assert_array_equal(results[0][1], results[1][1])
    assert results[0][2] == results[1][2]
    assert np.isfinite(results[0][1]).all()


@pytest.mark.parametrize("loss_name", ["decoupled_ppo", "ppo_clip", "reinforce"])
def test_staleness_zero_means_ratio_one_and_the_plain_policy_gradient(loss_name: str) -> None:
    on_policy = REFERENCE.__class__(
        **{
            **vars(REFERENCE),
            "behavior_logprobs": REFERENCE.logprobs,
            "proximal_logprobs": REFERENCE.logprobs,
        }
    )
    n = float(REFERENCE.loss_mask.sum())
    _, grad, sums = run(ObjectiveSettings(loss=loss_name), on_policy, n)
    assert sums.ratio_sum == sums.weight_sum == sums.weight_sq_sum == n
    assert sums.k3_sum == sums.abs_logprob_diff_sum == sums.rejected_tokens == sums.clipped_tokens == 0.0
    expected = np.where(REFERENCE.loss_mask, -REFERENCE.advantages / np.float32(n), 0.0)
    np.testing.assert_allclose(grad, expected, rtol=1e-6)


def test_current_proximal_equals_recomputed_at_the_first_update() -> None:
    same = dataclasses.replace(REFERENCE, proximal_logprobs=REFERENCE.logprobs)
    current = run(ObjectiveSettings(preset="decoupled"), REFERENCE, 10.0)
    recomputed = run(ObjectiveSettings(preset="decoupled", proximal="recomputed"), same, 10.0)
    assert current[0] == recomputed[0]
    np.testing.assert_array_equal(current[1], recomputed[1])


def test_rejection_does_not_raise_the_weight_of_what_is_left() -> None:
    # Without a clip of its own, so that a token without gradient is a rejected one.
    plain = ObjectiveSettings(preset="decoupled", reduction="sequence")
    open_bounds = plain.model_copy(update={"geometric_low": 0.0, "geometric_high": math.inf})
    bounded = plain.model_copy(update={"geometric_low": 0.8, "geometric_high": 1.25})
    _, everything, _ = run(open_bounds, REFERENCE, 5.0)
    _, kept, sums = run(bounded, REFERENCE, 5.0)
    survivors = kept != 0
    assert 0 < sums.rejected_tokens < sums.tokens
    np.testing.assert_array_equal(kept[survivors], everything[survivors])
    assert (everything != 0).sum() == survivors.sum() + sums.rejected_tokens


def test_non_finite_logprob_of_a_trained_token_is_not_hidden() -> None:
    packed = oracle.pack([[oracle.Token(math.nan, -1.0, -1.0, 1.0)]], fill([[0]]), length=32)
    assert math.isnan(run(DEFAULT, packed, 1.0)[0])


def test_shape_mismatch_is_refused() -> None:
    objective = build_objective(DEFAULT)
    inputs = LossInputs(*(np.zeros((1, 4), dtype) for dtype in (bool, "f4", "f4", "f4", "i4")))
    with pytest.raises(Exception, match=r"shape|dimension"):
        objective(jnp.zeros((1, 5)), jnp.zeros((1, 5)), inputs, jnp.float32(1))
