"""Packing keeps every token exactly once, in its own segment, at its own position."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from forebay.batching.batch import FlatSequences, build_batch, lay_out
from forebay.batching.ladder import build_ladder, measured_ladder
from forebay.batching.packing import Bucket, cover_rows, pack_rows, plan_packing, plan_rows
from forebay.batching.settings import BatchingSettings
from forebay.batching.work import executed_work, needed_work
from forebay.objectives.advantages import group_mean
from forebay.objectives.denominators import count_fresh
from forebay.staleness import StalenessSettings
from forebay.trajectory import PolicyVersion, Sampling, Sequence
from tests.properties.strategies import sequences
from tests.unit.batching.records import flat, group, token_mean, trajectory

lengths_of_batches = st.lists(st.integers(1, 64), max_size=60)
trainable = st.just(Sampling(temperature=0.8))


@st.composite
def batching_settings(draw: st.DrawFn) -> BatchingSettings:
    return BatchingSettings(
        max_length=64,
        row_length=draw(st.sampled_from([64, 70, 128, 200])),
        rows=draw(st.sampled_from([1, 2, 3, 4, 8])),
        min_row_length=draw(st.sampled_from([2, 16, 33])),
        max_programs=draw(st.integers(1, 8)),
        oversize="error",
    )


@given(lengths_of_batches, batching_settings())
def test_every_token_lies_in_exactly_one_slot(lengths: list[int], settings: BatchingSettings) -> None:
    ladder = build_ladder(settings)
    assert len(ladder) <= settings.max_programs
    packing = plan_packing(lengths, ladder)
    assert set(packing.buckets) <= set(ladder)
    total = sum(lengths)
    tokens = [np.arange(n, dtype=np.int32) + 1000 * (i + 1) for i, n in enumerate(lengths)]
    buffers = lay_out(
        packing,
        FlatSequences(
            tokens=tokens,
            temperatures=[1.0] * len(lengths),
            target_sequences=np.repeat(np.arange(len(lengths)), lengths),
            target_positions=np.concatenate([np.empty(0, np.int64), *(np.arange(n) for n in lengths)]),
            advantages=np.ones(total, np.float32),
            behavior_logprobs=np.zeros(total, np.float32),
            staleness=np.zeros(total, np.int64),
        ),
    )
    real = buffers.segment_ids > 0
    assert np.array_equal(real, buffers.loss_mask)
    assert Counter(buffers.tokens[real].tolist()) == Counter(np.concatenate([[], *tokens]).tolist())
    assert not buffers.tokens[~real].any()
    # Positions say the place within the sequence, and a sequence lies in one row, whole and in order.
    assert np.array_equal(buffers.positions[real], buffers.tokens[real] % 1000)
    start = 0
    for bucket in packing.buckets:
        for row in range(bucket.rows):
            part = slice(start + row * bucket.length, start + (row + 1) * bucket.length)
            segments, ids = buffers.segment_ids[part], buffers.tokens[part]
            used = int((segments > 0).sum())
            assert not segments[used:].any()
            changes = np.flatnonzero(np.diff(ids[:used] // 1000, prepend=0))
            assert np.array_equal(segments[changes], np.arange(1, len(changes) + 1))
            assert not buffers.positions[part][changes].any()
        start += bucket.rows * bucket.length
    assert start == packing.num_slots


@given(lengths_of_batches, st.integers(64, 200))
def test_rows_hold_every_sequence_once_and_none_overflows(lengths: list[int], row_length: int) -> None:
    rows = pack_rows(lengths, row_length)
    assert sorted(i for row in rows for i in row.sequences) == list(range(len(lengths)))
    for row in rows:
        assert row.used == sum(lengths[i] for i in row.sequences) <= row_length
    # No two rows could have been one, except where 64 candidates hid it.
    assert sum(row.used * 2 <= row_length for row in rows) <= 1


@given(
    st.lists(st.integers(1, 8), max_size=9),
    st.sets(st.tuples(st.integers(1, 3), st.integers(1, 8)), max_size=4),
)
def test_the_cover_is_no_worse_than_any_other(needs: list[int], shapes: set[tuple[int, int]]) -> None:
    needs.sort(reverse=True)
    ladder = [Bucket(2, 8), *(Bucket(*shape) for shape in sorted(shapes))]
    cover = cover_rows(needs, ladder)
    row = 0
    for bucket in cover:
        assert all(need <= bucket.length for need in needs[row : row + bucket.rows])
        row += bucket.rows
    assert row >= len(needs)

    def cheapest(first: int) -> int:
        if first >= len(needs):
            return 0
        return min(b.rows * b.length + cheapest(first + b.rows) for b in ladder if b.length >= needs[first])

    assert sum(bucket.rows * bucket.length for bucket in cover) == cheapest(0)


@given(lengths_of_batches, batching_settings(), st.randoms(use_true_random=False))
def test_the_order_of_sequences_changes_no_shape(
    lengths: list[int], settings: BatchingSettings, rng: random.Random
) -> None:
    ladder = build_ladder(settings)
    buckets, rows = plan_rows(lengths, ladder)
    shuffled = rng.sample(lengths, len(lengths))
    again, others = plan_rows(shuffled, ladder)
    assert again == buckets
    contents = [sorted(lengths[i] for i in row.sequences) for row in rows]
    assert contents == [sorted(shuffled[i] for i in row.sequences) for row in others]
    assert plan_rows(lengths, ladder[::-1]) == (buckets, rows)


@given(lengths_of_batches, batching_settings())
def test_a_plan_is_no_worse_than_covering_the_longest_rows(
    lengths: list[int], settings: BatchingSettings
) -> None:
    ladder = build_ladder(settings)
    used = sorted((row.used for row in pack_rows(lengths, settings.packed_length)), reverse=True)
    cover = sum(bucket.slots for bucket in cover_rows(used, ladder))
    slots = plan_packing(lengths, ladder).num_slots
    # Padding of a quarter of a percent is given away for a micro-batch less.
    assert sum(lengths) <= slots
    assert sum(lengths) > 3 * ladder[0].slots or slots <= max(cover, sum(lengths) * 1.0025)


@given(lengths_of_batches, batching_settings(), st.sampled_from([8, 16, 64]))
def test_what_is_computed_is_never_less_than_what_is_needed(
    lengths: list[int], settings: BatchingSettings, block_tokens: int
) -> None:
    packing = plan_packing(lengths, build_ladder(settings))
    executed, needed = executed_work(lengths, packing, block_tokens), needed_work(lengths)
    assert executed.tokens == packing.num_slots >= needed.tokens
    assert executed.pairs >= needed.pairs
    # A sequence's first and last block are half seen, and so are those on the diagonal.
    blocks = sum((length // block_tokens + 2) ** 2 for length in lengths)
    assert executed.pairs <= blocks * block_tokens**2


@hypothesis_settings(max_examples=25)
@given(
    st.lists(st.lists(st.integers(1, 64), min_size=1, max_size=20), min_size=1, max_size=3),
    batching_settings(),
)
def test_a_measured_ladder_never_wastes_more_than_the_largest_bucket_alone(
    batches: list[list[int]], settings: BatchingSettings
) -> None:
    ladder = measured_ladder(batches, settings)
    assert len(ladder) <= settings.max_programs
    alone = build_ladder(settings.model_copy(update={"max_programs": 1}))
    for lengths in batches:
        assert set(plan_packing(lengths, ladder).buckets) <= set(ladder)
    slots = [
        sum(plan_packing(lengths, shapes).num_slots for lengths in batches) for shapes in (ladder, alone)
    ]
    assert slots[0] <= slots[1]


@given(
    st.lists(sequences(num_steps=3, max_tokens=40, sampling=trainable), min_size=1, max_size=12),
    st.integers(0, 8),
)
def test_a_batch_trains_each_fresh_token_once_with_its_own_logprob(
    drawn: list[Sequence], max_staleness: int
) -> None:
    settings = BatchingSettings(max_length=40, rows=2, max_programs=4)
    now = PolicyVersion(4, 100)
    rewards = [float(i % 2) for i in range(len(drawn))]
    batch = build_batch(
        [group(*(trajectory(one, reward=reward) for one, reward in zip(drawn, rewards, strict=True)))],
        now=now,
        forks=(),
        staleness=StalenessSettings(max_staleness=max_staleness, on_stale="mask"),
        settings=settings,
        ladder=build_ladder(settings),
        advantages=[group_mean(rewards)],
        denominator=token_mean,
    )
    expected: Counter[tuple[int, float]] = Counter()
    for one in drawn:
        ages = [100 - span.version.version for span in one.version_spans for _ in range(span.num_tokens)]
        places = np.flatnonzero(one.action_mask())
        for place, age, logprob in zip(places, ages, one.behavior_logprobs, strict=True):
            if place > 0 and age <= max_staleness:
                expected[int(one.tokens[place]), float(logprob)] += 1
    assert batch.counts.tokens == expected.total() == sum(batch.stats.staleness_histogram)
    assert batch.stats.staleness_max <= max_staleness
    if batch.empty:
        return
    rows = flat(batch)
    mask = rows.loss_mask
    assert (
        Counter(zip(rows.tokens[mask].tolist(), rows.behavior_logprobs[mask].tolist(), strict=True))
        == expected
    )
    parts = [count_fresh(micro.rows.loss_mask, micro.rows.segment_ids) for micro in batch.micro_batches]
    assert batch.counts == (sum(p.tokens for p in parts), sum(p.sequences for p in parts))
