"""A generator in this process: a thread runs the scheduler, an event loop talks to it; without JAX."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal

import msgspec

from forebay.clock import Clock, SystemClock
from forebay.errors import ForebayError, GenerationError
from forebay.generation.kv_pool import KvCounters
from forebay.generation.prefiller import SchedulerCounters
from forebay.generation.protocol import (
    Completion,
    GenerationRequest,
    GeneratorInfo,
    OverloadedError,
)
from forebay.generation.scheduler import Scheduler
from forebay.trajectory import PolicyVersion

State = Literal["starting", "ready", "failed", "stopped"]
_CLOCK = SystemClock()
_Command = Callable[[Scheduler], None]


class GeneratorStats(msgspec.Struct, frozen=True, kw_only=True):
    """What a generator did so far, and what it is doing."""

    state: State
    version: PolicyVersion | None = None
    waiting: int = 0
    running: int = 0
    parked: int = 0
    requests: SchedulerCounters = msgspec.field(default_factory=SchedulerCounters)
    kv: KvCounters = msgspec.field(default_factory=KvCounters)


class LocalGenerator:
    """The `Generator` protocol over a scheduler in a thread of its own.

    The thread consumes submitted requests and newer weights, waits for either (or for the next deadline) when
    nothing runs, and produces completions. An error in it ends every request with that error, and `failure`
    keeps it.

    Args:
        build: Makes the scheduler inside the thread: loads weights, compiles, warms up.
        info: The limits, without the version.
        on_failure: Called from the thread when it ends with an error.
        clock: Source of time.
    """

    def __init__(
        self,
        build: Callable[[], Scheduler],
        info: GeneratorInfo,
        *,
        on_failure: Callable[[], None] = lambda: None,
        clock: Clock = _CLOCK,
    ) -> None:
        self._build, self.limits, self._on_failure, self._clock = build, info, on_failure, clock
        self._changed = threading.Condition()
        self._commands: list[_Command] = []
        self._stopping = False
        self._scheduler: Scheduler | None = None
        self._step_started_s: float | None = None
        self._threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="generator")
        self._ended: Future[None] | None = None
        self.failure: BaseException | None = None
        self.state: State = "starting"

    def start(self) -> None:
        """Start the thread."""
        self._ended = self._threads.submit(self._run)
        self._ended.add_done_callback(self._on_end)

    async def generate(self, request: GenerationRequest) -> Completion:
        """Continue one prompt; cancelling the caller ends the request.

        Raises:
            GenerationError: The request is refused, the generator is not ready, or it failed.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Completion] = loop.create_future()

        def settle(result: Completion | ForebayError) -> None:
            if answer.done():
                return
            if isinstance(result, Completion):
                answer.set_result(result)
            else:
                answer.set_exception(result)

        def done(result: Completion | ForebayError) -> None:
            # A loop that is closed has nobody waiting any more.
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, result)

        # It is taken up when the block that is being decoded has ended, but it waits from now on.
        arrived_s = self._clock.monotonic_s()
        self._post(lambda scheduler: scheduler.submit(request, done, arrived_s))
        try:
            return await answer
        except asyncio.CancelledError:
            await self.abort(request.request_id)
            raise

    async def abort(self, request_id: str) -> None:
        """End a running request; it completes with finish `abort`."""
        self._post_if_alive(lambda scheduler: scheduler.abort(request_id))

    async def release(self, episode_id: str) -> None:
        """Forget the KV cache kept for an episode."""
        self._post_if_alive(lambda scheduler: scheduler.release(episode_id))

    async def info(self) -> GeneratorInfo:
        """Return the version served and the limits."""
        version = self._scheduler.version if self._scheduler else self.limits.version
        return msgspec.structs.replace(self.limits, version=version)

    async def close(self) -> None:
        """Stop the thread; running requests end with an error."""
        await asyncio.get_running_loop().run_in_executor(None, self.stop)

    def stop(self) -> None:
        """Stop the thread and wait for it."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._threads.shutdown(wait=True)

    def load(self, version: PolicyVersion, weights: Any) -> None:
        """Serve newer weights after the current decode block; older ones are ignored. From any thread."""

        def load(scheduler: Scheduler) -> None:
            scheduler.load(version, weights)

        with self._changed:  # while it is still loading, too: a version that arrives then must not get lost
            if self.state in ("starting", "ready"):
                self._commands.append(load)
                self._changed.notify()

    def stats(self) -> GeneratorStats:
        """Return counters and load; cheap, from any thread."""
        scheduler = self._scheduler
        if scheduler is None:
            return GeneratorStats(state=self.state)
        return GeneratorStats(
            state=self.state,
            version=scheduler.version,
            waiting=scheduler.num_waiting,
            running=scheduler.num_running,
            parked=scheduler.pool.num_parked,
            requests=scheduler.counters,
            kv=scheduler.pool.counters,
        )

    def stalled_s(self) -> float:
        """Return how long the present device call has lasted; 0 while idle."""
        started_s = self._step_started_s
        return 0.0 if started_s is None else self._clock.monotonic_s() - started_s

    def _post(self, command: _Command) -> None:
        with self._changed:
            if self.state != "ready" or self._stopping:
                if self.failure is not None:
                    raise GenerationError(f"the generator failed: {self.failure}")
                raise OverloadedError(f"the generator is not ready: {self.state}")
            self._commands.append(command)
            self._changed.notify()

    def _post_if_alive(self, command: _Command) -> None:
        try:
            self._post(command)
        except GenerationError:
            return  # nothing runs, so there is nothing to change

    def _run(self) -> None:
        """Engine loop.

        Consumes: commands (requests, aborts, releases, weights). Waits for: a command or a deadline, when
        nothing can run. Unblocked by: `_post`, `stop`. Produces: completions.
        """
        scheduler = self._scheduler = self._build()
        with self._changed:
            self.state = "ready"
        busy = False
        while True:
            with self._changed:
                while not (self._commands or self._stopping or busy):
                    if not self._changed.wait(self._wait_s(scheduler)):
                        break  # a request in the queue has reached its deadline
                if self._stopping:
                    return
                commands, self._commands = self._commands, []
            for command in commands:
                command(scheduler)
            self._step_started_s = self._clock.monotonic_s()
            busy = scheduler.step()
            self._step_started_s = None

    def _wait_s(self, scheduler: Scheduler) -> float | None:
        deadline_s = scheduler.next_deadline_s()
        return None if deadline_s is None else max(deadline_s - self._clock.monotonic_s(), 0.0)

    def _on_end(self, ended: Future[None]) -> None:
        """Note how the thread ended, and let nobody wait for it."""
        error = ended.exception()
        with self._changed:
            self.failure = error
            self.state = "failed" if error else "stopped"
            commands, self._commands = self._commands, []
        reason = f"{type(error).__name__}: {error}" if error else "it was stopped"
        if self._scheduler is not None:
            for command in commands:
                command(self._scheduler)
            self._scheduler.fail(GenerationError(f"the generator ended: {reason}"))
        if error is not None:
            self._on_failure()
