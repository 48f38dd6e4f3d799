from __future__ import annotations

import math

import pytest

from forebay.batching.packing import (
    Bucket,
    Packing,
    cover_rows,
    pack_rows,
    plan_packing,
    plan_rows,
    searched_lengths,
)
from forebay.errors import ConfigError
from tests.unit.batching.records import EXPECTED


def test_c48_packing_reaches_the_lower_bound() -> None:
    lengths = [(37 * i) % 300 + 5 for i in range(200)]
    rows = pack_rows(lengths, 512)
    case = EXPECTED["C48"]["expect"]
    assert len(rows) == case["rows_ffd"] == case["lower_bound_rows"]
    assert sum(row.used for row in rows) / (512 * len(rows)) == pytest.approx(
        case["useful_fraction_ffd"], abs=1e-6
    )


def test_the_rest_of_a_row_is_filled_with_the_least_slack() -> None:
    # Best fit would put 5 beside 6 and leave 1 unused; 4 + 2 leave nothing.
    rows = pack_rows([6, 5, 4, 2, 3], 12)
    assert [(sorted(row.sequences), row.used) for row in rows] == [([0, 2, 3], 12), ([1, 4], 8)]


def test_of_equal_fillings_the_longest_sequences_are_taken() -> None:
    assert pack_rows([6, 4, 2, 2], 10)[0].sequences == (0, 1)


def test_a_sequence_that_fits_no_row_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"got 13 tokens, limit 12"):
        pack_rows([6, 13], 12)
    assert pack_rows([], 12) == []


def test_the_cover_is_the_cheapest() -> None:
    ladder = [Bucket(4, 100), Bucket(1, 100), Bucket(1, 50)]
    # Three full rows and a short one: 3 x 100 + 50 beats 400.
    assert cover_rows([100, 100, 90, 40], ladder) == [Bucket(1, 100)] * 3 + [Bucket(1, 50)]
    # Equal slots: one call of four rows rather than four calls.
    assert cover_rows([100, 100, 90, 60], ladder) == [Bucket(4, 100)]
    # Greedy by rows would waste three rows of 100.
    assert cover_rows([100, 50], ladder) == [Bucket(1, 100), Bucket(1, 50)]
    assert cover_rows([], ladder) == []
    with pytest.raises(ConfigError, match="got 101"):
        cover_rows([101], ladder)


def test_c45_two_sequences_share_a_row() -> None:
    assert plan_packing([3, 4], [Bucket(1, 8)]) == Packing((Bucket(1, 8),), (4, 0), (2, 1))


def test_rows_follow_one_another_in_the_flat_slots() -> None:
    packing = plan_packing([8, 5, 8, 2], [Bucket(2, 8), Bucket(1, 8), Bucket(1, 4)])
    assert packing.buckets == (Bucket(2, 8), Bucket(1, 8))
    assert packing.starts == (0, 16, 8, 21)
    assert packing.segments == (1, 1, 1, 2)
    assert packing.num_slots == 24


def test_nothing_to_pack_is_no_micro_batch() -> None:
    assert plan_packing([], [Bucket(2, 8)]) == Packing((), (), ())


def test_what_is_left_takes_the_set_of_buckets_with_the_least_padding() -> None:
    # Rows of ten would be covered by 10 + 10; ten, five and three leave nothing over.
    ladder = [Bucket(1, 10), Bucket(1, 5), Bucket(1, 3)]
    packing = plan_packing([5, 3, 5, 5], ladder)
    assert packing.buckets == tuple(ladder)
    assert packing.starts == (0, 15, 5, 10)


def test_rows_are_evened_out_over_the_devices() -> None:
    # Four devices: rows of eight would stand half empty on two of them.
    assert plan_packing([4, 4, 4, 4], [Bucket(4, 8), Bucket(4, 4)]).buckets == (Bucket(4, 4),)


def test_padding_below_a_quarter_of_a_percent_saves_no_micro_batch() -> None:
    ladder = [Bucket(1, 1000), Bucket(1, 999), Bucket(1, 500), Bucket(1, 499)]
    assert plan_packing([400, 400, 199], ladder).buckets == (Bucket(1, 999),)
    # 998 of 999 in one call, rather than 499 + 499 without padding in two.
    assert plan_packing([499, 300, 199], ladder).buckets == (Bucket(1, 999),)


def test_a_batch_of_many_rows_ends_in_the_smaller_buckets() -> None:
    ladder = [Bucket(2, 64), Bucket(1, 64), Bucket(1, 32), Bucket(1, 16)]
    lengths = [(7 * i) % 40 + 8 for i in range(100)]
    packing = plan_packing(lengths, ladder)
    assert packing.buckets[:15] == (Bucket(2, 64),) * 15
    # 2,730 tokens in multiples of 16: no set of these buckets has fewer slots.
    assert (sum(lengths), packing.num_slots) == (2730, 2736)


def test_more_candidates_than_are_tried_still_fill_their_rows() -> None:
    # Only a sample of 200 equal lengths is looked at; the one that fits best lies in it.
    assert pack_rows([90] * 100 + [10] * 200, 100)[0].used == 100
    assert {row.used for row in pack_rows([90] * 100 + [10] * 200, 100)} == {100}


def test_a_long_row_takes_the_longest_first() -> None:
    row = pack_rows([50, 40, 30, *[2] * 200], 400)[0]
    assert row.sequences[:3] == (0, 1, 2) and row.used == 400


@pytest.mark.parametrize("smaller", [Bucket(1, 64), Bucket(1, 24), Bucket(2, 32)])
def test_what_is_searched_for_is_the_same_whatever_the_smaller_buckets(smaller: Bucket) -> None:
    lengths = [(7 * i) % 40 + 8 for i in range(100)]
    rest = searched_lengths(lengths, Bucket(2, 64))
    assert 2 * 128 < sum(rest) <= 3 * 128
    buckets, _ = plan_rows(lengths, [Bucket(2, 64), smaller])
    num_sure = math.ceil((sum(lengths) - sum(rest)) / 128)
    assert buckets[num_sure:] == plan_rows(rest, [Bucket(2, 64), smaller])[0]
    assert buckets[:num_sure] == [Bucket(2, 64)] * num_sure
