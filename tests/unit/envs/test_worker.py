"""Blocking environments in real processes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from forebay.clock import SystemClock
from forebay.envs.protocol import Action, Observation
from forebay.envs.registry import load_environment, try_environment
from forebay.envs.settings import EnvironmentSettings
from forebay.envs.worker import WorkerEnvironment, WorkerPool, _is_well
from forebay.errors import ConfigError, EnvironmentFailure
from forebay.trajectory import Task

PLUGIN = "tests.unit.envs.plugin_for_tests"
TASK = Task(task_id="t", environment="e", payload={})
HANG_S = 100.0


def pid_of(observation: Observation) -> int:
    return int(observation.messages[0].content)


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


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


def test_a_reset_that_hangs_is_killed_and_the_pool_goes_on(tmp_path: Path) -> None:
    async def main() -> None:
        pool = WorkerPool(f"{PLUGIN}:Blocking", {"directory": str(tmp_path)})
        stuck = Task(task_id="t", environment="e", payload={"hang": True})
        environment = pool.environment()
        reset = asyncio.create_task(environment.reset(stuck))
        async with asyncio.timeout(HANG_S):
            while not (tmp_path / "ready").exists():
                await asyncio.sleep(0.02)
        reset.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reset
        await environment.close()
        (worker,) = pool._workers
        assert not worker.alive
        assert await pool.environment().reset(TASK)
        await pool.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("raise", "ended: ValueError: the environment is broken"),
        ("exit", "ended: SystemExit: 3"),
        ("die", "ended: without a word"),
        ("text reward", "ended: TypeError: a reward must be a number"),
    ],
)
def test_a_worker_that_dies_is_an_environment_failure_and_the_next_episode_gets_another(
    fault: str, reason: str
) -> None:
    async def main() -> None:
        pool = WorkerPool(f"{PLUGIN}:Blocking", {})
        environment = pool.environment()
        first = pid_of(await environment.reset(TASK))
        with pytest.raises(EnvironmentFailure, match=reason):
            await environment.step(Action(text=fault))
        await environment.close()
        environment = pool.environment()
        assert pid_of(await environment.reset(TASK)) != first
        await environment.close()
        await pool.close()

    asyncio.run(main())


ACTOR = f"""
import asyncio, sys
from forebay.envs.protocol import Action, Task
from forebay.envs.worker import WorkerPool

async def main():
    environment = WorkerPool("{PLUGIN}:Blocking", {{"directory": sys.argv[1]}}).environment()
    observation = await environment.reset(Task(task_id="t", environment="e", payload={{}}))
    print(observation.messages[0].content, flush=True)
    await environment.step(Action(text="hang"))

