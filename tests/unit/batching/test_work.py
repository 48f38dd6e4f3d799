from __future__ import annotations

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from forebay.batching.batch import FlatSequences, lay_out
from forebay.batching.packing import Bucket, plan_packing
from forebay.batching.work import Work, executed_work, fewest_slots, needed_work, padded_ratio
from forebay.models.visibility import Places, visible_blocks

LADDER = (Bucket(2, 40), Bucket(1, 40), Bucket(1, 24))
LENGTHS = [17, 3, 9, 25, 8, 8, 1, 30, 12]


def test_a_sequence_needs_its_tokens_and_the_pairs_below_the_diagonal() -> None:
    assert needed_work([3, 4]) == Work(tokens=7, pairs=6 + 10)
    assert needed_work([]) == Work(0, 0)


def test_a_pair_costs_a_sixth_of_a_token_by_width() -> None:
    # 4 D operations against 24 D^2.
    assert Work(100, 1200).in_tokens(10) == 100 + 1200 * 4 * 10 / (24 * 10**2)


@pytest.mark.parametrize("block_tokens", [4, 8, 16])
def test_pairs_are_those_of_the_blocks_that_attention_visits(block_tokens: int) -> None:
    packing = plan_packing(LENGTHS, LADDER)
    nothing = np.empty(0, np.int64)
    segments = lay_out(
        packing,
        FlatSequences(
            tokens=[np.zeros(length, np.int32) for length in LENGTHS],
            temperatures=[1.0] * len(LENGTHS),
            target_sequences=nothing,
            target_positions=nothing,
            advantages=nothing.astype(np.float32),
            behavior_logprobs=nothing.astype(np.float32),
            staleness=nothing,
        ),
    ).segment_ids
    visited = start = 0
    for bucket in packing.buckets:
        rows = segments[start : start + bucket.slots].reshape(bucket)
        padded = np.pad(rows, ((0, 0), (0, -bucket.length % block_tokens)))
        index = np.arange(padded.shape[1]).reshape(-1, block_tokens)
        for row in padded:
            places = Places(jnp.asarray(row.reshape(index.shape)), jnp.asarray(index))
            visited += int(visible_blocks(places, places, None).sum())
        start += bucket.slots
    assert executed_work(LENGTHS, packing, block_tokens) == Work(packing.num_slots, visited * block_tokens**2)


def test_padding_and_half_seen_blocks_are_what_is_computed_in_vain() -> None:
    packing = plan_packing([8, 8], [Bucket(1, 20)])
    # 20 slots for 16 tokens; blocks of 4: three for each sequence's two rows of them, 16 pairs each.
    assert executed_work([8, 8], packing, 4) == Work(20, 2 * 3 * 16)
    ratio = padded_ratio([([8, 8], packing)], hidden_size=16, block_tokens=4)
    assert ratio == (20 + 96 / 96) / (16 + 72 / 96)
    assert padded_ratio([], hidden_size=16, block_tokens=4) == 1.0


@pytest.mark.parametrize(
    ("lengths", "devices", "slots"),
    [
        ([], 8, 0),
        ([5, 4, 3], 1, 12),
        ([9, 1, 1], 2, 18),
        ([4, 4, 4, 4], 4, 16),
        # Two devices and three sequences of 5: one device holds two of them.
        ([5, 5, 5, 1], 2, 20),
        # Of five, one device holds three, at the least the three shortest.
        ([3, 3, 3, 3, 3], 2, 18),
    ],
)
def test_the_fullest_device_decides_how_many_slots_there_are(
    lengths: list[int], devices: int, slots: int
) -> None:
    assert fewest_slots(lengths, devices) == slots


def test_no_way_of_sharing_out_needs_fewer_slots() -> None:
    rng = np.random.default_rng(0)
    for _ in range(60):
        lengths, devices = rng.integers(1, 20, rng.integers(1, 7)).tolist(), int(rng.integers(1, 4))
        fullest = min(
            max(np.bincount(homes, lengths, devices))
            for homes in itertools.product(range(devices), repeat=len(lengths))
        )
        assert fewest_slots(lengths, devices) <= devices * fullest
