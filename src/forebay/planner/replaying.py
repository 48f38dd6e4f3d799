"""Driving a generator: so many requests at a time, from conversations that are replayed again and again."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from forebay.errors import GenerationError, RecordError
from forebay.generation.protocol import Completion, GenerationRequest, Generator
from forebay.planner.audit_calls import Load, ModelCall
from forebay.planner.traffic import Conversation, made_up_prompt
from forebay.trajectory import PolicyVersion, Sampling

_PAUSE_S: Final = 0.2
_RELEASE_S: Final = 5.0
_NEVER = PolicyVersion(0, 0)


class Replayer:
    """Measures a generator, load by load; what it has measured can be read at any time.

    Args:
        generator: Who is asked.
        conversations: What is asked, in turn; each replay is a new episode for the generator.
        vocabulary: Ids below this may stand in a prompt.
        patience_s: Longest time for one request.

    Attributes:
        loads: The loads that are over.
        own_share: Share of one core that asking took, at the most.
    """

    def __init__(
        self,
        generator: Generator,
        conversations: Sequence[Conversation],
        *,
        vocabulary: int,
        patience_s: float,
    ) -> None:
        self._generator, self._conversations = generator, conversations
        self._vocabulary, self._patience_s = vocabulary, patience_s
        self._numbers = itertools.count()
        self._prompt_tokens = _typical_prompt(conversations)
        self._rng = np.random.default_rng(0)
        self.loads: list[Load] = []
        self.own_share = 0.0

    async def run_level(self, requests: int, window_s: float, prompts_s: float) -> Load:
        """Keep so many requests under way: prompts alone first, then whole conversations.

        Consumes: conversations. Waits for: the generator. Unblocked by: its answers, the deadline of each
            request. Produces: a load in `loads`, also if it is cancelled.

        Args:
            requests: Requests at a time.
            window_s: Time in which conversations are replayed; calls that have begun are waited for.
            prompts_s: Time in which prompts are read alone.
        """
        prompts, turns = _Phase(), _Phase()
        cpu_s, began_s = time.process_time(), time.monotonic()
        try:
            await self._keep_going(prompts, requests, prompts_s, self._ask_prompts)
            await self._keep_going(turns, requests, window_s, self._ask_conversations)
        finally:
            elapsed_s = time.monotonic() - began_s
            self.own_share = max(self.own_share, (time.process_time() - cpu_s) / max(elapsed_s, 1e-9))
            load = Load(
                requests=requests,
                window_s=min(window_s, turns.now_s()),
                calls=tuple(turns.calls),
                prompts_s=min(prompts_s, prompts.now_s()),
                prompts=tuple(prompts.calls),
                num_errors=prompts.num_errors + turns.num_errors,
                error=turns.error or prompts.error,
            )
            self.loads.append(load)
        return load

    async def keep_busy(self, requests: int) -> None:
        """Replay conversations until cancelled; nothing is measured."""
        await self._keep_going(_Phase(), requests, float("inf"), self._ask_conversations)

    @property
    def is_hopeless(self) -> bool:
        """Whether a load has passed without an answer."""
        return any(load.num_errors and not load.calls for load in self.loads)

    async def _keep_going(
        self,
        phase: _Phase,
        requests: int,
        window_s: float,
        ask: Callable[[_Phase], Coroutine[Any, Any, bool]],
    ) -> None:
        async def worker() -> None:
            while True:  # once in any case: a busy machine may come here late
                answered = await ask(phase)
                if phase.now_s() >= phase.window_s:
                    return
                if not answered:
                    await asyncio.sleep(_PAUSE_S)

        phase.start(window_s)
        workers = [asyncio.create_task(worker()) for _ in range(requests)]
        try:
            await asyncio.gather(*workers)
        finally:
            for task in workers:
                task.cancel()
            await asyncio.wait(workers, timeout=_RELEASE_S)

    async def _ask_prompts(self, phase: _Phase) -> bool:
        """Have one prompt read that nobody has seen before."""
        request = GenerationRequest(
            request_id=f"audit-{next(self._numbers)}",
            prompt=made_up_prompt(self._rng, self._prompt_tokens, self._vocabulary),
            sampling=Sampling(),
            max_tokens=1,
            deadline_s=self._patience_s,
        )
        return await self._call(request, phase) is not None

    async def _ask_conversations(self, phase: _Phase) -> bool:
        number = next(self._numbers)
        conversation = self._conversations[number % len(self._conversations)]
        episode_id = f"audit-{number}"
        for turn, request in enumerate(conversation):
            asked = msgspec.structs.replace(
                request,
                request_id=f"{episode_id}.{turn}",
                episode_id=episode_id,
                min_version=_NEVER,
                deadline_s=self._patience_s,
                keep=turn + 1 < len(conversation),
            )
            if await self._call(asked, phase) is None:
                return False
            if phase.now_s() >= phase.window_s and asked.keep:
                await self._generator.release(episode_id)
                return True
        return True

    async def _call(self, request: GenerationRequest, phase: _Phase) -> Completion | None:
        began_s = phase.now_s()
        try:
            completion = await self._generator.generate(request)
            if completion.finish in ("deadline", "abort"):
                raise GenerationError(f"no answer within {self._patience_s:g} s")
        except (GenerationError, RecordError) as error:
            phase.fail(str(error))
            return None
        phase.calls.append(_call_of(request, completion, began_s, phase.now_s()))
        return completion


class _Phase:
    """A window, and what was answered in it."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self.window_s = 0.0
        self.calls: list[ModelCall] = []
        self.num_errors = 0
        self.error = ""

    def start(self, window_s: float) -> None:
        self._began_s, self.window_s = time.monotonic(), window_s

    def now_s(self) -> float:
        return time.monotonic() - self._began_s if self.window_s else 0.0

    def fail(self, error: str) -> None:
        self.num_errors += 1
        self.error = error


def _call_of(request: GenerationRequest, completion: Completion, began_s: float, ended_s: float) -> ModelCall:
    tells = bool(completion.num_prefilled or completion.num_cached)
    computed = completion.num_prefilled if tells else len(request.prompt)
    return ModelCall(
        began_s=began_s,
        ended_s=ended_s,
        queue_s=completion.queue_s,
        prefill_s=completion.wait_s - completion.queue_s if tells else None,
        decode_s=completion.generate_s if tells else None,
        sampled_tokens=len(completion.tokens),
        computed_tokens=computed,
    )


def _typical_prompt(conversations: Sequence[Conversation]) -> int:
    lengths = sorted(len(conversation[0].prompt) for conversation in conversations)
    return lengths[len(lengths) // 2]
