"""A model without JAX: what it samples depends on every cached token and on the weights that computed it."""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from forebay.generation.protocol import Completion, GenerationRequest
from forebay.generation.slots import DecodeBatch, Decoded, PrefillChunk
from forebay.trajectory import PolicyVersion, Sampling

VOCABULARY = 50


def request(name: str = "r", prompt: Sequence[int] = (5, 6, 7), **fields: Any) -> GenerationRequest:
    fields = {"sampling": Sampling(), "max_tokens": 4} | fields
    return GenerationRequest(request_id=name, prompt=np.array(prompt, np.int32), **fields)


def version(number: int, incarnation: int = 0) -> PolicyVersion:
    return PolicyVersion(incarnation, number)


def next_token(cells: Sequence[tuple[int, Any]], seed: int) -> int:
    return zlib.crc32(repr((list(cells), seed)).encode()) % VOCABULARY


class FakeExecutor:
    """Executes `Executor`'s contract on lists, and refuses what a real cache would compute wrongly."""

    def __init__(self, slots: int = 2, context: int = 32, block: int = 2, weights: Any = "w0") -> None:
        self.block, self.context, self.weights = block, context, weights
        self.cache: list[list[tuple[int, Any]]] = [[] for _ in range(slots)]
        self.prefilled_tokens = 0
        self.failure: Exception | None = None

    def load(self, weights: Any) -> None:
        self.weights = weights

    def prefill(self, chunks: Sequence[PrefillChunk]) -> None:
        assert len({chunk.slot for chunk in chunks}) == len(chunks)
        for slot, start, tokens in chunks:
            cells = self.cache[slot]
            assert len(cells) >= start, "a hole in the cache"
            cells[start:] = [(int(token), self.weights) for token in tokens]
            self.prefilled_tokens += len(tokens)

    def decode(self, batch: DecodeBatch) -> Decoded:
        if self.failure is not None:
            raise self.failure
        num_slots = len(self.cache)
        tokens = np.zeros((self.block, num_slots), np.int32)
        logprobs = np.zeros((self.block, num_slots), np.float32)
        counts = np.zeros(num_slots, np.int32)
        for slot in np.flatnonzero(batch.remaining):
            token, seed = int(batch.tokens[slot]), int(batch.seeds[slot, 1])
            cells = self.cache[slot]
            assert len(cells) >= batch.lengths[slot]
            del cells[batch.lengths[slot] :]
            while counts[slot] < min(self.block, batch.remaining[slot]):
                cells.append((token, self.weights))
                assert len(cells) < self.context
                token = next_token(cells, seed)
                tokens[counts[slot], slot] = token
                logprobs[counts[slot], slot] = -(1 + token) / 64
                counts[slot] += 1
                if token in batch.stops[slot]:
                    break
        return Decoded(tokens, logprobs, counts)

    def save(self, slot: int, length: int) -> Any:
        assert len(self.cache[slot]) >= length
        return list(self.cache[slot][:length])

    def restore(self, row: Any, slot: int) -> None:
        self.cache[slot] = list(row)


class Unhurried(FakeExecutor):
    """Leaves the interpreter to other threads while it decodes, as a device does."""

    def decode(self, batch: DecodeBatch) -> Decoded:
        time.sleep(0.01)
        return super().decode(batch)


class Gated(FakeExecutor):
    """Decodes only while the gate is open."""

    def __init__(self) -> None:
        super().__init__(2, 4096)
        self.gate, self.entered = threading.Event(), threading.Event()

    def decode(self, batch: Any) -> Any:
        self.entered.set()
        assert self.gate.wait(60)
        return super().decode(batch)


def expected_tokens(prompt: Sequence[int], count: int, weights: Any = "w0", seed: int = 0) -> list[int]:
    """What a fresh cache under one set of weights samples."""
    cells = [(token, weights) for token in prompt]
    sampled: list[int] = []
    for _ in range(count):
        sampled.append(next_token(cells, seed))
        cells.append((sampled[-1], weights))
    return sampled


class Answers:
    """Collects what requests end with."""

    def __init__(self) -> None:
        self.by_name: dict[str, Any] = {}

    def __call__(self, name: str) -> Any:
        def done(result: Any) -> None:
            assert name not in self.by_name, "answered twice"
            self.by_name[name] = result

        return done

    def __getitem__(self, name: str) -> Completion:
        result = self.by_name[name]
        assert isinstance(result, Completion), result
        return result
