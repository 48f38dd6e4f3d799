"""The policy gradient of siblings that do not wait, by enumeration of every course of a small task."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.siblings_study.bias import (
    PROBLEMS,
    Answer,
    Problem,
    courses,
    estimate,
    finished_advantages,
    true_gradient,
)

POLICIES = [np.array(policy) for policy in ((0.9, 0.1), (0.5, 0.5), (0.1, 0.9))]
SHORT_IS_WRONG, LONG_IS_WRONG = PROBLEMS[:2]


def bias(problem: Problem, policy, *rule) -> float:
    """Return the distance between the expected and the true gradient, in units of the true one."""
    true = true_gradient(problem.answers, policy)
    found = estimate(courses(problem.answers, *rule), policy).mean
    return float(np.linalg.norm(found - true) / np.linalg.norm(true))


def test_every_course_is_there() -> None:
    for rule in ("all", "pairs", "finished"):
        of = courses(SHORT_IS_WRONG.answers, rule)
        for policy in POLICIES:
            assert float(of.weights @ policy[of.answers].prod(axis=1)) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("problem", [SHORT_IS_WRONG, LONG_IS_WRONG], ids=["short", "long"])
def test_whole_groups_and_pairs_are_unbiased_and_finished_siblings_are_not(problem: Problem, policy) -> None:
    assert bias(problem, policy, "all") < 1e-12
    assert bias(problem, policy, "pairs") < 1e-12
    assert 0.02 < bias(problem, policy, "finished") < 0.2


def test_waiting_for_more_siblings_lowers_the_bias_and_for_all_removes_it() -> None:
    by_needed = [bias(SHORT_IS_WRONG, POLICIES[1], "finished", 4, needed) for needed in (1, 2, 3)]
    assert by_needed[0] > 2 * by_needed[1] > 0.0
    assert by_needed[2] < 1e-12
    assert bias(SHORT_IS_WRONG, POLICIES[1], "finished", 2) < 1e-12, "of two, each waits for the other"


def test_there_is_no_bias_where_length_tells_nothing_about_rewards() -> None:
    answers = tuple(
        Answer(name, reward, mean_s) for name, reward, mean_s in (("a", 1.0, 20.0), ("b", 0.0, 20.0))
    )
    assert bias(Problem("one length", answers, {}), POLICIES[0], "finished") < 1e-12


def test_a_short_episode_meets_those_that_finished_early_and_a_long_one_meets_all() -> None:
    # The first waits for the second; what was trained before stays a sibling.
    found = finished_advantages([0.0, 1.0, 0.0, 1.0], [1, 2, 3, 9])
    assert found == pytest.approx([0.0 - 1.0, 1.0 - 0.0, 0.0 - 0.5, 1.0 - 1.0 / 3.0])
