"""Blocking environments in real processes."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import psutil
import pytest

from forebay.clock import SystemClock
from forebay.envs.protocol import Action, Observation
from forebay.envs.registry import load_environment
from forebay.envs.settings import EnvironmentSettings
from forebay.envs.worker import WorkerPool
from forebay.errors import EnvironmentFailure
from forebay.trajectory import Task

PLUGIN = "tests.unit.envs.plugin_for_tests"
TASK = Task(task_id="t", environment="e", payload={})
HANG_S = 30.0


def pid_of(observation: Observation) -> int:
    return int(observation.messages[0].content)


def alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


async def gone(*pids: int) -> None:
    async with asyncio.timeout(HANG_S):
        while any(alive(pid) for pid in pids):
            await asyncio.sleep(0.02)


def test_a_worker_serves_one_episode_after_another() -> None:
    async def main() -> None:
        kind = load_environment(
            EnvironmentSettings(entrypoint=f"{PLUGIN}:Blocking", blocking=True), SystemClock()
        )
        pids = []
        for _ in range(2):
            environment = kind.make(0)
            pids.append(pid_of(await environment.reset(TASK)))
            outcome = await environment.step(Action(text="hello"))
            assert (outcome.observation.messages[0].content, outcome.reward) == ("hello", 0.5)
            assert outcome.metrics == {"n": 1.0}
            assert (await environment.step(Action(text="nan"))).reward is None
            await environment.close()
        assert pids[0] == pids[1] != os.getpid()
        await kind.close()
        await gone(pids[0])

    asyncio.run(main())


def test_asynchronous_environments_can_run_in_a_worker_too() -> None:
    async def main() -> None:
        pool = WorkerPool("forebay.envs.calculator:Calculator", {})
        environment = pool.environment()
        await environment.reset(Task(task_id="t", environment="e", payload={"expression": "1+2"}))
        assert (await environment.step(Action(text="1+2="))).observation.messages[0].content == "3"
        assert (await environment.step(Action(text="#3"))).reward == 1.0
        await environment.close()
        await pool.close()

    asyncio.run(main())


def test_c41_a_call_cancelled_at_its_deadline_kills_the_whole_process_tree(tmp_path: Path) -> None:
    async def main() -> None:
        pool = WorkerPool(f"{PLUGIN}:Blocking", {"directory": str(tmp_path)})
        environment = pool.environment()
        worker = pid_of(await environment.reset(TASK))
        step = asyncio.create_task(environment.step(Action(text="hang")))
        async with asyncio.timeout(HANG_S):
            while not (tmp_path / "ready").exists():
                await asyncio.sleep(0.02)
        step.cancel()
        with pytest.raises(asyncio.CancelledError):
            await step
        children = [int(path.name.split("-")[1]) for path in tmp_path.glob("pid-*")]
        assert len(children) == 2  # one of them in a session of its own
        await gone(worker, *children)
        await environment.close()
        await pool.close()

    asyncio.run(main())


@pytest.mark.parametrize("fault", ["raise", "exit"])
def test_a_worker_that_dies_is_an_environment_failure_and_the_next_episode_gets_another(fault: str) -> None:
    async def main() -> None:
        pool = WorkerPool(f"{PLUGIN}:Blocking", {})
        environment = pool.environment()
        first = pid_of(await environment.reset(TASK))
        with pytest.raises(EnvironmentFailure, match=f"worker {first} ended"):
            await environment.step(Action(text=fault))
        await environment.close()
        environment = pool.environment()
        assert pid_of(await environment.reset(TASK)) != first
        await environment.close()
        await pool.close()

    asyncio.run(main())


def test_workers_die_with_the_actor(tmp_path: Path) -> None:
    """A killed actor closes its pipes; a worker that is stuck at that time dies too."""

    async def main() -> None:
        pool = WorkerPool(f"{PLUGIN}:Blocking", {"directory": str(tmp_path)})
        environment = pool.environment()
        worker = pid_of(await environment.reset(TASK))
        step = asyncio.create_task(environment.step(Action(text="hang")))
        async with asyncio.timeout(HANG_S):
            while not (tmp_path / "ready").exists():
                await asyncio.sleep(0.02)
        process = environment._worker._process  # type: ignore[union-attr]
        assert process.stdin is not None
        process.stdin.close()
        children = [int(path.name.split("-")[1]) for path in tmp_path.glob("pid-*")]
        await gone(worker, *children)
        with pytest.raises(EnvironmentFailure):
            await step
        await pool.close()

    asyncio.run(main())
