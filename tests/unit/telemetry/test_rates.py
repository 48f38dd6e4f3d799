import pytest

from forebay.clock import ManualClock
from forebay.telemetry.rates import RateMeter, mean_over_episodes, mean_reward


def test_c71_each_interval_has_its_own_rate_and_padding_its_own_meter():
    clock = ManualClock()
    tokens, padded = RateMeter(clock), RateMeter(clock)
    rates, padded_rates = [], []
    for num_padding in (500, 100, 0):
        clock.advance(2.0)
        tokens.add(1000)
        padded.add(1000 + num_padding)
        rates.append(tokens.read())
        padded_rates.append(padded.read())
    assert rates == [500.0, 500.0, 500.0]
    assert padded_rates == [750.0, 550.0, 500.0]
    assert tokens.total == 3000


def test_an_interval_without_time_has_no_rate_and_loses_no_count():
    clock = ManualClock()
    meter = RateMeter(clock)
    meter.add(10)
    assert meter.read() is None
    clock.advance(5.0)
    assert meter.read() == 2.0
    clock.advance(1.0)
    assert meter.read() == 0.0


def test_c72_the_reward_mean_does_not_weigh_episodes_by_their_turns():
    turns, rewards = [1, 1, 10, 10], [1.0, 1.0, 0.0, 0.0]
    episodes = [
        {"reward": reward, "turns": float(count)} for reward, count in zip(rewards, turns, strict=True)
    ]
    assert mean_over_episodes(episodes) == {"reward": 0.5, "turns": 5.5}
    assert mean_reward(rewards) == 0.5


def test_c74_an_episode_without_the_metric_counts_as_zero():
    flagged = [1, 0, 0, 0, 1, 0, 0, 0]
    episodes = [{"filtered": 1.0} if flag else {} for flag in flagged]
    assert mean_over_episodes(episodes) == {"filtered": 0.25}
    assert mean_over_episodes([]) == {}


def test_c15_a_missing_reward_is_not_zero():
    assert mean_reward([1.0, None, 0.0, 1.0]) == pytest.approx(2 / 3)
    assert mean_reward([None]) is None
