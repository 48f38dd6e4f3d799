from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from forebay.envs.protocol import Environment
from forebay.envs.registry import EnvironmentKind
from forebay.envs.settings import EnvironmentSettings
from forebay.errors import ConfigError
from forebay.planner.audit import Audit, conclude
from forebay.planner.probe_actions import choose_actions
from forebay.planner.probing import MAX_CALLS, Prober, measure_overhead_s
from forebay.trajectory import Task
from tests.unit.actors.support import VirtualLoop
from tests.unit.planner.probed import Broken, HangingNow, Queueing, RateLimited, Service, Speaking, Steady

TASKS = tuple(Task(task_id=f"t{i}", environment="e", payload={"number": i}) for i in range(64))


async def _nothing() -> None:
    pass


def prober(make: Callable[[], Environment], episode_timeout_s: float = 600.0) -> Prober:
    settings = EnvironmentSettings(
        entrypoint="tests.unit.planner.probed:Steady",
        name="e",
        step_timeout_s=5.0,
        episode_timeout_s=episode_timeout_s,
        max_turns=4,
    )
    return Prober(
        EnvironmentKind("e", settings, lambda _: make(), _nothing),
        choose_actions(settings, TASKS, action="go on"),
    )


def measure(
    make: Callable[[], Callable[[], Environment]], *levels: int, window_s: float = 40.0, drain_s: float = 40.0
) -> Audit:
    """Probe in virtual time."""

    async def probe() -> Prober:
        probing = prober(make())
        for level in levels:
            await probing.run_level(level, window_s, drain_s)
        return probing

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return conclude("e", "text", runner.run(probe()).levels, own_call_s=0.0)


def test_undisturbed_episodes_are_as_fast_at_every_level() -> None:
    audit = measure(lambda: Steady, 1, 8)
    assert audit.knee.kind == "scales"
    one, eight = audit.levels
    # Three steps of a second and a reset: four answers in three seconds.
    assert one.answers_per_s.value == pytest.approx(4 / 3, rel=0.05)
    assert eight.answers_per_s.value == pytest.approx(8 * 4 / 3, rel=0.05)
    assert one.step_s is not None and eight.step_s is not None and audit.turns is not None
    assert one.step_s.max == pytest.approx(1.0) == eight.step_s.p50
    assert audit.turns.mean == 3.0
    assert audit.observed_characters is not None and audit.observed_characters.mean == 36.0


def test_a_service_that_queues_has_its_knee_where_the_queue_begins() -> None:
    def shared() -> Callable[[], Environment]:
        service = Service(4)
        return lambda: Queueing(service)

    audit = measure(shared, 1, 2, 4, 8)
    assert (audit.knee.kind, audit.knee.concurrency) == ("saturates", 4)
    four, eight = audit.levels[2:]
    assert four.step_s is not None and eight.step_s is not None
    assert (four.step_s.p95, eight.step_s.p95) == pytest.approx((1.0, 2.0), rel=0.01)
    assert audit.details == {}


def test_a_rate_limit_has_its_knee_there_and_its_refusals_counted() -> None:
    def shared() -> Callable[[], Environment]:
        service = Service(4)
        return lambda: RateLimited(service)

    audit = measure(shared, 1, 2, 4, 8)
    assert (audit.knee.kind, audit.knee.concurrency) == ("saturates", 4)
    assert [level.num_errors for level in audit.levels[:3]] == [0, 0, 0]
    assert audit.levels[3].num_errors > 10
    assert set(audit.levels[3].errors) == {"step: RuntimeError"}
    assert audit.details["step: RuntimeError"] == "RuntimeError: 429: too many requests"


def test_episodes_that_hang_end_at_their_deadline_and_stop_no_other() -> None:
    audit = measure(lambda: HangingNow, 4)
    (level,) = audit.levels
    assert level.errors == {"step: timeout": level.num_timeouts}
    assert level.num_timeouts > 0
    assert level.num_episodes - level.num_timeouts > 2 * level.num_timeouts
    assert level.episode_s is not None and level.episode_s.max == pytest.approx(3.0)


