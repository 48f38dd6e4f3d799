"""What holds for every loss, whatever its formula: how a batch is laid out or cut up changes nothing."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.objectives import ObjectiveSettings, batch_denominator, count_fresh
from tests.golden import oracle
from tests.unit.objectives.driver import run

EVERY_LOSS = {
    "cispo": ObjectiveSettings(loss="cispo", clip_low=0.3, clip_high=0.4, geometric_low=0.7),
    "dppo": ObjectiveSettings(loss="dppo", tv_limit=0.05, reduction="sequence"),
    "topr": ObjectiveSettings(loss="topr", reduction="constant", constant_tokens=5, geometric_low=0.7),
    "gspo": ObjectiveSettings(preset="gspo", clip_low=0.1, clip_high=0.1, entropy_coef=0.1),
    "turn-dual": ObjectiveSettings(loss="ppo_clip", ratio="turn", dual_clip=1.3, clip_high=0.1),
    "interpolated-turn": ObjectiveSettings(
        preset="decoupled", proximal="interpolated", ratio="turn", correction="sequence_mis", tis_cap=1.5
    ),
    "recomputed-sequence": ObjectiveSettings(
        preset="decoupled",
        proximal="recomputed",
        ratio="sequence",
        correction="sequence_tis",
        reduction="sequence",
    ),
    "m2po": ObjectiveSettings(preset="m2po", clip_low=0.1, clip_high=0.1),
    "bapo": ObjectiveSettings(preset="bapo", balance_target=1.5, geometric_low=0.7),
    "token-mis": ObjectiveSettings(
        preset="decoupled", proximal="interpolated", correction="token_mis", tis_cap=1.2
    ),
}
# These push also where nothing is won or lost.
HELD = {
    "kl-k1-in-reward": ObjectiveSettings(loss="ppo_clip", kl_coef=0.5, kl_estimator="k1", kl_in="reward"),
    "kl-k3-in-loss": ObjectiveSettings(kl_coef=0.5, reduction="sequence"),
}
EVERYTHING = EVERY_LOSS | HELD
ROWS, WIDTH = 6, 40
each = pytest.mark.parametrize("chosen", EVERYTHING.values(), ids=EVERYTHING.keys())
each_loss = pytest.mark.parametrize("chosen", EVERY_LOSS.values(), ids=EVERY_LOSS.keys())
seeds = st.integers(0, 1000)
lengths = st.lists(st.integers(1, 6), min_size=6, max_size=6)


def pack(batch: oracle.Batch, layout: list[list[int]], poison: float = math.nan) -> oracle.Packed:
    return oracle.pack(batch, layout + [[] for _ in range(ROWS - len(layout))], WIDTH, poison)


def alone(batch: oracle.Batch) -> oracle.Packed:
    return pack(batch, [[i] for i in range(len(batch))])


def denominator_of(chosen: ObjectiveSettings, packed: oracle.Packed) -> float:
    return batch_denominator(chosen, count_fresh(packed.loss_mask, packed.segment_ids))


def by_token(grad: np.ndarray, packed: oracle.Packed) -> np.ndarray:
    return np.array([grad[place] for places in packed.place for place in places])


def assert_close(got: Any, expected: Any) -> None:
    np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-6)


@each
@given(seed=seeds, sizes=lengths, order=st.permutations(range(6)), cuts=st.sets(st.integers(1, 5)))
@settings(max_examples=10)
def test_packing_order_and_padding_change_nothing(
    chosen: ObjectiveSettings, seed: int, sizes: list[int], order: list[int], cuts: set[int]
) -> None:
    batch = oracle.random_batch(seed, sizes)
    edges = [0, *sorted(cuts), 6]
    reference, packed = alone(batch), pack(batch, [order[a:b] for a, b in itertools.pairwise(edges)])
    denominator = denominator_of(chosen, reference)
    assert denominator_of(chosen, packed) == denominator
    expected_loss, expected_grad, expected_sums = run(chosen, reference, denominator)
    loss, grad, sums = run(chosen, packed, denominator)
    assert_close(loss, expected_loss)
    assert_close(by_token(grad, packed), by_token(expected_grad, reference))
    assert_close(sums, expected_sums)


@each
@given(seed=seeds, sizes=lengths, parts=st.lists(st.integers(0, 2), min_size=6, max_size=6))
@settings(max_examples=8)
def test_micro_batches_add_up(
    chosen: ObjectiveSettings, seed: int, sizes: list[int], parts: list[int]
) -> None:
    batch = oracle.random_batch(seed, sizes)
    reference = alone(batch)
    denominator = denominator_of(chosen, reference)
    expected_loss, expected_grad, expected_sums = run(chosen, reference, denominator)
    layouts = [[[i] if parts[i] == part else [] for i in range(6)] for part in range(3)]
    results = [run(chosen, pack(batch, layout), denominator, reference) for layout in layouts]
    assert_close(sum(loss for loss, _, _ in results), expected_loss)
    assert_close(sum(grad for _, grad, _ in results), expected_grad)
    added = [sum(values) for values in zip(*(sums for _, _, sums in results), strict=True)]
    assert_close(added, expected_sums)


@each_loss
@given(seed=seeds, sizes=lengths)
@settings(max_examples=5)
def test_equal_rewards_give_no_gradient(chosen: ObjectiveSettings, seed: int, sizes: list[int]) -> None:
    packed = alone(oracle.random_batch(seed, sizes))
    without = oracle.Packed(
        **{**vars(packed), "advantages": np.zeros_like(packed.advantages), "entropy": 0 * packed.entropy}
    )
    loss, grad, _ = run(chosen, without, denominator_of(chosen, packed))
    assert loss == 0.0
    assert np.abs(grad).max() == 0.0


@each
@given(seed=seeds, sizes=lengths, poison=st.sampled_from([math.inf, -math.inf, 0.0, 1e30]))
@settings(max_examples=5)
def test_what_is_masked_is_never_looked_at(
    chosen: ObjectiveSettings, seed: int, sizes: list[int], poison: float
) -> None:
    batch = oracle.random_batch(seed, sizes)
    layout = [[0, 1], [2, 3, 4], [5]]
    expected, got = (run(chosen, pack(batch, layout, fill), 7.0) for fill in (math.nan, poison))
    assert expected[0] == got[0]
    assert np.isfinite(expected[0])
    np.testing.assert_array_equal(expected[1], got[1])
    assert np.isfinite(got[1]).all()
    assert expected[2] == got[2]


@each_loss
@given(seed=seeds, sizes=lengths)
@settings(max_examples=3)
def test_fresh_data_gives_the_plain_policy_gradient(
    chosen: ObjectiveSettings, seed: int, sizes: list[int]
) -> None:
    packed = alone(oracle.random_batch(seed, sizes))
    arrays = {
        **vars(packed),
        "behavior_logprobs": packed.logprobs,
        "proximal_logprobs": packed.logprobs,
        "staleness": np.zeros_like(packed.staleness),
    }
    denominator = denominator_of(chosen, packed)
    _, grad, sums = run(chosen, oracle.Packed(**arrays), denominator)
    assert sums.weight_sum == sums.weight_sq_sum == sums.ratio_sum == packed.loss_mask.sum()
    assert sums.sequence_weight_sum == sums.sequence_weight_sq_sum == sums.sequences
    assert sums.rejected_tokens == sums.clipped_tokens == sums.capped_tokens == sums.k3_sum == 0.0
    # A sequence lies alone in its row.
    lengths = packed.loss_mask.sum(axis=1, keepdims=True) if chosen.reduction == "sequence" else 1
    wanted = np.where(packed.loss_mask, -packed.advantages / (np.maximum(lengths, 1) * denominator), 0.0)
    np.testing.assert_allclose(grad, wanted, rtol=1e-5)
