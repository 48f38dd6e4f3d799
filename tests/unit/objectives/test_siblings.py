from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import RecordError
from forebay.objectives import ObjectiveSettings
from forebay.objectives.advantages import Outcome, by_group, leave_one_out
from forebay.objectives.settings import build_batch_advantages
from forebay.objectives.siblings import among_siblings

ESTIMATE = by_group(leave_one_out)
rewards = st.one_of(st.none(), st.floats(-4.0, 4.0))


def singles(family, names):
    return [[family[name]] for name in names]


def test_each_is_compared_with_the_mean_of_the_others_that_finished() -> None:
    family = {"a": Outcome(3.0, 1), "b": Outcome(1.0, 1), "c": Outcome(0.0, 1)}
    other = {"x": Outcome(1.0, 1), "y": Outcome(1.0, 1)}
    names = ["c", "x", "a"]
    found = among_siblings(ESTIMATE, names, [family, other])(singles(family | other, names))
    # 0 - (3 + 1) / 2; 1 - 1; 3 - (1 + 0) / 2.
    assert [group.advantages.tolist() for group in found] == [[-2.0], [0.0], [2.5]]
    assert [group.zero_spread for group in found] == [False, True, False]


@given(st.lists(rewards, min_size=2, max_size=8))
def test_a_family_that_comes_in_one_batch_is_compared_as_its_group(given_rewards: list[float | None]) -> None:
    family = {f"m{i}": Outcome(reward, 1) for i, reward in enumerate(given_rewards)}
    found = among_siblings(ESTIMATE, list(family), [family])(singles(family, family))
    expected = leave_one_out(given_rewards)
    np.testing.assert_array_equal(np.concatenate([group.advantages for group in found]), expected.advantages)
    np.testing.assert_array_equal(np.concatenate([group.scored for group in found]), expected.scored)


def test_a_sibling_without_a_score_is_none_to_compare_with() -> None:
    family = {"a": Outcome(1.0, 1), "b": Outcome(None, 1)}
    found = among_siblings(ESTIMATE, ["a", "b"], [family])(singles(family, ["a", "b"]))
    assert [group.advantages.tolist() for group in found] == [[0.0], [0.0]]
    assert [group.scored.tolist() for group in found] == [[True], [False]]


def test_the_penalty_for_length_is_each_siblings_own() -> None:
    settings = ObjectiveSettings(
        advantage="leave_one_out", overlong_tokens=100, overlong_cache_tokens=20, siblings="finished"
    )
    family = {"a": Outcome(1.0, 10), "b": Outcome(1.0, 90)}
    (found,) = among_siblings(build_batch_advantages(settings), ["a"], [family])([[family["a"]]])
    assert found.advantages.tolist() == [0.5]  # b is worth 1 - 1/2


def test_what_is_not_a_single_episode_of_a_known_family_is_refused() -> None:
    family = {"a": Outcome(1.0, 1)}
    with pytest.raises(RecordError, match="itself included"):
        among_siblings(ESTIMATE, ["b"], [family])
    with pytest.raises(RecordError, match="one member in each group"):
        among_siblings(ESTIMATE, ["a"], [family])([[family["a"], family["a"]]])