def test_the_deadline_of_an_episode_is_told_from_that_of_a_step() -> None:
    async def probe() -> Prober:
        probing = prober(lambda: Steady(step_s=2.0), episode_timeout_s=5.0)
        await probing.run_level(1, 10.0, 10.0)
        return probing

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        (level,) = runner.run(probe()).levels
    assert {episode.error for episode in level.episodes} == {"episode: timeout"}
    assert level.episodes[0].detail == "not over within episode_timeout_s = 5 s"
    assert (level.episodes[0].num_turns, level.episodes[0].duration_s) == (2, pytest.approx(5.0))


def test_what_is_still_running_at_the_end_is_cut() -> None:
    audit = measure(lambda: Steady, 2, window_s=4.0, drain_s=1.0)
    (level,) = audit.levels
    assert (level.num_episodes, level.num_cut) == (2, 2)
    assert level.episode_s is not None and level.episode_s.num_samples == 2


def test_an_environment_that_always_fails_is_given_up() -> None:
    async def probe() -> Prober:
        probing = prober(Broken)
        await probing.run_level(2, 1000.0, 0.0)
        assert probing.is_hopeless
        return probing

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        (level,) = runner.run(probe()).levels
    assert 8 <= len(level.episodes) <= 10
    assert level.episodes[0].detail == "OSError: no tool server at port 7"
    assert level.episodes[0].error == "reset: OSError"


def test_a_cancelled_level_keeps_what_it_has_measured() -> None:
    async def probe() -> Prober:
        probing = prober(Steady)
        running = asyncio.create_task(probing.run_level(2, 40.0, 0.0))
        await asyncio.sleep(7.5)
        assert len(probing.measured()[0].episodes) == 6
        running.cancel()
        await asyncio.wait({running})
        assert running.cancelled()
        return probing

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        (level,) = runner.run(probe()).levels
    assert level.window_s == pytest.approx(7.5, abs=0.01)
    assert [episode.ending for episode in level.episodes].count("terminated") == 4
    assert [episode.ending for episode in level.episodes].count("cut") == 2


def test_a_fast_environment_is_not_measured_longer_than_it_takes() -> None:
    async def probe() -> Prober:
        probing = prober(lambda: Steady(step_s=0.001))
        await probing.run_level(4, 1000.0, 0.0)
        return probing

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        (level,) = runner.run(probe()).levels
    num_calls = sum(len(episode.calls) for episode in level.episodes)
    assert MAX_CALLS <= num_calls <= MAX_CALLS + 40
    assert level.window_s < 10.0


def test_the_measurement_has_a_cost_of_its_own() -> None:
    assert asyncio.run(measure_overhead_s(0.05)) > 0.0


def test_demonstrations_are_played_and_their_last_answer_repeated() -> None:
    settings = EnvironmentSettings(entrypoint="tests.unit.planner.probed:Speaking", name="e")
    actions = choose_actions(settings, TASKS)
    said = actions.of(5)
    assert [next(said) for _ in range(4)] == ["5.0", "5.1", "5.1", "5.1"]
    heard: list[Speaking] = []

    def make() -> Environment:
        heard.append(Speaking(step_s=0.0))
        return heard[-1]

    async def probe() -> None:
        await Prober(EnvironmentKind("e", settings, lambda _: make(), _nothing), actions).run_level(
            1, 1.0, 0.0
        )

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(probe())
    assert heard[3].heard == ("3.0", "3.1", "3.1")


def test_random_answers_have_their_length_and_need_no_demonstrations() -> None:
    settings = EnvironmentSettings(entrypoint="tests.unit.planner.probed:Steady", name="e")
    actions = choose_actions(settings, TASKS, length=9)
    said = actions.of(0)
    assert {len(next(said)) for _ in range(5)} == {9}
    assert actions.about == "random text of 9 characters"
    with pytest.raises(ConfigError, match="cannot make demonstrations"):
        choose_actions(settings, TASKS, policy="demonstrations")
