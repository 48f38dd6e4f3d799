from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from forebay.objectives import AdvantageEstimator, ObjectiveSettings, build_advantage
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
