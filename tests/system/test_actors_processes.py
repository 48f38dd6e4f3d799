"""Actors as real processes: drained, killed, blocked. Waits have generous limits; no duration is asserted."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from forebay.actors.pool import ActorPool
from forebay.actors.settings import ActorSettings
from forebay.clock import SystemClock
from forebay.envs.registry import load_environment
from forebay.envs.settings import EnvironmentSettings
from forebay.store.rules import RuleStore
from tests.system.actor_process import open_test_store
from tests.unit.actors.support import (
    CHAT,
    ScriptedGenerator,
    calculator_task,
    group,
    kind,
    make_store,
    take_all,
)

HANG_S = 200.0
pytestmark = pytest.mark.timeout(300)


@contextmanager
def actor(store: Path, mode: str = "work") -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.system.actor_process", str(store), mode],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < deadline_s, "nothing happened"
        time.sleep(0.02)


def new_store(path: Path, num_groups: int) -> RuleStore:
    store = open_test_store(str(path))
    store.rewind(0)
    store.dispatch([group(serial) for serial in range(num_groups)], incarnation=0)
    return store


def test_sigterm_finishes_what_runs_and_exits_with_0(tmp_path: Path) -> None:
    store = new_store(tmp_path / "store", 40)
    with actor(tmp_path / "store") as process:
        wait_for(lambda: store.stats().leased_slots > 0)
        process.send_signal(signal.SIGTERM)
        assert process.wait(HANG_S) == 0
    stats = store.stats()
    assert stats.leased_slots == 0
    assert stats.counters["accepted"] == stats.counters["claimed"] - stats.counters.get("released", 0)
    assert stats.counters["accepted"] % 4 == 0
    store.close()


def test_c42_kill_9_of_an_actor_loses_nothing_and_repeats_nothing(tmp_path: Path) -> None:
    store = new_store(tmp_path / "store", 30)
    for _ in range(2):
        with actor(tmp_path / "store") as process:
            seen = store.stats().counters.get("claimed", 0)
            wait_for(lambda seen=seen: store.stats().counters.get("claimed", 0) > seen)  # type: ignore[misc]
            process.kill()
            process.wait(HANG_S)
    with actor(tmp_path / "store"):
        wait_for(lambda: store.stats().settled_groups == 30)
    groups = take_all(store)
    assert store.stats().counters["accepted"] == 120
    assert store.stats().counters["expired"] >= 1
    assert sorted((t.group_id, t.member) for g in groups for t in g.trajectories) == sorted(
        (f"g{serial}", member) for serial in range(30) for member in range(4)
    )
    assert {t.reward for g in groups for t in g.trajectories} == {1.0}
    store.close()


def test_an_environment_that_blocks_the_loop_for_good_ends_the_process_and_is_named(tmp_path: Path) -> None:
    store = new_store(tmp_path / "store", 1)
    with actor(tmp_path / "store", "block") as process:
        _, errors = process.communicate(timeout=HANG_S)
    assert process.returncode == 4
    assert "calculator/g0." in errors
    assert "environment.calculator.blocking = true" in errors
    assert "in block" in errors
    store.close()


def test_a_blocking_environment_in_workers_never_slows_the_others(tmp_path: Path) -> None:
    async def main() -> None:
        blocking = load_environment(
            EnvironmentSettings(
                entrypoint="tests.unit.envs.plugin_for_tests:Blocking",
                name="blocking",
                blocking=True,
                kwargs={"directory": str(tmp_path)},
                step_timeout_s=3.0,
            ),
            SystemClock(),
        )
        store = make_store(
            [
                group(0, calculator_task(environment="blocking"), size=2),
                *[group(serial, calculator_task("1+2")) for serial in range(1, 6)],
            ],
            SystemClock(),
        )
        generator = ScriptedGenerator(policy=lambda p: "#3" if "1+2" in p else "hang", delay_s=0.01)
        pool = ActorPool(
            store=store,
            generator=generator,
            chat=CHAT,
            environments={"blocking": blocking, "calculator": kind()},
            settings=ActorSettings(max_turn_tokens=16),
            run_seed=0,
            name="actor-0",
            clock=SystemClock(),
        )
        running = asyncio.create_task(pool.run())
        settled: list[str] = []
        async with asyncio.timeout(HANG_S):
            while len(settled) < 6:
                settled += [g.spec.group_id for g in take_all(store)]
                await asyncio.sleep(0.05)
        assert settled[-1] == "g0"
        assert store.stats().counters["timeouts"] == 2
        pool.drain()
        await running
        await blocking.close()

    asyncio.run(main())
