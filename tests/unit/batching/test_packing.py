from __future__ import annotations

import pytest

from forebay.batching.packing import Bucket, Packing, cover_rows, pack_rows, plan_packing
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
