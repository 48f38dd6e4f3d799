from __future__ import annotations

import pytest
from pydantic import ValidationError

from forebay.envs.settings import EnvironmentSettings


def test_names_come_from_the_entrypoint() -> None:
    assert EnvironmentSettings().label == "calculator"
    assert EnvironmentSettings(entrypoint="my.module:MyEnv").label == "MyEnv"
    assert EnvironmentSettings(entrypoint="my.module:MyEnv", name="mine").label == "mine"


@pytest.mark.parametrize(
    "wrong",
    [
        {"entrypoint": "../evil:Class"},
        {"entrypoint": "os:system()"},
        {"entrypoint": "a b"},
        {"name": "../x"},
        {"weight": 0.0},
        {"kwarg": {}},
        {"holdout_fraction": 1.0},
    ],
)
def test_what_cannot_work_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        EnvironmentSettings(**wrong)  # type: ignore[arg-type]


def test_a_step_cannot_outlast_its_episode() -> None:
    with pytest.raises(ValidationError, match=r"step_timeout_s=700.0 exceeds episode_timeout_s=600.0"):
        EnvironmentSettings(step_timeout_s=700.0)
