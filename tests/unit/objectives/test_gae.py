from __future__ import annotations

import numpy as np
import pytest

from forebay.errors import RecordError
from forebay.objectives.gae import generalized_advantages

ONE = np.array([3])


def test_a_truncated_episode_goes_on_in_the_value_of_its_last_state() -> None:
    rewards, values = np.zeros(3), np.zeros(3)
    ended = generalized_advantages(rewards, values, np.array([0.0]), ONE, gamma=0.5)
    cut_off = generalized_advantages(rewards, values, np.array([8.0]), ONE, gamma=0.5)
    assert ended.advantages.tolist() == [0.0, 0.0, 0.0]
    assert cut_off.advantages.tolist() == [1.0, 2.0, 4.0]


def test_with_lambda_0_only_the_next_state_counts() -> None:
    rewards, values = np.array([0.0, 0.0, 1.0]), np.array([0.25, 0.5, 0.25])
    credit = generalized_advantages(rewards, values, np.zeros(1), ONE, gae_lambda=0.0)
    assert credit.advantages.tolist() == [0.25, -0.25, 0.75]
    assert credit.targets.tolist() == [0.5, 0.25, 1.0]


def test_a_perfect_critic_leaves_no_advantage() -> None:
    credit = generalized_advantages(
        np.array([0.5, 0.0, 1.0]), np.array([1.5, 1.0, 1.0]), np.zeros(1), ONE, gae_lambda=0.7
    )
    assert credit.advantages.tolist() == [0.0, 0.0, 0.0]


def test_arrays_of_other_episodes_are_refused() -> None:
    with pytest.raises(RecordError, match="one value per token"):
        generalized_advantages(np.zeros(2), np.zeros(2), np.zeros(1), ONE)
