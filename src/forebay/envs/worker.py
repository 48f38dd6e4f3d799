"""Environments that block run in worker processes, which can be killed at a deadline."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import Any, Final

import msgspec

from forebay.envs.processes import kill_tree
from forebay.envs.protocol import Action, Observation, Outcome
from forebay.envs.worker_main import Close, Open, Reply, Request, Reset, Step
from forebay.errors import EnvironmentFailure
from forebay.trajectory import Task

MAX_REPLY_BYTES: Final = 16 << 20
_REAP_TIMEOUT_S: Final = 5.0
_decoder = msgspec.json.Decoder(Reply)


class WorkerPool:
    """Worker processes of one environment; each serves one episode at a time and is used again.

    There are as many workers as live episodes: a limit would make fast episodes wait for slow ones.

    Args:
        entrypoint: The class, as package.module:Class; its methods may block or be coroutines.
        kwargs: Its keyword arguments; JSON types only.
    """

    def __init__(self, entrypoint: str, kwargs: dict[str, Any]) -> None:
        self._open = Open(entrypoint, kwargs)
        self._idle: list[_Worker] = []

    def environment(self) -> WorkerEnvironment:
        """Return the environment of one episode."""
        return WorkerEnvironment(self)

    async def take(self) -> _Worker:
        """Return an idle worker or start one."""
        while self._idle:
            worker = self._idle.pop()
            if worker.alive:
                return worker
        worker = await _Worker.start()
        await worker.ask(self._open)
        return worker

    def give_back(self, worker: _Worker) -> None:
        """Keep a worker whose episode is over for the next one."""
        self._idle.append(worker)

    async def close(self) -> None:
        """Kill the idle workers."""
        while self._idle:
            await self._idle.pop().kill()


class WorkerEnvironment:
    """One episode in a worker process. A call that is cancelled at its deadline kills the worker.

    Args:
        pool: Where workers come from.
    """

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool
        self._worker: _Worker | None = None

    async def reset(self, task: Task) -> Observation:
        """Pose the task in a worker."""
        self._worker = await self._pool.take()
        reply = await self._worker.ask(Reset(task))
        return reply.observation or Observation(())

    async def step(self, action: Action) -> Outcome:
        """Let the worker answer."""
        if self._worker is None:
            raise EnvironmentFailure("step before reset")
        reply = await self._worker.ask(Step(action))
        return reply.outcome or Outcome()

    async def close(self) -> None:
        """End the episode, and keep the worker if it is well."""
        worker, self._worker = self._worker, None
        if worker is None or not worker.alive:
            return
        await worker.ask(Close())
        self._pool.give_back(worker)


class _Worker:
    """A worker process and the pipe to it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls) -> _Worker:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "forebay.envs.worker_main",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=MAX_REPLY_BYTES,
            start_new_session=True,
        )
        return cls(process)

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    async def ask(self, request: Request) -> Reply:
        """Send a request and wait for the reply; unless it comes, the worker is killed."""
        answered = False
        try:
            reply = await self._exchange(request)
            answered = True
            return reply
        finally:
            if not answered:
                await self.kill()

    async def kill(self) -> None:
        """Kill the process with everything it started."""
        kill_tree(self._process.pid)
        if self._process.stdin is not None:
            self._process.stdin.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), _REAP_TIMEOUT_S)

    async def _exchange(self, request: Request) -> Reply:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            stdin.write(msgspec.json.encode(request) + b"\n")
            await stdin.drain()
            line = await stdout.readline()
            if line:
                return _decoder.decode(line)
        except (ConnectionError, ValueError, msgspec.DecodeError) as error:
            raise EnvironmentFailure(f"environment worker broke the protocol: {error}") from error
        raise EnvironmentFailure(
            f"environment worker {self._process.pid} ended", remedy="Its traceback is on stderr."
        )
