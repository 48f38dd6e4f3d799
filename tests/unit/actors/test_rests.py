from __future__ import annotations

import asyncio
import random
from collections import Counter

from forebay.actors.rests import Rests
from forebay.actors.settings import ActorSettings
from forebay.errors import EnvironmentFailure
from tests.unit.actors import support
from tests.unit.actors.support import ScriptedGenerator, calculator_task, group, kind, make_pool, make_store

SETTINGS = ActorSettings(backoff_s=0.5, environment_backoff_max_s=8.0)
ERROR = EnvironmentFailure("no answer")


class FakeTime:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_rests_double_up_to_the_longest_and_begin_anew_after_a_success() -> None:
    time = FakeTime()
    rests = Rests(SETTINGS, time, random.Random(1))
    lengths = []
    for _ in range(7):
        lengths.append(rests.failed("e", ERROR))
        time.now_s += 1.5 * 8.0
    for length, least in zip(lengths, [0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0], strict=True):
        assert least <= length <= 1.5 * least
    assert len(set(lengths[-3:])) == 3, "jitter"
    rests.succeeded("e")
    assert rests.failed("e", ERROR) <= 0.75


def test_failures_within_one_rest_are_one_and_environments_rest_apart() -> None:
    rests = Rests(SETTINGS, FakeTime(), random.Random(2))
    lengths = [rests.failed("e", ERROR) for _ in range(50)]
    assert max(lengths) <= 0.75 and len(set(lengths)) == 50, "they do not come back together"
    assert rests.failed("other", ERROR) <= 0.75


class Failing(support.Scripted):
    """An environment that raises at once, and counts how often it was asked."""

    def __init__(self, asked: Counter[str], name: str) -> None:
        async def reset(task) -> None:
            asked[name] += 1
            raise ValueError("always")

        super().__init__(reset=reset)


def test_an_environment_that_always_fails_is_tried_ever_less_often_and_hinders_nobody() -> None:
    asked: Counter[str] = Counter()

    async def main() -> None:
        bad = [group(i, calculator_task(environment="bad"), size=4) for i in range(40)]
        good = [group(i, calculator_task("40+2", environment="good"), size=4) for i in range(40, 60)]
        store = make_store([*bad, *good])
        pool = make_pool(
            store,
            ScriptedGenerator(policy=lambda prompt: "#42"),
            kind(lambda _: Failing(asked, "bad"), "bad"),
            kind(lambda _: support.Scripted(), "good"),
            episodes_per_process=4,
            environment_backoff_max_s=20.0,
        )
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await support.run_until(pool, lambda: store.stats().settled_groups == 20)
        assert loop.time() - began_s < 20.0, "the places of resting members are free"
        stats = pool.stats()
        assert stats["rests.bad"] == stats["failures.bad.environment"] == asked["bad"]
        assert stats["resting"] == 0 and "rests.good" not in stats

    support.run_virtual(main())
    assert asked["bad"] >= 160, "every member was tried"


def test_a_dead_environment_costs_few_attempts_in_a_long_time() -> None:
    asked: Counter[str] = Counter()

    async def main() -> None:
        store = make_store([group(i, calculator_task(environment="bad"), size=2) for i in range(50)])
        pool = make_pool(
            store,
            ScriptedGenerator(),
            kind(lambda _: Failing(asked, "bad"), "bad"),
            environment_backoff_max_s=30.0,
        )
        loop = asyncio.get_running_loop()
        running = asyncio.create_task(pool.run())
        serial = 50
        while loop.time() < 300.0:
            await asyncio.sleep(0.5)
            store.settle_expired()
            if store.stats().open_groups < 50:  # what is lost is replaced at once, as by a dispatcher
                store.dispatch([group(serial, calculator_task(environment="bad"), size=2)], incarnation=0)
                serial += 1
        pool.drain()
        drained_s = loop.time()
        await running
        assert loop.time() - drained_s < 1.0, "a rest ends when the pool is drained"

    support.run_virtual(main())
    # 100 members, each tried at most once per 30 s in the long run, and a few times on the way there.
    assert asked["bad"] <= 100 * (300 / 30 + 8)


def test_a_failed_episode_is_as_long_as_its_attempt_not_as_its_rest() -> None:
    asked: Counter[str] = Counter()

    async def main() -> None:
        store = make_store([group(0, calculator_task(environment="bad"), size=1)])
        pool = make_pool(
            store, ScriptedGenerator(), kind(lambda _: Failing(asked, "bad"), "bad"), backoff_s=5.0
        )
        await support.run_until(pool, lambda: store.stats().open_groups == 0)
        entries = pool.episodes.drain()
        assert len(entries) == 3 and max(entry.duration_s for entry in entries) < 1.0

    support.run_virtual(main())
