from __future__ import annotations

import pytest

from forebay.errors import ConfigError
from forebay.staleness import BatchShares, Shares, order_of_dispatch

HALVES = Shares(("fast", "slow"), (0.5, 0.5))
UNEVEN = Shares(("a", "b"), (0.9, 0.1))


def test_a_batch_owes_what_its_positions_say() -> None:
    assert [BatchShares(HALVES, n, 20).whole for n in range(3)] == [{"fast": 10, "slow": 10}] * 3
    owed = [BatchShares(UNEVEN, n, 4).whole["b"] for n in range(10)]
    assert sum(owed) == 4 and max(owed) == 1, "a tenth of 40, never two in a batch"


def test_what_an_environment_cannot_fill_is_open_to_all() -> None:
    owed = BatchShares(HALVES, 0, 20).limited({"slow": 3})
    assert (owed.due("fast"), owed.due("slow"), owed.num_open) == (10, 3, 7)
    assert owed.whole == {"fast": 10, "slow": 10}


def test_a_group_has_its_turn_in_the_batch_that_owes_it() -> None:
    assert [BatchShares(HALVES, 5, 4).batches_until("slow", rank) for rank in range(5)] == [0, 0, 1, 1, 2]
    turns = [BatchShares(UNEVEN, 0, 4).batches_until("b", rank) for rank in range(3)]
    owed = [BatchShares(UNEVEN, n, 4).whole["b"] for n in range(1, 12)]
    assert turns == [n for n, count in enumerate(owed) if count][:3]
    assert BatchShares(HALVES, 0, 4).batches_until("unknown", 9) == 2


def test_free_positions_go_to_whoever_owns_them_and_what_is_lost_comes_first() -> None:
    row = [HALVES.environment_at(position) for position in range(8)]
    assert list(order_of_dispatch(HALVES, 0, 8, {})) == row
    assert sorted(order_of_dispatch(HALVES, 0, 8, {"fast": 4, "slow": 2})) == ["slow", "slow"]
    assert list(order_of_dispatch(HALVES, 4, 4, {"slow": -1})) == ["slow"]


@pytest.mark.parametrize(
    ("names", "weights"), [((), ()), (("a",), (0.0,)), (("a", "b"), (1.0,)), (("a",), (float("nan"),))]
)
def test_shares_that_cannot_be_are_refused(names: tuple[str, ...], weights: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError, match="positive weights"):
        Shares(names, weights)


def test_the_others_keep_their_proportions() -> None:
    three = Shares(("a", "b", "c"), (1.0, 2.0, 3.0))
    assert three.without({"b"}) == Shares(("a", "c"), (1.0, 3.0))
    assert three.without({"a", "b", "c"}) == three
