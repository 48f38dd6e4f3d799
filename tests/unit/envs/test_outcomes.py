from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from forebay.envs.outcomes import checked_observation, checked_outcome
from forebay.envs.protocol import Message, Observation, Outcome


def outcome(**values: Any) -> Outcome:
    return checked_outcome(Outcome(**values))


@pytest.mark.parametrize(
    ("reward", "taken"),
    [(1, 1.0), (True, 1.0), (np.float32(0.5), 0.5), (np.int64(2), 2.0), (None, None)],
)
def test_every_number_is_a_float(reward: Any, taken: float | None) -> None:
    checked = outcome(reward=reward).reward
    assert (checked, type(checked)) == (taken, type(taken))


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf, np.float64("nan")])
def test_c15_a_reward_that_is_not_finite_is_none_and_never_zero(reward: Any) -> None:
    assert outcome(reward=reward).reward is None


@pytest.mark.parametrize("reward", ["1.0", b"1", [1.0], {"reward": 1.0}, object()])
def test_what_is_no_number_is_refused_and_named(reward: Any) -> None:
    with pytest.raises(TypeError, match=f"a reward must be a number, got {type(reward).__name__}"):
        outcome(reward=reward)


def test_flags_and_metrics_are_made_plain() -> None:
    checked = outcome(terminated=np.bool_(True), metrics={"a": np.float32(0.5), "b": math.inf})
    assert (checked.terminated, checked.truncated) == (True, False)
    assert type(checked.terminated) is bool
    assert checked.metrics == {"a": 0.5}
    with pytest.raises(TypeError, match="metric 'a' must be a number, got str 'many'"):
        outcome(metrics={"a": "many"})


@pytest.mark.parametrize("value", [None, "text", ("user", "text"), Observation(("text",))])  # type: ignore[arg-type]
def test_observations_hold_messages(value: Any) -> None:
    with pytest.raises(TypeError, match="expected an Observation of Messages"):
        checked_observation(value)
    with pytest.raises(TypeError, match="expected an Outcome"):
        checked_outcome(value)
    said = Observation((Message("user", "text"),))
    assert checked_observation(said) is said
