"""Continuous batching over fixed slots: who runs, what is computed next, when a sequence ends; without JAX.

Pure logic over an `Executor`; one thread calls it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from forebay.clock import Clock
from forebay.errors import ForebayError, GenerationError
from forebay.generation.engine_trace import EngineTrace
from forebay.generation.kv_pool import KvPool, kv_is_usable
from forebay.generation.prefiller import Prefiller, SchedulerCounters, max_kv_staleness
from forebay.generation.protocol import (
    Completion,
    CompletionFinish,
    DuplicateRequestError,
    GenerationRequest,
)
from forebay.generation.queue import RequestQueue
from forebay.generation.settings import GeneratorSettings
from forebay.generation.slots import Done, Executor, Running, Waiting, decode_batch
from forebay.telemetry.trace import OFF, Tracer
from forebay.trajectory import PolicyVersion


class Scheduler:
    """The queue, the slots, and the pools of saved rows.

    Args:
        executor: Runs the model; holds weights of `version`.
        settings: Sizes and rules.
        version: The version that the executor serves.
        clock: Source of time.
        tracer: Records what it does.
    """

    def __init__(
        self,
        executor: Executor,
        settings: GeneratorSettings,
        version: PolicyVersion,
        clock: Clock,
        tracer: Tracer = OFF,
    ) -> None:
        self._executor, self._settings, self._clock = executor, settings, clock
        self._trace = EngineTrace(clock, tracer)
        self.version = version
        self._queue = RequestQueue(settings, clock)
        self._running: dict[str, Running] = {}
        self._free = list(range(settings.slots))
        self.counters = SchedulerCounters()
        self.pool = KvPool(
            max_parked=settings.parked_episodes,
            max_shared=settings.shared_prefixes,
            min_shared_tokens=settings.shared_prefix_min_tokens,
        )
        self._prefiller = Prefiller(executor, self.pool, settings, self.counters)

    @property
    def num_waiting(self) -> int:
        """Requests without a slot."""
        return len(self._queue)

    @property
    def num_running(self) -> int:
        """Requests in a slot."""
        return len(self._running)

    def submit(self, request: GenerationRequest, done: Done, arrived_s: float | None = None) -> None:
        """Queue a request.

        Args:
            request: The request.
            done: Called once, with its completion or its error.
            arrived_s: When it came, on the clock's monotonic scale; None for now.
        """
        try:
            if request.request_id in self._running:
                raise DuplicateRequestError("a request with this id is running", got=request.request_id)
            waiting = self._queue.add(request, done, arrived_s)
        except GenerationError as error:
            self.counters.refused += 1
            done(error)
            return
        if not waiting.max_tokens:
            self._answer(waiting, "context")

    def abort(self, request_id: str) -> None:
        """End a request with what it has; unknown ids are ignored."""
        self._end(request_id, "abort")

    def release(self, episode_id: str) -> None:
        """Drop the saved row of an episode."""
        self.pool.forget(episode_id)

    def load(self, version: PolicyVersion, weights: Any) -> bool:
        """Serve newer weights from the next step on; nothing in flight is aborted.

        Caches that are now too old are computed again before their sequence goes on.

        Returns:
            False if `version` is not newer than the one served; then nothing changes.
        """
        if version <= self.version:
            return False
        began_s = self._clock.monotonic_s()
        self._executor.load(weights)
        self.version = version
        self._trace.call("load weights", began_s, version=version.version)
        self.counters.swaps += 1
        self.pool.drop_shared()
        for running in self._running.values():
            bound = max_kv_staleness(running.waiting.request, self._settings)
            if running.kv_version and not kv_is_usable(running.kv_version, version, bound):
                running.forget_cache()
                self.counters.recomputed_in_flight += 1
        return True

    def step(self) -> bool:
        """Admit, compute prompts, decode one block; return whether there is more to do at once."""
        self._trace.woken()
        self._expire()
        self._admit()
        self._prefill()
        self._decode()
        self._trace.gauge(self.num_waiting, self.num_running)
        more = bool(self._running) or self._queue.may_go_on(self.version)
        self._trace.rests(idle=not more)
        return more

    def next_deadline_s(self) -> float | None:
        """Return when the next waiting request runs out of time, on the clock's monotonic scale."""
        return self._queue.next_deadline_s()

    def fail(self, error: ForebayError) -> None:
        """End every request with `error`; the executor is gone."""
        lost = [*self._queue.clear(), *(running.waiting for running in self._running.values())]
        self._running.clear()
        self.counters.failed += len(lost)
        for waiting in lost:
            waiting.done(error)

    def _expire(self) -> None:
        now_s = self._clock.monotonic_s()
        running = [name for name, seq in self._running.items() if seq.waiting.deadline_s <= now_s]
        for request_id in (*self._queue.late(now_s), *running):
            self._end(request_id, "deadline")

    def _admit(self) -> None:
        if not self._free or not len(self._queue):
            return
        now_s = self._clock.monotonic_s()
        for waiting in self._queue.take(len(self._free), self.version, self.pool.is_parked):
            self._running[waiting.request.request_id] = Running.start(self._free.pop(0), waiting, now_s)

    def _prefill(self) -> None:
        began_s, before = self._clock.monotonic_s(), self.counters.prefilled_tokens
        self._prefiller.compute(self._running.values(), self.version)
        if num_tokens := self.counters.prefilled_tokens - before:
            self._trace.call("prefill", began_s, tokens=num_tokens)

    def _decode(self) -> None:
        active = [running for running in self._running.values() if not running.num_missing]
        if not active:
            return
        for running in active:
            if running.first_decode_s is None:
                running.first_decode_s = self._clock.monotonic_s()
        settings = self._settings
        began_s = self._clock.monotonic_s()
        decoded = self._executor.decode(decode_batch(active, settings.slots, settings.max_stop_tokens))
        self._trace.call("decode", began_s, sequences=len(active), tokens=int(decoded.counts.sum()))
        self.counters.decode_blocks += 1
        self.counters.slot_steps += decoded.tokens.size
        for running in active:
            slot, count = running.slot, int(decoded.counts[running.slot])
            running.sampled(decoded.tokens[:count, slot], decoded.logprobs[:count, slot], self.version)
            self.counters.sampled_tokens += count
            finish = running.finish_reason()
            if finish is not None:
                self._end(running.waiting.request.request_id, finish)

    def _end(self, request_id: str, finish: CompletionFinish) -> None:
        waiting = self._queue.remove(request_id)
        if waiting is not None:
            self._answer(waiting, finish)
            return
        running = self._running.pop(request_id, None)
        if running is None:
            return
        request = running.waiting.request
        if request.keep and request.episode_id and running.num_in_cache and self.pool.keeps_parked:
            self.pool.park(request.episode_id, self._prefiller.saved(running, self.version))
        elif request.episode_id:
            self.pool.forget(request.episode_id)
        self._free.append(running.slot)
        self._free.sort()
        self._count(finish)
        self._trace.request(running, finish)
        running.waiting.done(running.completion(finish, self._clock.monotonic_s()))

    def _answer(self, waiting: Waiting, finish: CompletionFinish) -> None:
        """Complete a request that never had a slot, with no tokens."""
        self._count(finish)
        if not waiting.request.keep:
            self.pool.forget(waiting.request.episode_id)
        now_s = self._clock.monotonic_s()
        empty: Completion = Running.start(-1, waiting._replace(max_tokens=0)).completion(finish, now_s)
        waiting.done(msgspec.structs.replace(empty, num_prefilled=0))

    def _count(self, finish: CompletionFinish) -> None:
        counters = self.counters
        counters.finished += 1
        counters.aborted += finish == "abort"
        counters.timed_out += finish == "deadline"
