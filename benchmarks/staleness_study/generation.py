"""Generation without a server: the product's engine and sampler, called when nothing else can go on."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from benchmarks.staleness_study.problems import Problem
from forebay.errors import ForebayError
from forebay.generation.engine import JaxExecutor, prepare_weights
from forebay.generation.protocol import Completion, GenerationRequest, GeneratorInfo
from forebay.generation.slots import PrefillChunk, Running, Waiting, decode_batch
from forebay.models.hf import to_hf_tensors
from forebay.models.params import Params
from forebay.trajectory import PolicyVersion


class Engine:
    """The compiled programs of one problem's generator, and the weights that they are given.

    Args:
        problem: Gives model and settings.
    """

    def __init__(self, problem: Problem) -> None:
        self._model, self._settings = problem.model, problem.config.generator
        self._executor = JaxExecutor(self._model, self._settings, self.prepare(problem.params))
        self._executor.warm_up()

    def prepare(self, params: Params) -> Params:
        """Return host parameters as weights that it can sample with."""
        return prepare_weights(to_hf_tensors(params, self._model), self._model, self._settings)

    def answer(
        self, version: PolicyVersion, weights: Params, requests: Sequence[GenerationRequest]
    ) -> dict[str, Completion]:
        """Sample every request with one version of the weights; nothing is cached between calls."""
        self._executor.load(weights)
        size = self._settings.slots
        parts = [requests[first : first + size] for first in range(0, len(requests), size)]
        return {name: done for part in parts for name, done in self._answer(version, part).items()}

    def _answer(self, version: PolicyVersion, requests: Sequence[GenerationRequest]) -> dict[str, Completion]:
        """Sample as many requests as there are slots, side by side."""
        running = [Running.start(slot, self._waiting(request)) for slot, request in enumerate(requests)]
        while chunks := [self._chunk(sequence) for sequence in running if sequence.num_missing]:
            self._executor.prefill(chunks)
            for chunk in chunks:
                running[chunk.slot].computed(len(chunk.tokens), version)
        active = running
        while active:
            decoded = self._executor.decode(
                decode_batch(active, self._settings.slots, self._settings.max_stop_tokens)
            )
            for sequence in active:
                slot, count = sequence.slot, int(decoded.counts[sequence.slot])
                sequence.sampled(decoded.tokens[:count, slot], decoded.logprobs[:count, slot], version)
            active = [sequence for sequence in active if sequence.finish_reason() is None]
        return {
            sequence.waiting.request.request_id: sequence.completion(
                sequence.finish_reason() or "length", 0.0
            )
            for sequence in running
        }

    def _chunk(self, sequence: Running) -> PrefillChunk:
        start = sequence.num_in_cache
        stop = min(sequence.length - 1, start + self._settings.chunks[-1])
        return PrefillChunk(sequence.slot, start, sequence.tokens[start:stop])

    def _waiting(self, request: GenerationRequest) -> Waiting:
        room = self._settings.context - len(request.prompt)
        return Waiting(request, _unused, 0.0, math.inf, min(request.max_tokens, room))


def _unused(result: Completion | ForebayError) -> None:
    """Stand where a scheduler would be told of a completion."""


class _Pending(NamedTuple):
    request: GenerationRequest
    answer: asyncio.Future[Completion]


class LazyGenerator:
    """The `Generator` protocol in virtual time: requests of one version are sampled together, when needed.

    A request is sampled by the version that is current when it is made, and answered `turn_s` later. Nothing
    is computed before somebody needs it or the weights change, so that many requests share each call.

    Args:
        engine: Samples.
        turn_s: Virtual seconds of one model call.

    Attributes:
        after_answer: Called after requests were sampled, for instance to load the next version; or None.
    """

    def __init__(self, engine: Engine, turn_s: float) -> None:
        self._engine = engine
        self._turn_s = turn_s
        self._pending: list[_Pending] = []
        self._needed = False
        self._version = PolicyVersion(0, 0)
        self._weights: Any = None
        self.after_answer: Callable[[], None] | None = None

    @property
    def version(self) -> PolicyVersion:
        """The version that new requests are sampled by."""
        return self._version

    def load(self, version: PolicyVersion, weights: Params) -> None:
        """Sample later requests with other weights; earlier ones keep theirs."""
        self.answer()
        self._version, self._weights = version, weights

    def answer(self) -> bool:
        """Sample all that is pending; return whether there was anything."""
        pending, self._pending = self._pending, []
        if not pending:
            return False
        answers = self._engine.answer(self._version, self._weights, [one.request for one in pending])
        for one in pending:
            if not one.answer.done():
                one.answer.set_result(answers[one.request.request_id])
        if self.after_answer is not None:
            self.after_answer()
        return True

    def answer_if_needed(self) -> bool:
        """Sample all that is pending if an episode waits for it; return whether it did."""
        if not self._needed:
            return False
        self._needed = False
        return self.answer()

    async def generate(self, request: GenerationRequest) -> Completion:
        """Continue one prompt."""
        loop = asyncio.get_running_loop()
        # The version is the caller's to know; what a request would wait for has been loaded already.
        plain = msgspec.structs.replace(request, min_version=PolicyVersion(0, 0), deadline_s=None, keep=False)
        answer: asyncio.Future[Completion] = loop.create_future()
        self._pending.append(_Pending(plain, answer))
        if self._turn_s:
            await asyncio.sleep(self._turn_s)
        if not answer.done():
            self._needed = True
        return await answer

    async def abort(self, request_id: str) -> None:
        """Forget a request."""
        self._pending = [one for one in self._pending if one.request.request_id != request_id]

    async def release(self, episode_id: str) -> None:
        """Nothing is cached."""

    async def info(self) -> GeneratorInfo:
        """Return the limits."""
        raise RuntimeError("the study hands the limits over itself")

    async def close(self) -> None:
        """Hold nothing."""
