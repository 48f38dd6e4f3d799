"""Settings of the pool: how many episodes at once."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from forebay.actors.settings import ActorSettings


@pytest.mark.parametrize("value", [0, -1, 10_001, 3.5, True, "many", "", None])
def test_what_is_neither_a_number_nor_auto_is_refused_in_one_line(value: object) -> None:
    with pytest.raises(ValidationError) as refused:
        ActorSettings(episodes_per_process=value)
    (error,) = refused.value.errors()
    assert error["msg"] == f'Value error, should be a whole number from 1 to 10000, or "auto", got {value!r}'


def test_a_number_is_the_most_there_ever_is() -> None:
    fixed = ActorSettings(episodes_per_process=300, max_episodes_per_process=7)
    assert (fixed.controlled, fixed.most_episodes, fixed.evaluation_episodes) == (False, 300, 300)
    assert not ActorSettings().controlled


def test_auto_begins_small_over_all_processes_and_has_a_most() -> None:
    auto = ActorSettings(episodes_per_process="auto", processes=4)
    assert (auto.controlled, auto.first_episodes, auto.most_episodes) == (True, 16, 1024)
    assert auto.evaluation_episodes == 128
    few = ActorSettings(episodes_per_process="auto", max_episodes_per_process=3)
    assert (few.first_episodes, few.most_episodes, few.evaluation_episodes) == (3, 3, 3)
    assert ActorSettings(episodes_per_process="auto", processes=64).first_episodes == 16
