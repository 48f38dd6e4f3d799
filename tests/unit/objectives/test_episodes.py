from __future__ import annotations

import numpy as np
import pytest

from forebay.errors import RecordError
from forebay.objectives.episodes import discounted_sums, following


def test_sums_run_backwards_and_end_with_the_episode() -> None:
    terms, factors = np.array([1.0, 2.0, 4.0, 10.0, 20.0, 5.0]), np.full(6, 0.5)
    sums = discounted_sums(terms, factors, np.array([3, 2, 1]))
    assert sums.tolist() == [3.0, 4.0, 4.0, 20.0, 20.0, 5.0]


def test_each_token_has_its_own_factor_and_the_last_one_is_not_looked_at() -> None:
    factors = np.array([0.0, 1.0, np.nan])
    assert discounted_sums(np.array([1.0, 2.0, 4.0]), factors, np.array([3])).tolist() == [1.0, 6.0, 4.0]


def test_what_is_given_stays_as_it_was() -> None:
    terms = np.array([1.0, 1.0])
    discounted_sums(terms, np.ones(2), np.array([2]))
    assert terms.tolist() == [1.0, 1.0]


def test_an_episode_ends_in_its_own_last_value() -> None:
    values, last = np.array([1.0, 2.0, 3.0, 4.0]), np.array([-1.0, -2.0])
    assert following(values, last, np.array([3, 1])).tolist() == [2.0, 3.0, -1.0, -2.0]


def test_a_batch_without_episodes() -> None:
    none = np.empty(0)
    assert discounted_sums(none, none, np.empty(0, np.int64)).tolist() == []
    assert following(none, none, np.empty(0, np.int64)).tolist() == []


@pytest.mark.parametrize(
    ("num_terms", "lengths", "message"),
    [(3, [2], "terms must hold one value per token"), (2, [2, 0], "an episode without tokens")],
)
def test_arrays_that_do_not_belong_together_are_refused(
    num_terms: int, lengths: list[int], message: str
) -> None:
    with pytest.raises(RecordError, match=message):
        discounted_sums(np.zeros(num_terms), np.zeros(num_terms), np.array(lengths))


def test_every_episode_needs_a_last_value() -> None:
    with pytest.raises(RecordError, match="one value per episode"):
        following(np.zeros(2), np.zeros(1), np.array([1, 1]))
