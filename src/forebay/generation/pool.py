"""Several generators as one: an episode stays with the one that holds its KV cache; without JAX."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence

from forebay.clock import Clock, SystemClock
from forebay.errors import ConfigError
from forebay.generation.client import HttpGenerator, read_token
from forebay.generation.protocol import (
    Completion,
    GenerationRequest,
    Generator,
    GeneratorInfo,
    UnreachableError,
)
from forebay.generation.settings import ClientSettings

_SETTINGS, _CLOCK = ClientSettings(), SystemClock()
_MAX_EPISODES = 100_000
_FAILOVER_RETRY_S = 0.5


def connect(
    addresses: Sequence[str], settings: ClientSettings = _SETTINGS, clock: Clock = _CLOCK
) -> HttpGenerator | GeneratorPool:
    """Return a client of one generator, or of several.

    Args:
        addresses: Base addresses, e.g. `http://127.0.0.1:8100`.
        settings: Waits and the token.
        clock: Source of time.

    Raises:
        ConfigError: There is no address, or the token's variable is not set.
    """
    if not addresses:
        raise ConfigError("no generator address", remedy="Name at least one, e.g. http://127.0.0.1:8100.")
    token = read_token(settings.token_env)
    if len(addresses) == 1:
        return HttpGenerator(addresses[0], settings=settings, token=token, clock=clock)
    # Another generator can take over, so do not insist on this one.
    brief = settings.model_copy(update={"retry_s": min(settings.retry_s, _FAILOVER_RETRY_S)})
    members = [HttpGenerator(address, settings=brief, token=token, clock=clock) for address in addresses]
    return GeneratorPool(members, avoid_s=settings.avoid_s, clock=clock)


class GeneratorPool:
    """The `Generator` protocol over several members.

    A follow-up goes where the episode was; a new episode goes to the member with the fewest requests in
    flight. When a member cannot be reached its requests move to another, which computes their prompts again,
    and it gets no new episodes for a while.

    Args:
        members: The generators.
        avoid_s: How long a member that failed gets no new episodes.
        clock: Source of time.
    """

    def __init__(self, members: Sequence[Generator], *, avoid_s: float = 5.0, clock: Clock = _CLOCK) -> None:
        self._members = tuple(members)
        self._avoid_s = avoid_s
        self._clock = clock
        self._in_flight = [0] * len(self._members)
        self._avoid_until_s = [0.0] * len(self._members)
        self._home: OrderedDict[str, int] = OrderedDict()
        self._running: dict[str, int] = {}
        self.failovers = 0

    async def generate(self, request: GenerationRequest) -> Completion:
        """Continue one prompt on the member that suits best; each member is tried at most once.

        Raises:
            UnreachableError: No member can be reached.
            GenerationError: As for the member.
        """
        tried: set[int] = set()
        while True:
            member = self._choose(request.episode_id, tried)
            tried.add(member)
            self._running[request.request_id] = member
            self._in_flight[member] += 1
            try:
                completion = await self._members[member].generate(request)
            except UnreachableError:
                self._avoid_until_s[member] = self._clock.monotonic_s() + self._avoid_s
                self._home.pop(request.episode_id, None)
                if len(tried) == len(self._members):
                    raise
                self.failovers += 1
                continue
            finally:
                self._in_flight[member] -= 1
                self._running.pop(request.request_id, None)
            self._settle(request, member)
            return completion

    async def abort(self, request_id: str) -> None:
        """End a running request."""
        member = self._running.get(request_id)
        if member is not None:
            await self._members[member].abort(request_id)

    async def release(self, episode_id: str) -> None:
        """Forget the KV cache of an episode."""
        member = self._home.pop(episode_id, None)
        if member is not None:
            await self._members[member].release(episode_id)

    async def info(self) -> GeneratorInfo:
        """Return the oldest version served, and the limits that every member keeps.

        Raises:
            UnreachableError: No member can be reached.
        """
        answers = await asyncio.gather(*(member.info() for member in self._members), return_exceptions=True)
        infos = [answer for answer in answers if isinstance(answer, GeneratorInfo)]
        failures = [answer for answer in answers if isinstance(answer, BaseException)]
        other = next((error for error in failures if not isinstance(error, UnreachableError)), None)
        if other is not None or not infos:
            raise other or failures[0]
        return GeneratorInfo(
            version=min(info.version for info in infos),
            context=min(info.context for info in infos),
            vocabulary=min(info.vocabulary for info in infos),
            model=infos[0].model,
            slots=sum(info.slots for info in infos),
        )

    async def close(self) -> None:
        """Close every member."""
        for member in self._members:
            await member.close()

    def _choose(self, episode_id: str, tried: set[int]) -> int:
        home = self._home.get(episode_id) if episode_id else None
        if home is not None and home not in tried:
            return home
        now_s = self._clock.monotonic_s()
        left = [member for member in range(len(self._members)) if member not in tried]
        return min(left, key=lambda m: (self._avoid_until_s[m] > now_s, self._in_flight[m], m))

    def _settle(self, request: GenerationRequest, member: int) -> None:
        """Remember where the KV cache of an episode lies; a bounded number of episodes."""
        if not request.episode_id or not request.keep:
            self._home.pop(request.episode_id, None)
            return
        self._home[request.episode_id] = member
        self._home.move_to_end(request.episode_id)
        if len(self._home) > _MAX_EPISODES:
            self._home.popitem(last=False)
