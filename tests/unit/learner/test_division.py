from __future__ import annotations

from typing import Any

import pytest

from forebay.batching.settings import BatchingSettings
from forebay.config import RunConfig
from forebay.errors import ConfigError
from forebay.learner.division import Division, divide
from forebay.objectives import ObjectiveSettings

LEAVE_ONE_OUT: dict[str, Any] = {"siblings": "finished", "advantage": "leave_one_out"}


def division(objective: dict[str, Any], **batching: int) -> Division:
    return divide(ObjectiveSettings(**objective), BatchingSettings(**batching))


@pytest.mark.parametrize(
    ("objective", "batching", "expected", "groups"),
    [
        ({}, {"group_size": 6, "min_group_size": 3}, Division(1, 6, 3), 8),
        ({"siblings": "pairs"}, {"group_size": 6}, Division(3, 2, 2), 24),
        ({"siblings": "pairs"}, {"group_size": 2}, Division(1, 2, 2), 8),
        (LEAVE_ONE_OUT, {"group_size": 6}, Division(6, 1, 1, 1), 48),
        (LEAVE_ONE_OUT, {"group_size": 6, "min_group_size": 3}, Division(6, 1, 1, 2), 48),
    ],
)
def test_a_batch_is_the_same_episodes_however_they_are_divided(
    objective: dict[str, Any], batching: dict[str, int], expected: Division, groups: int
) -> None:
    divided = division(objective, **batching)
    assert divided == expected
    assert divided.groups(BatchingSettings(**batching)) == groups
    assert divided.size * groups == 8 * batching["group_size"]


@pytest.mark.parametrize(
    ("objective", "batching", "message"),
    [
        ({"siblings": "pairs"}, {"group_size": 5}, "group_size=5, limit an even number.*Set .* to 6"),
        ({"siblings": "pairs"}, {"min_group_size": 3}, "min_group_size=3"),
        ({"siblings": "finished"}, {}, 'advantage = "group_mean", limit "leave_one_out"'),
        (LEAVE_ONE_OUT | {"normalize_advantages": True}, {}, "normalize_advantages = True"),
        (LEAVE_ONE_OUT | {"dynamic_sampling": 2}, {}, "dynamic_sampling = 2"),
    ],
)
def test_contradictions_are_refused_with_the_remedy(
    objective: dict[str, Any], batching: dict[str, int], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        division(objective, **batching)
    with pytest.raises(ValueError, match=message):
        RunConfig(objective=objective, batching=batching)


def test_the_store_must_have_room_for_the_parts() -> None:
    fits = {"batching": {"groups": 64, "group_size": 8}, "store": {"capacity_groups": 1000}}
    RunConfig(**fits)
    with pytest.raises(ValueError, match=r"capacity_groups=1000, limit >= 9 x 512 = 4608"):
        RunConfig(**fits, objective=LEAVE_ONE_OUT)
