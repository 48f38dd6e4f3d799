from __future__ import annotations

import threading

import msgspec

from forebay.learner.batch_values import (
    TrainedTrajectory,
    batch_values,
    environment_values,
    fresh_values,
    trained_trajectories,
)
from forebay.trajectory import PolicyVersion, StepRecord, Trajectory
from tests.unit.learner.small_run import act, make_dispatcher, make_feed, open_at
from tests.unit.store.builders import make_spec, make_trajectory


def trajectory(*steps: StepRecord, **fields) -> Trajectory:
    store = open_at()
    store.rewind(0)
    store.dispatch([make_spec(0)], incarnation=0)
    (slot,) = store.claim(1, ttl_s=9.0, actor="a", version=PolicyVersion(0, 0))
    made = make_trajectory(slot)
    return msgspec.structs.replace(made, steps=steps, sequences=made.sequences if steps else (), **fields)


def test_each_environment_has_its_own_figures() -> None:
    web = [
        trajectory(StepRecord(0.0, "stop", 0.0, 0.0, wait_s), environment="web", reward=reward,
                   started_s=10.0, finished_s=10.0 + 2 * wait_s)
        for wait_s, reward in [(1.0, 1.0), (5.0, 0.0), (2.0, None)]
    ]  # fmt: skip
    values = environment_values([*web, trajectory(environment="bash", reward=None)])
    assert (values["trajectories.web"], values["trajectories.bash"]) == (3, 1)
    assert (values["reward.web"], values["reward.bash"]) == (0.5, None)
    assert (values["latency.web.step_s.p50"], values["latency.web.step_s.max"]) == (2.0, 5.0)
    assert (values["latency.web.episode_s.p50"], values["latency.web.episode_s.p99"]) == (4.0, 10.0)
    assert "latency.bash.step_s.p50" not in values


def test_an_environments_share_is_of_trained_tokens_per_turn() -> None:
    turn = StepRecord(0.0, "stop", 0.0, 0.0, 1.0)
    quick, long = trajectory(turn, environment="quick"), trajectory(*[turn] * 4, environment="long")
    # All 3 tokens of the short one, and 4 of the 12 of the long one, whose first turns were too old.
    trained = [TrainedTrajectory(quick, 3), TrainedTrajectory(long, 4)]
    assert fresh_values(trained) == {
        "fresh_tokens_per_turn.quick": 3.0,
        "fresh_tokens_per_turn.long": 1.0,
        "fresh_share.quick": 0.75,
        "fresh_share.long": 0.25,
    }
    alone = fresh_values([TrainedTrajectory(quick, 3), TrainedTrajectory(trajectory(environment="quick"), 0)])
    assert alone == {"fresh_tokens_per_turn.quick": 3.0}
    assert fresh_values([TrainedTrajectory(quick, 0), TrainedTrajectory(long, 0)]) == {
        "fresh_tokens_per_turn.quick": 0.0,
        "fresh_tokens_per_turn.long": 0.0,
    }


def test_a_real_batch_says_how_long_its_trajectories_are() -> None:
    store = open_at()
    store.rewind(0)
    make_dispatcher(store, 0).top_up()
    act(store)
    batch = make_feed(store, 0).next(0, threading.Event())
    assert [count for _, count in trained_trajectories(batch)] == [5, 5, 5, 5]
    values = batch_values(batch, trained_trajectories(batch))
    assert (values["lengths.trained.p50"], values["lengths.accepted.mean"]) == (5, 5.0)
    assert values["finish.terminated"] == 4
    assert values["trajectories.calculator"] == values["trajectories"] == 4
