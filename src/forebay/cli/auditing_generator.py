"""The generator's part of an audit: tokens per second and latency by the number of requests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec
from rich.console import Console
from rich.table import Table

from forebay.cli.asking import wait_for_generator
from forebay.cli.audit_generator_advice import advise_generator
from forebay.cli.audit_parts import PartName, Say, make_origin, times_table
from forebay.cli.audit_rig import Rig
from forebay.cli.auditing_rehearsal import rehearse
from forebay.clock import Clock
from forebay.errors import PeerFailedError
from forebay.generation.client import HttpGenerator, read_token
from forebay.generation.protocol import GeneratorInfo
from forebay.generation.settings import ClientSettings
from forebay.planner.audit_calls import GeneratorAudit, conclude_loads, generator_profile, times
from forebay.planner.distribution import Distribution
from forebay.planner.profile import Profile
from forebay.planner.profile_records import Traffic
from forebay.planner.replaying import Replayer
from forebay.planner.traffic import Conversation, made_up
from forebay.report.text import number, visible

_START_S: Final = 600.0
_REHEARSAL_S: Final = 30.0
_PATIENCE_S: Final = 60.0
_PROMPTS_SHARE: Final = 0.25
_NUM_MADE_UP: Final = 64
# Where a generator does not tell its slots.
_GUESSED_SLOTS: Final = 32
# One that cannot be reached now is not waited for; nor is one whose queue is full, which ends what it tells.
_FOREIGN: Final = {"retry_s": 1.0, "busy_retry_s": 10.0, "request_timeout_s": 2 * _PATIENCE_S}


class Asked(NamedTuple):
    """What the command line says about requests.

    Attributes:
        requests: At a time, load by load; None to choose by the slots.
        prompt_tokens: Tokens of a prompt that is made up.
        answer_tokens: Tokens of the answer to it.
    """

    requests: tuple[int, ...] | None
    prompt_tokens: int
    answer_tokens: int


class GeneratorPart:
    """A generator under measurement.

    Args:
        rig: Where one is started, or which one is given; None for one that is only an address.
        address: That address.
        token_env: Variable with its token.
        asked: What it is asked.
        limit_s: Time to measure, after its start.
        command: How this was asked for.
        clock: Source of time.
    """

    name: PartName = "generator"

    def __init__(
        self,
        rig: Rig | None,
        address: str | None,
        token_env: str | None,
        asked: Asked,
        limit_s: float,
        command: str,
        clock: Clock,
    ) -> None:
        self._rig, self._address, self._token_env = rig, address, token_env
        self._asked, self._limit_s, self._command, self._clock = asked, limit_s, command, clock
        self._began_s = clock.wall_s()
        self._replayer: Replayer | None = None
        self._what, self._slots = "", 0
        self._traffic: dict[str, Traffic] = {}

    def measure(self, say: Say) -> None:
        """Measure load by load; see `Part.measure`."""
        self._began_s = self._clock.wall_s()
        if self._address is None:
            assert self._rig is not None
            self._address = self._rig.address(say)
        asyncio.run(self._measure(self._address, say))
        if (found := self.conclude()) is None or not found.loads:
            reason = next(iter(found.errors.values()), "") if found else ""
            raise PeerFailedError(
                f"generator {self._address} answered no request" + (f": {reason}" if reason else ""),
                remedy="Look at its log, or give it more time: --seconds.",
            )

    def conclude(self) -> GeneratorAudit | None:
        """Return what has been found so far; None if nothing was asked."""
        if self._replayer is None or self._address is None:
            return None
        replayer = self._replayer
        return conclude_loads(
            self._address, self._what, self._slots, replayer.loads, self._traffic, replayer.own_share
        )

    def profile(self) -> Profile | None:
        """Return the generator's part; see `Part.profile`."""
        found = self.conclude()
        if found is None:
            return None
        on = f"{found.address}" if self._is_given else f"on cores {_cores(self._rig)}"
        how = f"{self._command}; {found.asked}"
        part = generator_profile(found, make_origin(self._clock, self._began_s, how, on))
        return None if part is None else Profile(generator=part)

    def show(self, console: Console) -> None:
        """Print the page; see `Part.show`."""
        found = self.conclude()
        if found is None or not found.loads:
            return
        console.print(f"\ngenerator, asked {visible(found.asked)}", style="bold", markup=False)
        console.print(_rates(found))
        console.print()
        console.print(times_table("time of a, at a time", list(_times(found))))
        console.print()
        for sentence in advise_generator(found):
            console.print(f"- {sentence}", markup=False)

    def as_json(self) -> dict[str, Any]:
        """Return what was found; see `Part.as_json`."""
        found, profile = self.conclude(), self.profile()
        if found is None or profile is None:
            return {"generator": None}
        tree = msgspec.to_builtins(profile.generator)
        return {
            "generator": tree
            | {"address": found.address, "asked": found.asked, "own_share": found.own_share}
            | {"knee_kind": found.knee.kind, "knee_certainty": found.knee.certainty}
            | {"advice": advise_generator(found)}
        }

    @property
    def _is_given(self) -> bool:
        return self._rig is None or self._rig.given is not None

    async def _measure(self, address: str, say: Say) -> None:
        settings = self._client_settings()
        client = HttpGenerator(address, settings=settings, token=read_token(settings.token_env))
        try:
            info = await self._info(client)
            self._slots = info.slots
            conversations = await self._conversations(client, info, say)
            self._replayer = Replayer(
                client, conversations, vocabulary=info.vocabulary, patience_s=_PATIENCE_S
            )
            loads = self._asked.requests or default_requests(info.slots)
            window_s = self._limit_s / len(loads)
            for requests in loads:
                say(f"generator: {requests} requests at a time, {window_s:.3g} s")
                prompts_s = _PROMPTS_SHARE * window_s
                await self._replayer.run_level(requests, window_s - prompts_s, prompts_s)
                if self._replayer.is_hopeless:
                    return
        finally:
            await client.close()

    def _client_settings(self) -> ClientSettings:
        if self._rig is None:
            return ClientSettings(token_env=self._token_env, **_FOREIGN)
        settings = self._rig.client_settings
        if not self._is_given:
            return settings
        token = {} if self._token_env is None else {"token_env": self._token_env}
        return settings.model_copy(update=_FOREIGN | token)

    async def _info(self, client: HttpGenerator) -> GeneratorInfo:
        if self._is_given:
            info = await client.info()
            await client.wait_ready(_PATIENCE_S)
            return info
        assert self._rig is not None
        return await wait_for_generator(client, self._rig.watch, _START_S)

    async def _conversations(
        self, client: HttpGenerator, info: GeneratorInfo, say: Say
    ) -> tuple[Conversation, ...]:
        rig = self._rig
        if rig is not None:
            say("generator: playing episodes, to learn what they ask")
            chat = rig.model[1]
            played = await rehearse(rig.config, chat, client, info, _REHEARSAL_S, self._clock)
            if played.conversations:
                self._traffic = rig.traffic = played.traffic
                self._what = f"what {len(played.conversations)} episodes of the run asked"
                return played.conversations
            why = f" ({played.failed[0]})" if played.failed else ""
            say(f"generator: no episode ended within {_REHEARSAL_S:g} s{why}; prompts are made up")
        asked = self._asked
        self._what = f"random prompts of {asked.prompt_tokens} tokens for {asked.answer_tokens} tokens each"
        return made_up(_NUM_MADE_UP, asked.prompt_tokens, asked.answer_tokens, info.vocabulary, info.context)


