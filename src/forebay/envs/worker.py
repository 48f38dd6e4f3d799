"""Environments that block run in worker processes, which can be killed at a deadline."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
import sys
from typing import Any, Final

import msgspec

from forebay.envs.processes import kill_tree
from forebay.envs.protocol import Action, Observation, Outcome
from forebay.envs.worker_wire import Blueprint, Check, Close, Reply, Request, Reset, Started, Step
from forebay.errors import ConfigError, EnvironmentFailure
from forebay.trajectory import Task

MAX_REPLY_BYTES: Final = 16 << 20
DEFAULT_START_TIMEOUT_S: Final = 300.0
_MAX_STARTED_BYTES: Final = 1 << 16
_REAP_TIMEOUT_S: Final = 5.0
_FULL_QUEUE_WAIT_S: Final = 0.01
# Workers are the parallelism; a thread pool in each would only contend, and a fork does not copy threads.
_ONE_THREAD: Final = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_decoder = msgspec.json.Decoder(Reply)


class WorkerPool:
    """Worker processes of one environment; each serves one episode at a time and is used again.

    A template process imports the environment once and forks the workers. There are as many workers as live
    episodes: a limit would make fast episodes wait for slow ones.

    Args:
        entrypoint: The class, as package.module:Class; its methods may block or be coroutines.
        kwargs: Its keyword arguments; JSON types only.
        shared: Whether imports happen once, in the template, or in every worker.
        start_timeout_s: Longest time for the imports.
    """

    def __init__(
        self,
        entrypoint: str,
        kwargs: dict[str, Any],
        *,
        shared: bool = True,
        start_timeout_s: float = DEFAULT_START_TIMEOUT_S,
    ) -> None:
        self._blueprint = Blueprint(entrypoint, kwargs, shared)
        self._start_timeout_s = start_timeout_s
        self._workers: set[_Worker] = set()
        self._idle: list[_Worker] = []
        self._starting: asyncio.Task[_Template] | None = None

    def environment(self) -> WorkerEnvironment:
        """Return the environment of one episode."""
        return WorkerEnvironment(self)

    async def check(self) -> None:
        """Import the environment, and make an instance to see that its keyword arguments are right.

        Raises:
            ConfigError: The settings cannot work.
            EnvironmentFailure: The imports or the constructor raised, or took too long.
        """
        worker = await self.take()
        await worker.ask(Check())
        self.give_back(worker)

    async def take(self) -> _Worker:
        """Return an idle worker or fork one.

        Raises:
            ConfigError: The settings cannot work.
            EnvironmentFailure: The imports failed, or took too long.
        """
        while self._idle:
            worker = self._idle.pop()
            if worker.alive:
                return worker
        for dead in [worker for worker in self._workers if not worker.alive]:
            self._workers.discard(dead)
            await dead.let_go()
        worker = await (await self._template()).fork()
        self._workers.add(worker)
        return worker

    def give_back(self, worker: _Worker) -> None:
        """Keep a worker whose episode is over for the next one."""
        self._idle.append(worker)

    async def close(self) -> None:
        """Kill the workers with everything they started."""
        self._idle.clear()
        starting, self._starting = self._starting, None
        await _end(starting)
        while self._workers:
            await self._workers.pop().let_go()

    async def _template(self) -> _Template:
        """Return the template; all who wait for it share one start, which none of them can cancel."""
        starting = before = self._starting
        if starting is None or (starting.done() and not _is_well(starting)):
            starting = asyncio.create_task(_Template.start(self._blueprint, self._start_timeout_s))
            self._starting = starting
            await _end(before)
        return await asyncio.shield(starting)


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


class _Template:
    """The process that forks workers, and the socket to it."""

    def __init__(self, process: asyncio.subprocess.Process, control: socket.socket) -> None:
        self._process = process
        self._control = control
        self._numbers = itertools.count()

    @classmethod
    async def start(cls, blueprint: Blueprint, timeout_s: float) -> _Template:
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        control.setblocking(False)
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "forebay.envs.worker_main",
                str(theirs.fileno()),
                stdin=asyncio.subprocess.PIPE,
                pass_fds=(theirs.fileno(),),
                env=_ONE_THREAD | os.environ,
                start_new_session=True,
            )
        template = cls(process, control)
        async with contextlib.AsyncExitStack() as undone:
            undone.push_async_callback(template.close)
            try:
                async with asyncio.timeout(timeout_s):
                    await template._import(blueprint)
            except TimeoutError as error:
                raise EnvironmentFailure(
                    f"importing {blueprint.entrypoint} took too long",
                    limit=f"{timeout_s:g} s",
                    remedy="Raise environment.NAME.start_timeout_s.",
                ) from error
            undone.pop_all()  # from here on it is the caller's to close
        return template

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    async def fork(self) -> _Worker:
        number = next(self._numbers)
        ours, theirs = socket.socketpair()
        with theirs:
            await self.tell(b"fork %d" % number, [theirs.fileno()])
        reader, writer = await asyncio.open_unix_connection(sock=ours, limit=MAX_REPLY_BYTES)
        return _Worker(self, number, reader, writer)

    async def tell(self, message: bytes, files: list[int]) -> None:
        try:
            while True:
                with contextlib.suppress(BlockingIOError):
                    socket.send_fds(self._control, [message], files)
                    return
                await asyncio.sleep(_FULL_QUEUE_WAIT_S)
        except OSError as error:
            raise EnvironmentFailure(f"environment template {self._process.pid} ended: {error}") from error

    async def close(self) -> None:
        """Let it kill everything below it, and see that it does."""
        self._control.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_REAP_TIMEOUT_S):
                await self._process.wait()
        if self.alive:
            kill_tree(self._process.pid)
            await self._process.wait()

    async def _import(self, blueprint: Blueprint) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        stdin.write(msgspec.json.encode(blueprint))
        stdin.close()
        loop = asyncio.get_running_loop()
        answer = await loop.sock_recv(self._control, _MAX_STARTED_BYTES)
        started = msgspec.json.decode(answer, type=Started) if answer else Started(failure="it ended")
        if started.refusal:
            raise ConfigError(started.refusal)
        if started.failure:
            raise EnvironmentFailure(
                f"importing {blueprint.entrypoint} failed: {started.failure}",
                remedy="Its traceback is on stderr.",
            )


class _Worker:
    """A worker process and the channel to it."""

    def __init__(
        self, template: _Template, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._template = template
        self._number = number
        self._reader = reader
        self._writer = writer

    @property
    def alive(self) -> bool:
        return not (self._reader.at_eof() or self._writer.is_closing()) and self._template.alive

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
        """Kill the process with everything it started, and wait until its channel closes."""
        with contextlib.suppress(EnvironmentFailure):
            await self._template.tell(b"kill %d" % self._number, [])
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(_REAP_TIMEOUT_S):
                while await self._reader.read(MAX_REPLY_BYTES):
                    pass
        await self.let_go()

    async def let_go(self) -> None:
        """Close the channel, which ends the process unless it is stuck."""
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def _exchange(self, request: Request) -> Reply:
        try:
            self._writer.write(msgspec.json.encode(request) + b"\n")
            await self._writer.drain()
            line = await self._reader.readline()
            reply = _decoder.decode(line) if line else Reply(failure="without a word")
        except (ConnectionError, ValueError, msgspec.DecodeError) as error:
            raise EnvironmentFailure(f"environment worker broke the protocol: {error}") from error
        if reply.refusal:
            raise ConfigError(reply.refusal)
        if reply.failure:
            raise EnvironmentFailure(
                f"environment worker {self._number} ended: {reply.failure}",
                remedy="Its traceback is on stderr.",
            )
        return reply


async def _end(starting: asyncio.Task[_Template] | None) -> None:
    """Close a template, or see to it that there will be none."""
    if starting is None:
        return
    starting.cancel()
    await asyncio.wait({starting})
    if not starting.cancelled() and starting.exception() is None:
        await starting.result().close()


def _is_well(started: asyncio.Task[_Template]) -> bool:
    """Tell whether a start that is over gave a template that still lives."""
    return not started.cancelled() and started.exception() is None and started.result().alive
