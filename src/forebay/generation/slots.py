"""A sequence on its way through a slot, and the arrays of one decode block; no JAX is imported here.

Legend: S slots, B steps of a decode block, E stop tokens per slot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from forebay.errors import ForebayError
from forebay.generation.protocol import Completion, CompletionFinish, GenerationRequest
from forebay.trajectory import PolicyVersion, VersionSpan

Done = Callable[[Completion | ForebayError], None]


class PrefillChunk(NamedTuple):
    """Prompt tokens to compute: `tokens` go to positions `start` onwards of `slot`."""

    slot: int
    start: int
    tokens: npt.NDArray[np.int32]


class DecodeBatch(NamedTuple):
    """What a decode block needs to know of every slot.

    Args:
        tokens: [S] int32, newest token, not yet in the cache.
        lengths: [S] int32, tokens in the cache.
        remaining: [S] int32, most tokens to sample; 0 for a slot that does not decode.
        seeds: [S, 2] uint32, the request's seed.
        stops: [S, E] int32, stop tokens, padded with -1.
        temperature: [S] float32; 0 is greedy.
        top_p: [S] float32; 1 is off.
        top_k: [S] int32; 0 is off.
    """

    tokens: npt.NDArray[np.int32]
    lengths: npt.NDArray[np.int32]
    remaining: npt.NDArray[np.int32]
    seeds: npt.NDArray[np.uint32]
    stops: npt.NDArray[np.int32]
    temperature: npt.NDArray[np.float32]
    top_p: npt.NDArray[np.float32]
    top_k: npt.NDArray[np.int32]


class Decoded(NamedTuple):
    """What a decode block sampled.

    Args:
        tokens: [B, S] int32; slot s sampled `tokens[: counts[s], s]`.
        logprobs: [B, S] float32, nats.
        counts: [S] int32.

    Slots after the last one that decodes may be missing.
    """

    tokens: npt.NDArray[np.int32]
    logprobs: npt.NDArray[np.float32]
    counts: npt.NDArray[np.int32]


class Executor(Protocol):
    """Runs the model over slots; every call is for the weights loaded last."""

    def load(self, weights: Any) -> None:
        """Use these weights from the next call on."""
        ...

    def prefill(self, chunks: Sequence[PrefillChunk]) -> None:
        """Compute prompt tokens; the slots are distinct."""
        ...

    def decode(self, batch: DecodeBatch) -> Decoded:
        """Sample up to a block of tokens in every slot that has any remaining."""
        ...

    def save(self, slot: int, length: int) -> Any:
        """Return a copy of the first `length` cached tokens of a slot."""
        ...

    def restore(self, row: Any, slot: int) -> None:
        """Put a saved row into a slot."""
        ...


class Waiting(NamedTuple):
    """A request in the queue."""

    request: GenerationRequest
    done: Done
    arrived_s: float
    deadline_s: float
    max_tokens: int


@dataclass(slots=True, eq=False)
class Running:
    """A request in a slot.

    A sequence is ready to decode when all its tokens but the last are in the cache: decoding begins by
    feeding the last one, so the first sampled token needs no program of its own.

    Args:
        slot: Where its cache lies.
        waiting: The request.
        tokens: [P + max_tokens] int32, prompt and room for what is sampled.
        length: Tokens so far.
        num_in_cache: Leading tokens whose keys and values are in the slot.
        kv_version: The oldest version that computed any of those; None while there are none.
    """

    slot: int
    waiting: Waiting
    tokens: npt.NDArray[np.int32]
    length: int
    num_in_cache: int = 0
    kv_version: PolicyVersion | None = None
    begun: bool = False
    admitted_s: float | None = None
    first_decode_s: float | None = None
    num_reused: int = 0
    logprobs: list[npt.NDArray[np.float32]] = field(default_factory=list)
    spans: list[VersionSpan] = field(default_factory=list)

    @classmethod
    def start(cls, slot: int, waiting: Waiting, now_s: float | None = None) -> Running:
        """Place a request in a slot; nothing is computed yet."""
        prompt = waiting.request.prompt
        tokens = np.empty(len(prompt) + waiting.max_tokens, np.int32)
        tokens[: len(prompt)] = prompt
        return cls(slot=slot, waiting=waiting, tokens=tokens, length=len(prompt), admitted_s=now_s)

    @property
    def num_prompt(self) -> int:
        """Tokens of the prompt."""
        return len(self.waiting.request.prompt)

    @property
    def num_sampled(self) -> int:
        """Tokens sampled so far."""
        return self.length - self.num_prompt

    @property
    def num_missing(self) -> int:
        """Tokens to compute before it can decode."""
        return self.length - 1 - self.num_in_cache

    @property
    def remaining(self) -> int:
        """Tokens it may still sample."""
        return self.waiting.max_tokens - self.num_sampled

    def adopt(self, num_tokens: int, kv_version: PolicyVersion) -> None:
        """Note that the slot holds the first `num_tokens` tokens, computed by `kv_version` or later."""
        self.num_in_cache, self.kv_version, self.num_reused = num_tokens, kv_version, num_tokens

    def forget_cache(self) -> None:
        """Note that the slot's keys and values must be computed again."""
        self.num_in_cache, self.kv_version, self.num_reused = 0, None, 0

    def computed(self, num_tokens: int, version: PolicyVersion) -> None:
        """Note that `version` computed the keys and values of the next `num_tokens` tokens."""
        self.num_in_cache += num_tokens
        self.kv_version = version if self.kv_version is None else min(self.kv_version, version)

    def sampled(
        self, tokens: npt.NDArray[np.int32], logprobs: npt.NDArray[np.float32], version: PolicyVersion
    ) -> None:
        """Append what `version` sampled; each step also put the token before it into the cache."""
        count = len(tokens)
        self.tokens[self.length : self.length + count] = tokens
        self.length += count
        self.computed(count, version)
        self.logprobs.append(logprobs)
        kv_version = self.kv_version or version
        last = self.spans[-1] if self.spans else None
        if last is not None and (last.version, last.kv_version) == (version, kv_version):
            self.spans[-1] = VersionSpan(last.num_tokens + count, version, kv_version)
        else:
            self.spans.append(VersionSpan(count, version, kv_version))

    def finish_reason(self) -> CompletionFinish | None:
        """Return why it ends, or None if it goes on."""
        request = self.waiting.request
        if self.num_sampled and int(self.tokens[self.length - 1]) in request.stop_tokens:
            return "stop"
        if self.remaining > 0:
            return None
        return "length" if self.waiting.max_tokens == request.max_tokens else "context"

    def completion(self, finish: CompletionFinish, now_s: float) -> Completion:
        """Return what was sampled."""
        first_s = now_s if self.first_decode_s is None else self.first_decode_s
        admitted_s = first_s if self.admitted_s is None else self.admitted_s
        return Completion(
            tokens=self.tokens[self.num_prompt : self.length].copy(),
            logprobs=np.concatenate(self.logprobs) if self.logprobs else np.empty(0, np.float32),
            version_spans=tuple(self.spans),
            finish=finish,
            wait_s=first_s - self.waiting.arrived_s,
            generate_s=now_s - first_s,
            num_prefilled=max(self.num_prompt - self.num_reused, 0),
            num_cached=self.num_reused,
            queue_s=admitted_s - self.waiting.arrived_s,
        )


