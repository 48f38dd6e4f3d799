from __future__ import annotations

import pytest

from forebay.batching.ladder import (
    bucket_lengths,
    bucket_of,
    build_ladder,
    measured_ladder,
    sample_batches,
)
from forebay.batching.packing import Bucket, plan_packing
from forebay.batching.settings import BatchingSettings
from forebay.errors import ConfigError
from tests.unit.batching.records import EXPECTED

CASE = EXPECTED["C48"]["expect"]
LENGTHS = [(37 * i) % 300 + 5 for i in range(200)]


def test_c48_bucket_lengths_end_at_the_odd_maximum() -> None:
    lengths = bucket_lengths(317, 16)
    assert list(lengths) == CASE["buckets"]
    assert {int(n): bucket for n, bucket in CASE["bucket_of"].items()} == {
        n: bucket_of(n, lengths) for n in (1, 16, 17, 256, 257, 300, 317)
    }
    with pytest.raises(ConfigError, match=r"got 318 tokens, limit 317"):
        bucket_of(318, lengths)


def test_c48_useful_share_of_buckets_and_of_padding_to_the_maximum() -> None:
    lengths = bucket_lengths(317, 16)
    assert sum(LENGTHS) == CASE["tokens"]
    in_buckets = sum(bucket_of(n, lengths) for n in LENGTHS)
    assert sum(LENGTHS) / in_buckets == pytest.approx(CASE["useful_fraction_pow2_buckets"], abs=1e-6)
    assert sum(LENGTHS) / (317 * 200) == pytest.approx(CASE["useful_fraction_pad_to_max"], abs=1e-6)


def test_c48_an_odd_maximum_makes_no_unplanned_shape() -> None:
    ladder = build_ladder(BatchingSettings(max_length=317, rows=4, max_programs=6))
    assert len(ladder) <= CASE["compiled_shapes_at_most"]
    packing = plan_packing(LENGTHS, ladder)
    assert set(packing.buckets) <= set(ladder)
    assert max(bucket.length for bucket in packing.buckets) == 317


def test_rows_are_halved_down_to_what_the_devices_need() -> None:
    ladder = build_ladder(BatchingSettings(rows=12, max_length=64, max_programs=8), row_multiple=4)
    assert ladder[:2] == (Bucket(12, 64), Bucket(4, 64))
    assert all(bucket.rows % 4 == 0 for bucket in ladder)
    assert len(ladder) <= 8
    with pytest.raises(ConfigError, match=r"got 12 rows, limit a multiple of 8"):
        build_ladder(BatchingSettings(rows=12, max_length=64), row_multiple=8)


@pytest.mark.parametrize("max_programs", [1, 2, 3, 8])
def test_the_budget_of_programs_holds_and_the_largest_shape_is_there(max_programs: int) -> None:
    ladder = build_ladder(BatchingSettings(rows=4, max_length=512, max_programs=max_programs))
    assert len(ladder) == max_programs
    assert ladder[0] == Bucket(4, 512)


def test_configured_buckets_are_used_as_they_are() -> None:
    settings = BatchingSettings(max_length=64, buckets=((1, 64), (8, 32)))
    assert build_ladder(settings) == (Bucket(8, 32), Bucket(1, 64))
    with pytest.raises(ConfigError, match="got 1 rows"):
        build_ladder(settings, row_multiple=2)


def test_a_measured_ladder_wastes_less_than_the_parts_of_one() -> None:
    settings = BatchingSettings(rows=4, max_length=512, max_programs=4)
    # Every sequence needs 300 of 512 tokens: no two share a row.
    batches = [[300] * 10, [300] * 13]
    measured = measured_ladder(batches, settings)
    assert len(measured) <= 4
    assert measured[0] == Bucket(4, 512)
    plain = sum(plan_packing(lengths, build_ladder(settings)).num_slots for lengths in batches)
    slots = sum(plan_packing(lengths, measured).num_slots for lengths in batches)
    # 304 is the next multiple of 16: a row for each sequence, and no row too many.
    assert slots == 304 * 23 < plain
    assert build_ladder(settings.model_copy(update={"buckets": tuple(measured)})) == measured


def test_shorter_rows_are_halves_first_and_then_what_lies_between() -> None:
    ladder = build_ladder(BatchingSettings(rows=1, max_length=512, max_programs=6))
    assert [bucket.length for bucket in ladder] == [512, 384, 256, 128, 64, 32]


def test_short_rows_are_not_shorter_than_allowed() -> None:
    ladder = build_ladder(BatchingSettings(rows=1, max_length=100, min_row_length=40, max_programs=8))
    assert [bucket.length for bucket in ladder] == [100, 80, 40]


def test_a_measured_ladder_keeps_the_longest_of_configured_buckets() -> None:
    settings = BatchingSettings(max_length=64, rows=1, buckets=((2, 128), (2, 96)), max_programs=3)
    measured = measured_ladder([[60, 60, 60, 60], [40, 40]], settings, 2)
    assert measured == (Bucket(2, 128), Bucket(2, 48))


def test_measuring_fits_the_share_of_each_device() -> None:
    settings = BatchingSettings(max_length=64, row_length=256, rows=4, max_programs=2)
    # Eight sequences of 50: two on each of four devices; the multiple of 16 above 100 is 112.
    assert measured_ladder([[50] * 8], settings, 4) == (Bucket(4, 256), Bucket(4, 112))


def test_batches_are_drawn_group_by_group() -> None:
    drawn = sample_batches([[1, 1], [5, 6, 7]], 2, 20, seed=3)
    assert drawn == sample_batches([[1, 1], [5, 6, 7]], 2, 20, seed=3)
    assert len(drawn) == 20
    assert {tuple(batch) for batch in drawn} == {
        (1, 1, 1, 1),
        (1, 1, 5, 6, 7),
        (5, 6, 7, 1, 1),
        (5, 6, 7) * 2,
    }
    with pytest.raises(ConfigError, match="no group"):
        sample_batches([], 2, 1, seed=0)


def test_row_lengths_are_cut_evenly_too() -> None:
    settings = BatchingSettings(rows=2, max_length=480, max_programs=8, min_row_length=20)
    ladder = build_ladder(settings, 2, length_multiple=24)
    assert len(ladder) > 2
    assert all(bucket.length % 120 == 0 for bucket in ladder)
    measured = measured_ladder([[100] * 6, [130] * 3], settings, 2, 24)
    assert len(measured) > 1
    assert all(bucket.length % 120 == 0 for bucket in measured)
    with pytest.raises(ConfigError, match=r"got 480 tokens, limit a multiple of 64"):
        build_ladder(settings, 2, length_multiple=64)
