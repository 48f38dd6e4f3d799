from __future__ import annotations

import math

import numpy as np
import pytest

from forebay.objectives import GroupAdvantages, ObjectiveSettings, Outcome, build_batch_advantages
from forebay.objectives.advantages import group_mean
from forebay.objectives.turn_credit import left_to_a_critic, turn_returns, turn_rewards


def turns_of(group: GroupAdvantages) -> list[list[float]]:
    assert group.turn_advantages is not None
    return [own.tolist() for own in group.turn_advantages]


@pytest.mark.parametrize(
    ("reward", "by_turn", "expected"),
    [
        (1.0, [None, None], [0.0, 1.0]),
        (1.0, [0.25, None, 0.75], [0.25, 0.0, 0.75]),
        (0.5, [0.25, 0.75], [0.25, 0.25]),  # a penalty for its length has been taken off
        (1.0, [], []),
        (None, [1.0], None),
        (math.nan, [1.0], None),
    ],
)
def test_the_turns_rewards_add_up_to_the_episodes(
    reward: float | None, by_turn: list[float | None], expected: list[float] | None
) -> None:
    rewards = turn_rewards(reward, by_turn)
    assert (None if rewards is None else rewards.tolist()) == expected


def test_a_turn_answers_only_for_what_comes_after_it() -> None:
    # The first member gains in its first turn, the second one in its last: the second turn of the first
    # member did not do it any good.
    group = turn_returns([np.array([1.0, 0.0]), np.array([0.0, 1.0])])
    assert turns_of(group) == [[0.0, -0.5], [0.0, 0.5]]
    assert (group.zero_spread, group.reward_mean) == (False, 1.0)


def test_episodes_of_one_turn_are_compared_as_by_the_group_mean() -> None:
    rewards = [1.0, None, 0.0, 0.5]
    group = turn_returns([turn_rewards(reward, [reward]) for reward in rewards])
    assert group.advantages.tolist() == group_mean(rewards).advantages.tolist()
    assert group.scored.tolist() == [True, False, True, True]


def test_a_turn_that_nobody_else_reached_is_not_judged() -> None:
    assert turns_of(turn_returns([np.array([0.0]), np.array([0.0, 0.0, 1.0])])) == [[-0.5], [0.5, 0.0, 0.0]]


@pytest.mark.parametrize("value", [0.1, 0.3, 0.7])
def test_c12_equal_returns_give_exactly_zero(value: float) -> None:
    group = turn_returns([np.array([0.0, value])] * 7)
    assert turns_of(group) == [[0.0, 0.0]] * 7
    assert group.zero_spread


def test_a_group_without_a_score_or_without_a_turn() -> None:
    unscored = turn_returns([None, None])
    assert (unscored.zero_spread, unscored.scored.tolist()) == (False, [False, False])
    assert math.isnan(unscored.reward_mean)
    assert turn_returns([np.empty(0), np.array([1.0])]).advantages.tolist() == [0.0, 0.0]


def test_gamma_discounts_by_turn() -> None:
    group = turn_returns([np.array([0.0, 0.0, 4.0]), np.zeros(3)], gamma=0.5)
    assert turns_of(group) == [[0.5, 1.0, 2.0], [-0.5, -1.0, -2.0]]


def test_the_objective_normalizes_turns_over_the_batch() -> None:
    settings = ObjectiveSettings(advantage="turn_return", normalize_advantages=True, advantage_ddof=0)
    outcomes = [[Outcome(1.0, 5, (0.0, 1.0)), Outcome(0.0, 5, (0.0, 0.0))], [Outcome(None, 1, (None,))] * 2]
    first, second = build_batch_advantages(settings)(outcomes)
    np.testing.assert_allclose(turns_of(first), [[1.0, 1.0], [-1.0, -1.0]], rtol=1e-5)
    assert turns_of(second) == [[], []]


def test_the_penalty_for_length_falls_on_the_last_turn() -> None:
    settings = ObjectiveSettings(advantage="turn_return", overlong_tokens=10, overlong_cache_tokens=10)
    (group,) = build_batch_advantages(settings)([[Outcome(1.0, 10, (1.0, 0.0)), Outcome(1.0, 0, (1.0, 0.0))]])
    assert turns_of(group) == [[-0.5, -0.5], [0.5, 0.5]]


@pytest.mark.parametrize("advantage", ["gae", "vtrace"])
def test_a_critic_is_handed_the_rewards_whatever_the_siblings_got(advantage: str) -> None:
    settings = ObjectiveSettings(advantage=advantage, normalize_advantages=True)
    outcomes = [[Outcome(1.0, 5, (0.25, None)), Outcome(1.0, 3, (0.25, None)), Outcome(None, 2, (None,))]]
    (group,) = build_batch_advantages(settings)(outcomes)
    assert group.advantages.tolist() == [0.0, 0.0, 0.0]
    assert not group.zero_spread
    assert group.turn_rewards is not None
    assert [None if own is None else own.tolist() for own in group.turn_rewards] == [
        [0.25, 0.75],
        [0.25, 0.75],
        None,
    ]
    assert math.isnan(left_to_a_critic([None]).reward_mean)
