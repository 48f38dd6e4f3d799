"""A generator behind HTTP: our engine or vLLM, with deadlines on every wait; no JAX is imported here."""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec

from forebay.clock import Clock, SystemClock
from forebay.errors import ConfigError, GenerationError, PeerFailedError, RecordError
from forebay.generation import http_records as records
from forebay.generation import http_wire as wire
from forebay.generation.http_transport import Transport
from forebay.generation.labelled import LabelledServer
from forebay.generation.protocol import (
    Completion,
    GenerationRequest,
    GeneratorInfo,
    OverloadedError,
    UnreachableError,
)
from forebay.generation.settings import ClientSettings

_SETTINGS, _CLOCK = ClientSettings(), SystemClock()
_POLL_S = 0.2
_MIN_PING_S = 0.1


def read_token(token_env: str | None, environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the bearer token that an environment variable holds; None if no variable is named.

    Raises:
        ConfigError: The variable is named but not set.
    """
    if token_env is None:
        return None
    token = environ.get(token_env, "").strip()
    if not token:
        raise ConfigError(
            f"environment variable {token_env} holds no token",
            remedy=f"Set it: export {token_env}=$(openssl rand -hex 32)",
        )
    return token


class HttpGenerator:
    """The `Generator` protocol over HTTP.

    Waits: for a connection (`connect_timeout_s`), for a generator that cannot be reached (`retry_s`), that is
    loading or full (`busy_retry_s`), that is silent (`unresponsive_s`, noticed by a heartbeat while requests
    run), and for the completion (the request's deadline, then `request_timeout_s`).

    Which of the two generators it is, is asked once. vLLM's requests have no word for `min_version`,
    deadlines and padded vocabulary; this side keeps them (`LabelledServer`).

    Args:
        address: Base address, e.g. `http://127.0.0.1:8100`.
        settings: The waits.
        token: Bearer token.
        clock: Source of time.
    """

    def __init__(
        self,
        address: str,
        *,
        settings: ClientSettings = _SETTINGS,
        token: str | None = None,
        clock: Clock = _CLOCK,
    ) -> None:
        self.address = address.rstrip("/")
        self._settings, self._clock = settings, clock
        self._transport = Transport(self.address, settings, token, clock)
        masked = range(settings.vocabulary, settings.padded_vocabulary) if settings.vocabulary else ()
        model = wire.adapter_name(settings.run_id) if settings.adapters else None
        self._labelled = LabelledServer(self._transport, masked, settings.run_id, clock, model)
        self._is_vllm: bool | None = None

    @property
    def retries(self) -> int:
        """How often a request was tried again."""
        return self._transport.retries

    async def generate(self, request: GenerationRequest) -> Completion:
        """Continue one prompt; tried again while the generator cannot be reached or is busy.

        Trying again is safe: the tokens are a function of prompt, seed and weights.

        Raises:
            BadRequestError: The generator refused the request.
            OverloadedError: It was busy for longer than `busy_retry_s`.
            UnreachableError: It could not be reached, fell silent, or did not finish in time.
            GenerationError: It failed.
            RecordError: Its answer contradicts itself (`logprob_mismatch` and others).
        """
        if self._is_vllm is None:
            await self._card()
        if self._is_vllm:
            return await self._labelled.generate(request)
        return wire.decode_completion(await self._transport.complete(wire.encode_request(request)))

    async def abort(self, request_id: str) -> None:
        """End a running request; a generator that is gone has nothing to end."""
        await self._transport.tell(records.ABORT_PATH, records.abort_of(request_id))

    async def release(self, episode_id: str) -> None:
        """Forget the KV cache of an episode; a generator that is gone holds none."""
        await self._transport.tell(records.RELEASE_PATH, records.ReleaseBody([episode_id]))

    async def info(self) -> GeneratorInfo:
        """Return the version served and the limits.

        vLLM does not tell how many ids its model has: `vocabulary` is then the setting of that name.

        Raises:
            GenerationError: As for `generate`, or vLLM serves weights that this run has not labelled.
        """
        card = await self._card()
        if card.forebay is not None:
            return card.forebay
        try:
            version = await self._labelled.version()
        except RecordError as error:
            raise GenerationError(
                f"vLLM at {self.address} does not serve weights of this run yet ({error})",
                remedy="Wait for the first update, or start the run's weight control: forebay generate RUN.",
            ) from error
        return GeneratorInfo(
            version=version,
            context=card.max_model_len or 0,
            vocabulary=self._settings.vocabulary,
            model=card.id,
        )

    async def wait_ready(self, timeout_s: float) -> None:
        """Wait until the generator has loaded weights and compiled its programs.

        Raises:
            PeerFailedError: It was not ready within `timeout_s`; the message holds its last answer.
        """
        give_up_s = self._clock.monotonic_s() + timeout_s
        while True:
            left_s = give_up_s - self._clock.monotonic_s()
            try:
                limit_s = max(min(left_s, self._settings.unresponsive_s), _MIN_PING_S)
                await self._transport.connection.request("GET", records.HEALTH_PATH, timeout_s=limit_s)
                return
            except (UnreachableError, OverloadedError) as error:
                if self._clock.monotonic_s() >= give_up_s:
                    raise PeerFailedError(
                        f"generator {self.address} was not ready within {timeout_s:g} s: {error}"
                    ) from error
            await self._clock.asleep(_POLL_S)

    async def close(self) -> None:
        """Close the connections; running requests end on the generator too."""
        self._labelled.close()
        await self._transport.close()

    async def _card(self) -> records.ModelCard:
        """Ask what is served, and note by the answer which of the two generators it is."""
        data = await self._transport.get(records.MODELS_PATH)
        try:
            cards = msgspec.json.decode(data, type=records.ModelList).data
        except msgspec.DecodeError as error:
            raise GenerationError(f"{self.address} does not describe its model: {error}") from error
        card = cards[0] if cards else records.ModelCard(id="")
        self._is_vllm = card.forebay is None
        return card
