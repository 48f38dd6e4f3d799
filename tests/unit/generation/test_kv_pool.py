from __future__ import annotations

import numpy as np
import pytest

from forebay.generation.kv_pool import KvPool, SavedRow, common_prefix, kv_is_usable
from tests.unit.generation.fakes import version


def row(*tokens: int, of: int = 0) -> SavedRow:
    return SavedRow(np.array(tokens, np.int32), version(of), "row")


def ids(*tokens: int) -> np.ndarray:
    return np.array(tokens, np.int32)


def pool(max_parked: int = 2, max_shared: int = 2, min_shared_tokens: int = 3) -> KvPool:
    return KvPool(max_parked=max_parked, max_shared=max_shared, min_shared_tokens=min_shared_tokens)


@pytest.mark.parametrize(
    ("a", "b", "length"), [((), (1,), 0), ((1, 2), (1, 2, 3), 2), ((1, 2), (2, 1), 0), ((4, 5), (4, 6), 1)]
)
def test_common_prefix(a: tuple[int, ...], b: tuple[int, ...], length: int) -> None:
    assert common_prefix(ids(*a), ids(*b)) == length


def test_bound_is_inclusive_and_stays_within_an_incarnation() -> None:
    assert kv_is_usable(version(3), version(5), 2)
    assert not kv_is_usable(version(3), version(6), 2)
    assert not kv_is_usable(version(5), version(5, incarnation=1), 100)


def test_the_last_token_of_a_prompt_is_never_taken_from_the_cache() -> None:
    kept = pool()
    kept.park("e", row(1, 2, 3))
    found = kept.take("e", ids(1, 2, 3), version(0), 0)
    assert found is not None
    assert found[1] == 2


def test_a_row_is_taken_once() -> None:
    kept = pool()
    kept.park("e", row(1, 2, 3))
    assert kept.take("e", ids(1, 2, 3, 4), version(0), 0) is not None
    assert kept.take("e", ids(1, 2, 3, 4), version(0), 0) is None


def test_the_oldest_row_makes_room() -> None:
    kept = pool()
    for name in ("a", "b", "a", "c"):
        kept.park(name, row(1))
    assert [kept.is_parked(name) for name in ("a", "b", "c")] == [True, False, True]
    assert (kept.counters.parked, kept.counters.evicted) == (4, 1)


def test_the_longer_of_own_and_shared_wins() -> None:
    kept = pool()
    kept.park("e", row(1, 2))
    kept.share(row(1, 2, 3, 4, 5))
    found = kept.take("e", ids(1, 2, 3, 4, 9), version(0), 0)
    assert found is not None
    assert found[1] == 4
    assert (kept.counters.reused, kept.counters.shared_hits) == (0, 1)


def test_shared_rows_need_the_same_version_and_a_worthwhile_length() -> None:
    kept = pool()
    kept.share(row(1, 2, 3, 4, of=0))
    assert kept.take("", ids(1, 2, 3, 4, 5), version(1), 8) is None
    assert kept.take("", ids(1, 2, 9, 9, 9), version(0), 8) is None
    assert kept.take("", ids(1, 2, 3, 9), version(0), 8) is not None


def test_shared_pool_is_bounded_and_keeps_what_is_used() -> None:
    kept = pool()
    kept.share(row(1, 1, 1))
    kept.share(row(2, 2, 2))
    kept.take("", ids(1, 1, 1, 0), version(0), 0)
    kept.share(row(3, 3, 3))
    assert kept.take("", ids(1, 1, 1, 0), version(0), 0) is not None
    assert kept.take("", ids(2, 2, 2, 0), version(0), 0) is None


def test_nothing_is_shared_when_there_is_no_room() -> None:
    kept = pool(max_shared=0)
    assert not kept.wants(ids(1, 2, 3), 3)
    kept.share(row(1, 2, 3))
    assert kept.take("", ids(1, 2, 3, 4), version(0), 0) is None
