from __future__ import annotations

import asyncio
import math

import numpy as np
import pytest

from forebay.chat import Message
from forebay.clock import ManualClock
from forebay.envs.calculator import Calculator
from forebay.envs.latency import DelayModel, LatencyEnvironment, LatencySettings
from forebay.envs.protocol import Action
from forebay.trajectory import Task

SETTINGS = LatencySettings(mean_s=1.0, sigma=0.5, straggler_probability=0.05, straggler_factor=8.0)


def draws(settings: LatencySettings, count: int = 20_000) -> np.ndarray:
    return np.array([DelayModel(settings, seed).delay_s(1) for seed in range(count)])


def test_delays_have_the_mean_and_spread_that_were_asked_for() -> None:
    plain = draws(SETTINGS.model_copy(update={"straggler_probability": 0.0}))
    assert plain.mean() == pytest.approx(1.0, abs=0.02)
    assert np.log(plain).std() == pytest.approx(0.5, abs=0.01)
    assert np.median(plain) == pytest.approx(math.exp(-0.125), abs=0.02)


def test_stragglers_take_longer_at_their_rate() -> None:
    ratio = draws(SETTINGS) / draws(SETTINGS.model_copy(update={"straggler_probability": 0.0}))
    assert set(np.unique(ratio.round(6))) == {1.0, 8.0}
    assert (ratio > 2).mean() == pytest.approx(0.05, abs=0.006)


def test_a_delay_depends_on_the_episode_and_the_call_alone() -> None:
    assert DelayModel(SETTINGS, 5).delay_s(3) == DelayModel(SETTINGS, 5).delay_s(3)
    assert (
        len({DelayModel(SETTINGS, seed).delay_s(call) for seed in range(10) for call in range(1, 10)}) == 90
    )


def test_answers_take_time_and_verdicts_take_none() -> None:
    async def main() -> list[float]:
        clock = ManualClock()
        delays = DelayModel(SETTINGS.model_copy(update={"reset_mean_s": 2.0}), 1)
        environment = LatencyEnvironment(Calculator(), delays, clock)
        times = []
        observation = await environment.reset(
            Task(task_id="t", environment="calculator", payload={"expression": "1+2"})
        )
        assert observation.messages == (Message("user", "1+2"),)
        for text in ("1+2=", "#3"):
            times.append(clock.wall_s())
            outcome = await environment.step(Action(text=text))
        assert outcome.reward == 1.0
        await environment.close()
        return [*times, clock.wall_s()]

    delays = DelayModel(SETTINGS.model_copy(update={"reset_mean_s": 2.0}), 1)
    reset_s, step_s = delays.delay_s(0), delays.delay_s(1)
    assert asyncio.run(main()) == pytest.approx([reset_s, reset_s + step_s, reset_s + step_s])


def test_no_delay_by_default() -> None:
    assert DelayModel(LatencySettings(), 0).delay_s(1) == 0.0
