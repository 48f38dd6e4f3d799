from forebay.telemetry.rates import mean_over_episodes


def test_c72_the_reward_mean_does_not_weigh_episodes_by_their_turns():
    turns, rewards = [1, 1, 10, 10], [1.0, 1.0, 0.0, 0.0]
    episodes = [
        {"reward": reward, "turns": float(count)} for reward, count in zip(rewards, turns, strict=True)
    ]
    assert mean_over_episodes(episodes) == {"reward": 0.5, "turns": 5.5}


def test_c74_an_episode_without_the_metric_counts_as_zero():
    flagged = [1, 0, 0, 0, 1, 0, 0, 0]
    episodes = [{"filtered": 1.0} if flag else {} for flag in flagged]
    assert mean_over_episodes(episodes) == {"filtered": 0.25}
    assert mean_over_episodes([]) == {}