def decode_batch(running: Sequence[Running], num_slots: int, max_stops: int) -> DecodeBatch:
    """Lay out the sequences that are ready to decode; every other slot is idle."""
    batch = DecodeBatch(
        tokens=np.zeros(num_slots, np.int32),
        lengths=np.zeros(num_slots, np.int32),
        remaining=np.zeros(num_slots, np.int32),
        seeds=np.zeros((num_slots, 2), np.uint32),
        stops=np.full((num_slots, max_stops), -1, np.int32),
        temperature=np.ones(num_slots, np.float32),
        top_p=np.ones(num_slots, np.float32),
        top_k=np.zeros(num_slots, np.int32),
    )
    for sequence in running:
        slot, request = sequence.slot, sequence.waiting.request
        batch.tokens[slot] = sequence.tokens[sequence.length - 1]
        batch.lengths[slot] = sequence.num_in_cache
        batch.remaining[slot] = sequence.remaining
        batch.seeds[slot] = request.seed >> 32, request.seed & 0xFFFFFFFF
        batch.stops[slot, : len(request.stop_tokens)] = request.stop_tokens
        batch.temperature[slot] = request.sampling.temperature
        batch.top_p[slot] = request.sampling.top_p
        batch.top_k[slot] = request.sampling.top_k
    return batch
