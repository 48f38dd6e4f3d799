"""Computing prompts: from a saved row where one may be used, then chunk by chunk; without JAX."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from forebay.generation.kv_pool import KvPool, SavedRow, common_prefix
from forebay.generation.protocol import GenerationRequest
from forebay.generation.settings import GeneratorSettings
from forebay.generation.slots import Executor, PrefillChunk, Running
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


def max_kv_staleness(request: GenerationRequest, settings: GeneratorSettings) -> int:
    """Return how old a cache may be that a request attends to, in versions."""
    if settings.kv_across_versions == "recompute":
        return 0
    bound = request.max_kv_staleness
    return settings.max_kv_staleness if bound is None else bound


class Prefiller:
    """Brings sequences to where they can decode.

    Args:
        executor: Runs the model.
        pool: Saved rows.
        settings: Chunks and budget.
        counters: Where tokens are counted.
    """

    def __init__(
        self, executor: Executor, pool: KvPool, settings: GeneratorSettings, counters: SchedulerCounters
    ) -> None:
        self._executor, self._pool, self._settings, self._counters = executor, pool, settings, counters

    def compute(self, running: Collection[Running], version: PolicyVersion) -> None:
        """Compute missing tokens in rounds of one chunk per slot, until the budget is used."""
        by_slot = {sequence.slot: sequence for sequence in running}
        budget_tokens = self._settings.prefill_budget_tokens
        while budget_tokens > 0:
            chunks = self._next_chunks(running, version)
            if not chunks:
                return
            self._executor.prefill(chunks)
            for chunk in chunks:
                sequence = by_slot[chunk.slot]
                sequence.computed(len(chunk.tokens), version)
                budget_tokens -= len(chunk.tokens)
                self._counters.prefilled_tokens += len(chunk.tokens)
                if not sequence.num_missing:
                    self._share(sequence, version)

    def saved(self, sequence: Running, version: PolicyVersion) -> SavedRow:
        """Return a copy of what a slot holds."""
        length = sequence.num_in_cache
        row = self._executor.save(sequence.slot, length)
        return SavedRow(sequence.tokens[:length].copy(), sequence.kv_version or version, row)

    def _next_chunks(self, running: Collection[Running], version: PolicyVersion) -> list[PrefillChunk]:
        chunks: list[PrefillChunk] = []
        computing: list[Running] = []
        for sequence in running:
            if not sequence.num_missing:
                continue
            if not sequence.begun:
                # Whoever computes the same beginning right now will share it in a moment.
                if any(self._will_share(other, sequence, version) for other in computing):
                    continue
                self._begin(sequence, version)
                if not sequence.num_missing:
                    continue
            computing.append(sequence)
            chunks.append(self._chunk(sequence))
        return chunks

    def _will_share(self, other: Running, sequence: Running, version: PolicyVersion) -> bool:
        fresh = other.kv_version in (None, version) and not other.num_sampled
        if not fresh or not self._settings.shared_prefixes:
            return False
        if self._pool.is_parked(sequence.waiting.request.episode_id):
            return False
        prompt, other_prompt = (s.waiting.request.prompt[:-1] for s in (sequence, other))
        num_common = common_prefix(other_prompt, prompt)
        return self._pool.wants(prompt[:num_common], len(other_prompt) - other.num_reused)

    def _begin(self, sequence: Running, version: PolicyVersion) -> None:
        """Start a sequence from a saved row, if one may be used."""
        sequence.begun = True
        request = sequence.waiting.request
        bound = max_kv_staleness(request, self._settings)
        found = self._pool.take(request.episode_id, request.prompt, version, bound)
        if found is not None:
            saved, num_tokens = found
            self._executor.restore(saved.row, sequence.slot)
            sequence.adopt(num_tokens, saved.kv_version)
            self._counters.reused_tokens += num_tokens

    def _chunk(self, sequence: Running) -> PrefillChunk:
        """Return the next chunk: the largest program that it fills, else all that is left."""
        full = [size for size in self._settings.chunks if size <= sequence.num_missing]
        start = sequence.num_in_cache
        end = start + (full[-1] if full else sequence.num_missing)
        return PrefillChunk(sequence.slot, start, sequence.tokens[start:end])

    def _share(self, sequence: Running, version: PolicyVersion) -> None:
        tokens = sequence.tokens[: sequence.num_in_cache]
        if sequence.num_sampled or sequence.kv_version != version:
            return
        if self._pool.wants(tokens, len(tokens) - sequence.num_reused):
            self._pool.share(self.saved(sequence, version))
