from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from forebay.objectives import (
    AdvantageEstimator,
    ObjectiveSettings,
    Outcome,
    build_advantage,
    build_batch_advantages,
)
from forebay.objectives.settings import shaped_rewards
from tests.golden import oracle

CASES = json.loads((Path(__file__).parent / "expected.json").read_text())

ESTIMATORS: dict[str, AdvantageEstimator] = {
    "mean": build_advantage(ObjectiveSettings(advantage="group_mean")),
    "ddof0": build_advantage(ObjectiveSettings(advantage="group_mean_std", advantage_ddof=0)),
    "ddof1": build_advantage(ObjectiveSettings(advantage="group_mean_std", advantage_ddof=1)),
    "rloo": build_advantage(ObjectiveSettings(advantage="leave_one_out")),
}


@pytest.mark.parametrize("estimator", ESTIMATORS.values(), ids=ESTIMATORS.keys())
def test_c12_equal_rewards_give_exactly_zero(estimator: AdvantageEstimator) -> None:
    groups = [np.full(n, value, dtype=np.float32) for value in (0.1, 0.3, 0.7) for n in (3, 5, 6, 7, 10)]
    results = [estimator(group) for group in [CASES["C12"]["input"]["rewards"], *groups]]
    assert max(np.abs(result.advantages).max() for result in results) == 0.0
    assert all(result.zero_spread and result.scored.all() for result in results)


def test_c12_counter_of_groups_without_spread() -> None:
    groups = [[1.0, 1.0, 1.0, 1.0], [1.0, 0.0, 1.0, 0.0]]
    assert sum(ESTIMATORS["mean"](group).zero_spread for group in groups) == 1


@pytest.mark.parametrize("estimator", ESTIMATORS.values(), ids=ESTIMATORS.keys())
def test_c14_group_of_one_gets_zero_never_nan(estimator: AdvantageEstimator) -> None:
    result = estimator(CASES["C14"]["input"]["rewards"])
    assert result.advantages.tolist() == [0.0]
    assert result.scored.tolist() == [True]


@pytest.mark.parametrize("kind", ["mean", "ddof0", "ddof1", "rloo"])
@pytest.mark.parametrize("missing", [None, float("nan"), float("inf")])
def test_c15_missing_reward_masks_the_member_not_its_siblings(kind: str, missing: float | None) -> None:
    case = CASES["C15"]
    rewards = [missing if reward is None else reward for reward in case["input"]["rewards"]]
    result = ESTIMATORS[kind](rewards)
    np.testing.assert_allclose(result.advantages, case["expect"]["adv"][kind], atol=1e-6)
    assert result.scored.astype(int).tolist() == case["expect"]["loss_rows"]
    assert result.reward_mean == pytest.approx(case["expect"]["reward_mean_metric"], abs=1e-6)
    assert (~result.scored).sum() == case["expect"]["unscored"]


@pytest.mark.parametrize(
    ("advantage", "ddof"),
    [("none", 1), ("none", 0), ("group_mean", 1), ("group_mean_std", 1), ("leave_one_out", 0)],
)
def test_advantages_over_the_batch_match_the_oracle(advantage: str, ddof: int) -> None:
    rng = np.random.default_rng(7)
    groups: list[list[float | None]] = [[float(r) for r in rng.normal(size=size)] for size in (2, 4, 8, 3)]
    groups += [[0.5, 0.5, 0.5], [None, 1.0, float("nan"), -1.0], [None, None]]
    settings = ObjectiveSettings(advantage=advantage, advantage_ddof=ddof, normalize_advantages=True)
    results = build_batch_advantages(settings)([[Outcome(r, 1) for r in group] for group in groups])
    for result, expected in zip(results, oracle.batch_advantages(groups, advantage, ddof), strict=True):
        np.testing.assert_allclose(result.advantages, expected, rtol=1e-12, atol=1e-15)
    assert [result.zero_spread for result in results] == [False] * 4 + [advantage != "none", False, False]
    if advantage != "none":
        assert results[4].advantages.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("advantage", ["none", "group_mean"])
def test_c12_equal_rewards_over_the_whole_batch_give_exactly_zero(advantage: str) -> None:
    estimate = build_batch_advantages(ObjectiveSettings(advantage=advantage, normalize_advantages=True))
    for value, size in ((0.1, 7), (0.3, 7), (0.7, 10)):
        results = estimate([[Outcome(float(np.float32(value)), 1)] * size] * 3)
        assert max(np.abs(result.advantages).max() for result in results) == 0.0
        assert all(result.zero_spread for result in results)


@pytest.mark.parametrize("length", [0, 79, 80, 81, 90, 99, 100, 101, 500])
def test_overlong_penalty_matches_the_oracle(length: int) -> None:
    settings = ObjectiveSettings(overlong_tokens=100, overlong_cache_tokens=20)
    shaped = shaped_rewards(settings, [Outcome(1.0, length), Outcome(None, length)])
    assert shaped == [pytest.approx(1.0 + oracle.overlong(length, 100, 20), abs=1e-12), None]


def test_the_overlong_penalty_is_taken_before_the_comparison() -> None:
    settings = ObjectiveSettings(overlong_tokens=10, overlong_cache_tokens=10)
    (group,) = build_batch_advantages(settings)([[Outcome(1.0, 0), Outcome(1.0, 5), Outcome(None, 10)]])
    assert group.advantages.tolist() == [0.25, -0.25, 0.0]
    assert not group.zero_spread


def test_c21_groups_with_the_same_prompt_stay_apart() -> None:
    case = CASES["C21"]
    groups = [case["input"]["group_A"], case["input"]["group_B"]]
    assert [ESTIMATORS["mean"](group).advantages.tolist() for group in groups] == case["expect"]["mean"]


@pytest.mark.parametrize(
    ("name", "kind", "ddof"),
    [
        ("mean", "group_mean", 1),
        ("ddof0", "group_mean_std", 0),
        ("ddof1", "group_mean_std", 1),
        ("rloo", "leave_one_out", 1),
    ],
)
def test_advantages_match_the_oracle(name: str, kind: str, ddof: int) -> None:
    rng = np.random.default_rng(5)
    for size in (2, 3, 8, 16):
        rewards: list[float | None] = [float(r) for r in rng.normal(size=size)]
        if size > 3:
            rewards[1] = None
        expected = oracle.advantages(rewards, kind, ddof)
        np.testing.assert_allclose(ESTIMATORS[name](rewards).advantages, expected, rtol=1e-6, atol=1e-7)
