"""Requests to a vLLM server, which knows neither `min_version` nor deadlines: they are kept here; no JAX."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

import msgspec

from forebay.clock import Clock
from forebay.errors import GenerationError, RecordError
from forebay.generation import http_records as records
from forebay.generation import http_wire as wire
from forebay.generation.http_connection import NotFoundError
from forebay.generation.http_transport import Transport
from forebay.generation.protocol import Completion, GenerationRequest
from forebay.trajectory import PolicyVersion

_POLL_S = 0.05
_ABORT_GRACE_S = 1.0


class LabelledServer:
    """Requests that wait for the version they need, and end at their deadline.

    Whoever loads weights into the server labels them `incarnation.version` afterwards, so a label that is
    new enough stays true for as long as the server lives. One that restarts has lost its label and serves
    whatever it was started with, and one that another run used serves that one's: what they sample is thrown
    away, and requests wait for a label of this run.

    Args:
        transport: Gets requests through.
        masked: Ids that must not be sampled: the padding of the vocabulary.
        run_id: The run that must have labelled the weights; empty for any.
        clock: Source of time.
        model: What requests are for, where it is not the model itself.
    """

    def __init__(
        self,
        transport: Transport,
        masked: Sequence[int],
        run_id: str,
        clock: Clock,
        model: str | None = None,
    ) -> None:
        self._transport, self._masked, self._run_id, self._clock = transport, masked, run_id, clock
        self._model = model
        self._version: PolicyVersion | None = None
        self._look: asyncio.Task[None] | None = None

    async def version(self) -> PolicyVersion:
        """Ask for the version that the server is labelled with.

        Raises:
            RecordError: `bad_version`: nobody has labelled its weights, or another run has.
            GenerationError: It cannot be asked.
        """
        try:
            data = await self._transport.get(records.WEIGHT_PATH)
            label = msgspec.json.decode(data, type=records.WeightInfo).weight_version
        except (NotFoundError, msgspec.DecodeError) as error:
            raise GenerationError(
                f"vLLM at {self._transport.address} does not tell the version of its weights",
                remedy="Start it with VLLM_SERVER_DEV_MODE=1 in its environment.",
            ) from error
        return wire.parse_label(label, self._run_id)[0]

    async def generate(self, request: GenerationRequest) -> Completion:
        """Continue one prompt; `wait_s` is the time until it was sent, `generate_s` the rest.

        Raises:
            GenerationError: As for `HttpGenerator.generate`.
            RecordError: As for `HttpGenerator.generate`.
        """
        body = wire.encode_request(request, self._masked, self._model)
        started_s = self._clock.monotonic_s()
        give_up_s = math.inf if request.deadline_s is None else started_s + request.deadline_s
        while await self._hold(request.min_version, give_up_s):
            sent_s = self._clock.monotonic_s()
            try:
                data = await self._answer(request.request_id, body, give_up_s)
            except NotFoundError:
                if self._model is None:
                    raise
                self._version = None  # it was restarted, and knows no adapters yet
                await self._clock.asleep(_POLL_S)
                continue
            completion = None if data is None else self._accepted(data, request.min_version)
            if completion is not None:
                ended_s = self._clock.monotonic_s()
                return msgspec.structs.replace(
                    completion,
                    finish="deadline"
                    if completion.finish == "abort" and ended_s >= give_up_s
                    else completion.finish,
                    wait_s=sent_s - started_s,
                    generate_s=ended_s - sent_s,
                )
        return wire.empty_completion("deadline", wait_s=self._clock.monotonic_s() - started_s)

    def close(self) -> None:
        """Stop looking for a label."""
        if self._look is not None:
            self._look.cancel()

    async def _hold(self, min_version: PolicyVersion, give_up_s: float) -> bool:
        """Wait until the server serves `min_version`; return False if it does not by `give_up_s`.

        Consumes: labels. Waits for: the server's weight control. Unblocked by: a label that is new enough,
        or time. Produces: leave to send a request. However many requests wait, one at a time asks.
        """
        while (left_s := give_up_s - self._clock.monotonic_s()) > 0:
            if self._version is not None and self._version >= min_version:
                return True
            if self._look is None or self._look.done():
                self._look = asyncio.create_task(self._refresh())
            done, _ = await asyncio.wait({self._look}, timeout=None if math.isinf(left_s) else left_s)
            for task in done:
                task.result()
            if self._version is None or self._version < min_version:
                await self._clock.asleep(min(_POLL_S, left_s))
        return False

    async def _refresh(self) -> None:
        try:
            self._version = await self.version()
        except RecordError:
            self._version = None  # not labelled yet

    async def _answer(self, request_id: str, body: bytes, give_up_s: float) -> bytes | None:
        """Return the server's answer; after `give_up_s` that of an abort, or None if there is none."""
        task = asyncio.ensure_future(self._transport.complete(body))
        left_s = give_up_s - self._clock.monotonic_s()
        try:
            await asyncio.wait({task}, timeout=None if math.isinf(left_s) else max(left_s, 0.0))
            if not task.done():
                await self._transport.tell(records.ABORT_PATH, records.abort_of(request_id))
                await asyncio.wait({task}, timeout=_ABORT_GRACE_S)
            return await task if task.done() else None
        finally:
            task.cancel()

    def _accepted(self, data: bytes, min_version: PolicyVersion) -> Completion | None:
        """Return the completion, or None if it was sampled with weights that must not be used."""
        try:
            completion = wire.decode_completion(data, self._run_id)
        except RecordError as error:
            if error.reason != "bad_version":
                raise
            self._version = None
            return None
        if all(span.version >= min_version for span in completion.version_spans):
            return completion
        self._version = None
        return None
