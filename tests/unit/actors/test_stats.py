"""Every episode that a pool began is accounted for, however it ended."""

from __future__ import annotations

import asyncio

import pytest

from forebay.actors.stats import PLACES, EpisodeStats
from forebay.chat import Message
from forebay.cli.acting import episode_values
from forebay.envs.protocol import Action, Observation, Outcome
from tests.unit.actors.support import (
    Scripted,
    ScriptedGenerator,
    SlowCalculator,
    calculator_task,
    group,
    kind,
    make_pool,
    make_store,
    run_until,
    run_virtual,
    take_all,
)


async def break_down(action: Action) -> Outcome:
    await asyncio.sleep(2.0)
    raise RuntimeError("no such page")


def test_an_episode_that_fails_is_counted_by_environment_and_cause_with_what_it_had_sampled() -> None:
    async def main() -> list[EpisodeStats]:
        web = kind(lambda _: Scripted(step=break_down), name="web")
        store = make_store([group(0), group(1, calculator_task("40+2", environment="web"), size=1)])
        pool = make_pool(store, ScriptedGenerator(), kind(lambda _: SlowCalculator()), web)
        await run_until(pool, lambda: store.stats().counters.get("dropped.failed", 0) == 1)
        assert pool.counters["failed.environment"] == pool.counters["failures.web.environment"] == 3
        assert "failures.calculator.environment" not in pool.counters
        return pool.episodes.drain()

    episodes = run_virtual(main())
    failed = [episode for episode in episodes if episode.environment == "web"]
    assert [(e.ending, e.finish, e.num_turns, e.num_action_tokens) for e in failed] == [
        ("failed", None, 1, len("40+2=") + 1)
    ] * 3
    assert failed[0].environment_s == pytest.approx((2.0,))
    assert failed[0].duration_s == pytest.approx(2.05, abs=0.02)
    values = episode_values(episodes)
    assert values["ended.web.failed"] == 3
    assert values["ended.calculator.accepted"] == values["finish.terminated"] == 4
    lengths = sorted(e.num_action_tokens for e in episodes)
    assert (values["lengths.started.p50"], values["lengths.started.p99"]) == (lengths[3], lengths[-1])
    assert values["lengths.started.mean"] == pytest.approx(sum(lengths) / 7)
    assert values["action_tokens.p50"] == 18  # of the finished ones
    assert values["environment_s.web.max"] == pytest.approx(2.0)


def test_an_episode_without_a_generator_is_released_and_one_cut_off_is_cancelled() -> None:
    async def main() -> list[str]:
        async def sleep(action: Action) -> Outcome:
            await asyncio.sleep(500.0)
            return Outcome()

        generator = ScriptedGenerator()
        endless = kind(lambda _: Scripted(step=sleep), step_timeout_s=900.0, episode_timeout_s=900.0)
        store = make_store([group(0, size=1), group(1, size=1)])
        pool = make_pool(store, generator, endless, episodes_per_process=1, drain_s=0.0)
        generator.delay_s = 0.1
        running = asyncio.create_task(pool.run())
        await asyncio.sleep(0.05)
        generator.down = True  # in the middle of the first request
        await asyncio.sleep(0.2)
        generator.down = False
        await asyncio.sleep(5.0)
        pool.drain()
        await running
        return [episode.ending for episode in pool.episodes.drain()]

    assert run_virtual(main()) == ["released", "cancelled"]


def test_no_episodes_have_no_figures() -> None:
    assert episode_values([]) == {}


def test_where_each_live_episode_is_can_be_seen() -> None:
    async def main() -> None:
        async def take_a_while(*_: object) -> Observation:
            await asyncio.sleep(10.0)
            return Observation((Message("user", "1+1"),))

        async def answer(action: Action) -> Outcome:
            await asyncio.sleep(5.0)
            return Outcome(reward=1.0, terminated=True)

        slow = kind(lambda _: Scripted(reset=take_a_while, step=answer))
        store = make_store([group(0, size=3)])
        pool = make_pool(store, ScriptedGenerator(delay_s=2.0), slow)
        await run_until(pool, lambda: store.stats().settled_groups == 1)
        looks = pool.counters["looks"]
        # 17 s, of which 10 are the reset, 2 the generator and 5 the environment; looks come twice a second.
        assert 15 <= looks <= 60
        assert (
            pool.counters["seen.reset"] > pool.counters["seen.environment"] > pool.counters["seen.generator"]
        )
        assert sum(pool.counters[f"seen.{place}"] for place in PLACES) <= 3 * looks
        assert pool.counters["seen_squared.reset"] == 3 * pool.counters["seen.reset"]
        (group_0,) = take_all(store)
        assert {round(t.reset_s, 6) for t in group_0.trajectories} == {10.0}

    run_virtual(main())
