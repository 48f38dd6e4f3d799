"""Continuous batching over fixed slots: who gets a slot, what is computed next, when a sequence ends.

Pure logic over an `Executor`; no JAX is imported here. One thread calls it. The order of admission is: follow-ups of
parked episodes first (their cache is at hand, and finishing an episode frees more than starting one), then first come,
first served; a request held back by `min_version` lets others pass.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from forebay.clock import Clock
from forebay.errors import ForebayError
from forebay.generation.kv_pool import KvPool, SavedRow, common_prefix, kv_is_usable
from forebay.generation.protocol import (
    BadRequestError,
    Completion,
    CompletionFinish,
    GenerationRequest,
    OverloadedError,
)
from forebay.generation.settings import GeneratorSettings
from forebay.generation.slots import Done, Executor, PrefillChunk, Running, Waiting, decode_batch
from forebay.trajectory import PolicyVersion


class SchedulerCounters(msgspec.Struct):
    """What happened so far: requests by how they ended, tokens, and decode steps by use."""

    finished: int = 0
    aborted: int = 0
    timed_out: int = 0
    refused: int = 0
    failed: int = 0
    sampled_tokens: int = 0
    prefilled_tokens: int = 0
    reused_tokens: int = 0
    decode_blocks: int = 0
    slot_steps: int = 0
    swaps: int = 0
    recomputed_in_flight: int = 0


class Scheduler:
    """The queue, the slots, and the pools of saved rows.

    Args:
        executor: Runs the model; holds weights of `version`.
        settings: Sizes and rules.
        version: The version that the executor serves.
        clock: Source of time.
    """

    def __init__(
        self, executor: Executor, settings: GeneratorSettings, version: PolicyVersion, clock: Clock
    ) -> None:
        self._executor, self._settings, self._clock = executor, settings, clock
        self.version = version
        self._waiting: dict[str, Waiting] = {}
        self._running: dict[str, Running] = {}
        self._free = list(range(settings.slots))
        self.counters = SchedulerCounters()
        self.pool = KvPool(
            max_parked=settings.parked_episodes,
            max_shared=settings.shared_prefixes,
            min_shared_tokens=settings.shared_prefix_min_tokens,
        )

    @property
    def num_waiting(self) -> int:
        """Requests without a slot."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Requests in a slot."""
        return len(self._running)

    def submit(self, request: GenerationRequest, done: Done) -> None:
        """Queue a request; `done` is called once, with its completion or its error."""
        problem = self._problem(request)
        if problem is not None:
            self.counters.refused += 1
            done(problem)
            return
        now_s = self._clock.monotonic_s()
        room = self._settings.context - len(request.prompt)
        waiting = Waiting(
            request=request,
            done=done,
            arrived_s=now_s,
            deadline_s=now_s + (request.deadline_s or self._settings.request_timeout_s),
            max_tokens=min(request.max_tokens, room),
        )
        if room <= 0:
            self._answer(waiting, "context")
            return
        self._waiting[request.request_id] = waiting

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
        self._executor.load(weights)
        self.version = version
        self.counters.swaps += 1
        self.pool.drop_shared()
        for running in self._running.values():
            bound = self._max_kv_staleness(running.waiting.request)
            if running.kv_version and not kv_is_usable(running.kv_version, version, bound):
                running.forget_cache()
                self.counters.recomputed_in_flight += 1
        return True

    def step(self) -> bool:
        """Admit, compute prompts, decode one block; return whether there is more to do at once."""
        self._expire()
        self._admit()
        self._prefill()
        self._decode()
        return bool(self._running) or any(self._may_run(waiting) for waiting in self._waiting.values())

    def next_deadline_s(self) -> float | None:
        """Return when the next waiting request runs out of time, on the clock's monotonic scale."""
        return min((waiting.deadline_s for waiting in self._waiting.values()), default=None)

    def fail(self, error: ForebayError) -> None:
        """End every request with `error`; the executor is gone."""
        lost = [*self._waiting.values(), *(running.waiting for running in self._running.values())]
        self._waiting.clear()
        self._running.clear()
        self.counters.failed += len(lost)
        for waiting in lost:
            waiting.done(error)

    def _problem(self, request: GenerationRequest) -> ForebayError | None:
        limit = self._settings.max_stop_tokens
        if request.request_id in self._waiting or request.request_id in self._running:
            return BadRequestError("a request with this id is running", got=request.request_id)
        if request.max_tokens < 1 or not len(request.prompt):
            return BadRequestError("a request needs a prompt and max_tokens of at least 1")
        if len(request.stop_tokens) > limit:
            return BadRequestError(
                "too many stop tokens", got=len(request.stop_tokens), limit=limit, remedy="Raise max_stop_tokens."
            )
        if len(self._waiting) >= self._settings.max_queue:
            return OverloadedError(
                "the queue is full",
                got=len(self._waiting),
                limit=self._settings.max_queue,
                remedy="Raise max_queue, add slots or generators, or keep fewer episodes in flight.",
            )
        return None

    def _max_kv_staleness(self, request: GenerationRequest) -> int:
        if self._settings.kv_across_versions == "recompute":
            return 0
        bound = request.max_kv_staleness
        return self._settings.max_kv_staleness if bound is None else bound

    def _may_run(self, waiting: Waiting) -> bool:
        return waiting.request.min_version <= self.version

    def _expire(self) -> None:
        now_s = self._clock.monotonic_s()
        late = [
            request_id
            for request_id, waiting in self._all_waiting()
            if waiting.deadline_s <= now_s
        ]
        for request_id in late:
            self._end(request_id, "deadline")

    def _all_waiting(self) -> Iterable[tuple[str, Waiting]]:
        yield from self._waiting.items()
        for request_id, running in self._running.items():
            yield request_id, running.waiting

    def _admit(self) -> None:
        if not self._free or not self._waiting:
            return
        ready = [waiting for waiting in self._waiting.values() if self._may_run(waiting)]
        ready.sort(key=lambda waiting: not self.pool.is_parked(waiting.request.episode_id))
        for waiting in ready[: len(self._free)]:
            request_id = waiting.request.request_id
            del self._waiting[request_id]
            self._running[request_id] = Running.start(self._free.pop(0), waiting)

    def _prefill(self) -> None:
        """Compute missing tokens in rounds of one chunk per slot, until the budget is used."""
        budget_tokens = self._settings.prefill_budget_tokens
        while budget_tokens > 0:
            chunks = self._next_chunks()
            if not chunks:
                return
            self._executor.prefill(chunks)
            by_slot = {running.slot: running for running in self._running.values()}
            for chunk in chunks:
                running = by_slot[chunk.slot]
                running.computed(len(chunk.tokens), self.version)
                budget_tokens -= len(chunk.tokens)
                self.counters.prefilled_tokens += len(chunk.tokens)
                if not running.num_missing:
                    self._share(running)

    def _next_chunks(self) -> list[PrefillChunk]:
        chunks: list[PrefillChunk] = []
        computing: list[Running] = []
        for running in self._running.values():
            if not running.num_missing:
                continue
            if not running.begun:
                # Whoever computes the same beginning right now will share it in a moment.
                if any(self._would_share(other, running) for other in computing):
                    continue
                self._begin(running)
                if not running.num_missing:
                    continue
            computing.append(running)
            chunks.append(self._chunk(running))
        return chunks

    def _would_share(self, other: Running, running: Running) -> bool:
        prompt = running.waiting.request.prompt[:-1]
        shared = common_prefix(other.waiting.request.prompt[:-1], prompt)
        has_own = self.pool.is_parked(running.waiting.request.episode_id)
        return not has_own and self.pool.wants(prompt[:shared], other.num_missing) and other.kv_version in (
            None,
            self.version,
        )

    def _begin(self, running: Running) -> None:
        """Start a sequence from a saved row, if one may be used."""
        running.begun = True
        request = running.waiting.request
        found = self.pool.take(
            request.episode_id, request.prompt, self.version, self._max_kv_staleness(request)
        )
        if found is not None:
            saved, num_tokens = found
            self._executor.restore(saved.row, running.slot)
            running.adopt(num_tokens, saved.kv_version)
            self.counters.reused_tokens += num_tokens

    def _chunk(self, running: Running) -> PrefillChunk:
        """Return the next chunk: the largest that is full, else the smallest that holds the rest."""
        full = [size for size in self._settings.chunks if size <= running.num_missing]
        size = full[-1] if full else running.num_missing
        start = running.num_in_cache
        return PrefillChunk(running.slot, start, running.tokens[start : start + size])

    def _share(self, running: Running) -> None:
        tokens = running.tokens[: running.num_in_cache]
        if running.num_sampled or running.kv_version != self.version:
            return
        if self.pool.wants(tokens, len(tokens) - running.num_reused):
            self.pool.share(self._saved(running))

    def _saved(self, running: Running) -> SavedRow:
        length = running.num_in_cache
        row = self._executor.save(running.slot, length)
        return SavedRow(running.tokens[:length].copy(), running.kv_version or self.version, row)

    def _decode(self) -> None:
        active = [running for running in self._running.values() if not running.num_missing]
        if not active:
            return
        for running in active:
            if not running.begun:  # a prompt of one token has nothing to compute beforehand
                running.begun = True
            if running.first_decode_s is None:
                running.first_decode_s = self._clock.monotonic_s()
        settings = self._settings
        decoded = self._executor.decode(decode_batch(active, settings.slots, settings.max_stop_tokens))
        self.counters.decode_blocks += 1
        self.counters.slot_steps += settings.slots * len(decoded.tokens)
        for running in active:
            slot, count = running.slot, int(decoded.counts[running.slot])
            running.sampled(decoded.tokens[:count, slot], decoded.logprobs[:count, slot], self.version)
            self.counters.sampled_tokens += count
            finish = running.finish_reason()
            if finish is not None:
                self._end(running.waiting.request.request_id, finish)

    def _end(self, request_id: str, finish: CompletionFinish) -> None:
        waiting = self._waiting.pop(request_id, None)
        if waiting is not None:
            self._answer(waiting, finish)
            return
        running = self._running.pop(request_id, None)
        if running is None:
            return
        request = running.waiting.request
        if request.keep and request.episode_id and running.num_in_cache and self.pool.keeps_parked:
            self.pool.park(request.episode_id, self._saved(running))
        elif request.episode_id:
            self.pool.forget(request.episode_id)
        self._free.append(running.slot)
        self._free.sort()
        self._count(finish)
        running.waiting.done(running.completion(finish, self._clock.monotonic_s()))

    def _answer(self, waiting: Waiting, finish: CompletionFinish) -> None:
        """Complete a request that never had a slot, with no tokens."""
        self._count(finish)
        now_s = self._clock.monotonic_s()
        empty: Completion = Running.start(-1, waiting._replace(max_tokens=0)).completion(finish, now_s)
        waiting.done(msgspec.structs.replace(empty, num_prefilled=0))

    def _count(self, finish: CompletionFinish) -> None:
        counters = self.counters
        counters.finished += 1
        counters.aborted += finish == "abort"
        counters.timed_out += finish == "deadline"