def default_requests(slots: int) -> tuple[int, ...]:
    """Return the loads to measure: one request, four times as many and so on, all slots, and twice that.

    Example:
        >>> default_requests(32), default_requests(2)
        ((1, 4, 16, 32, 64), (1, 2, 4))
    """
    slots = slots or _GUESSED_SLOTS
    loads = {1, slots, 2 * slots}
    load = 4
    while load < slots:
        loads.add(load)
        load *= 4
    return tuple(sorted(loads))


def _cores(rig: Rig | None) -> str:
    return "" if rig is None else ",".join(map(str, rig.cpus[1]))


def _times(found: GeneratorAudit) -> Iterator[tuple[str, Distribution]]:
    for load in found.loads:
        told = [one for one in load.calls if one.prefill_s is not None]
        yield f"call, {load.requests}", times([one.served_s for one in load.calls])
        if told:
            yield f"  prompt, {load.requests}", times([one.prefill_s or 0.0 for one in told])
            yield f"  sampling, {load.requests}", times([one.decode_s or 0.0 for one in told])
            yield f"wait before, {load.requests}", times([one.queue_s for one in told])


def _rates(found: GeneratorAudit) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("at a time", "tokens/s", "95 %", "prompt tokens/s", "calls", "failed"):
        table.add_column(heading, justify="right")
    for load in found.loads:
        rate, prompts = load.tokens_per_s, load.prefill_tokens_per_s
        table.add_row(
            str(load.requests),
            number(rate.value),
            f"±{number(rate.high - rate.value)}",
            "-" if prompts is None else number(prompts.value),
            number(len(load.calls)),
            number(load.num_errors),
        )
    return table