asyncio.run(main())
"""


def test_workers_die_with_the_actor_even_if_they_are_stuck(tmp_path: Path) -> None:
    async def main() -> None:
        actor = await asyncio.create_subprocess_exec(
            sys.executable, "-c", ACTOR, str(tmp_path), stdout=asyncio.subprocess.PIPE
        )
        assert actor.stdout is not None
        worker = int(await actor.stdout.readline())
        async with asyncio.timeout(HANG_S):
            while not (tmp_path / "ready").exists():
                await asyncio.sleep(0.02)
        children = [int(path.name.split("-")[1]) for path in tmp_path.glob("pid-*")]
        actor.kill()
        await actor.wait()
        await gone(worker, *children)

    asyncio.run(main())


def test_what_a_dead_worker_left_behind_is_killed(tmp_path: Path) -> None:
    async def main() -> None:
        pool = WorkerPool(f"{PLUGIN}:Blocking", {"directory": str(tmp_path)})
        environment = pool.environment()
        worker = pid_of(await environment.reset(TASK))
        await environment.step(Action(text="spawn"))
        (child,) = [int(path.name.split("-")[1]) for path in tmp_path.glob("pid-*")]
        assert alive(child)
        os.kill(worker, signal.SIGKILL)
        await gone(worker, child)
        await pool.close()

    asyncio.run(main())


def test_imports_happen_once_and_workers_do_not_share_their_randomness(tmp_path: Path) -> None:
    async def main() -> None:
        pool = WorkerPool(f"{PLUGIN}:Counting", {"directory": str(tmp_path)})
        await pool.check()
        environments = [pool.environment() for _ in range(3)]
        said = [(await environment.reset(TASK)).messages[0].content for environment in environments]
        assert len(list(tmp_path.glob("preload-*"))) == 1
        assert len({draw for draw, _ in map(str.split, said)}) == 3
        assert len({pid for _, pid in map(str.split, said)}) == 3
        await pool.close()

    asyncio.run(main())


def test_an_environment_that_does_not_fork_well_is_imported_by_every_worker(tmp_path: Path) -> None:
    async def main() -> None:
        settings = EnvironmentSettings(entrypoint=f"{PLUGIN}:Unforkable", kwargs={"directory": str(tmp_path)})
        kind = load_environment(settings, SystemClock())
        for _ in range(2):
            await kind.make(0).reset(TASK)
        pids = {path.name for path in tmp_path.glob("preload-*")}
        assert len(pids) == 2
        await kind.close()

    asyncio.run(main())


def test_a_class_can_say_that_it_blocks() -> None:
    kind = load_environment(EnvironmentSettings(entrypoint=f"{PLUGIN}:Counting"), SystemClock())
    assert isinstance(kind.make(0), WorkerEnvironment)


def test_wrong_keyword_arguments_are_refused_before_an_episode() -> None:
    settings = EnvironmentSettings(entrypoint=f"{PLUGIN}:Blocking", blocking=True, kwargs={"turns": 3})
    with pytest.raises(ConfigError, match=r"Blocking refuses its kwargs: .*'turns'"):
        asyncio.run(try_environment(load_environment(settings, SystemClock())))


def test_imports_that_hang_end_at_their_deadline_for_all_who_wait(tmp_path: Path) -> None:
    async def main() -> None:
        pool = WorkerPool(
            f"{PLUGIN}:Counting", {"directory": str(tmp_path), "hang": True}, start_timeout_s=1.5
        )
        impatient = asyncio.create_task(pool.environment().reset(TASK))
        patient = asyncio.create_task(pool.environment().reset(TASK))
        async with asyncio.timeout(HANG_S):
            while not (list(tmp_path.glob("preload-*")) or patient.done()):
                await asyncio.sleep(0.02)
        impatient.cancel()
        with pytest.raises(EnvironmentFailure, match="took too long"):
            await patient
        templates = [int(path.name.split("-")[1]) for path in tmp_path.glob("preload-*")]
        assert len(templates) <= 1  # none if the machine is so slow that the deadline came first
        await gone(*templates)
        await pool.close()

    asyncio.run(main())


def test_imports_that_fail_are_explained() -> None:
    async def main() -> None:
        pool = WorkerPool(f"{PLUGIN}:NoSuchClass", {})
        with pytest.raises(EnvironmentFailure, match=r"importing .* failed: AttributeError: .*NoSuchClass"):
            await pool.check()
        await pool.close()

    asyncio.run(main())


async def step_for_ever(environment: WorkerEnvironment) -> None:
    """Step until it fails: the kernel ends a worker soon after its template, not at once."""
    while True:
        await environment.step(Action(text=""))


def test_a_template_that_was_killed_is_replaced(tmp_path: Path) -> None:
    async def main() -> None:
        pool = WorkerPool(f"{PLUGIN}:Counting", {"directory": str(tmp_path)})
        environment = pool.environment()
        await environment.reset(TASK)
        (template,) = [int(path.name.split("-")[1]) for path in tmp_path.glob("preload-*")]
        os.kill(template, signal.SIGKILL)
        async with asyncio.timeout(HANG_S):
            with pytest.raises(EnvironmentFailure):
                await step_for_ever(environment)
            await environment.close()
            while pool._starting is not None and _is_well(pool._starting):
                await asyncio.sleep(0.02)
        await pool.environment().reset(TASK)
        assert len(list(tmp_path.glob("preload-*"))) == 2
        await pool.close()

    asyncio.run(main())
