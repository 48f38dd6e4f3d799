"""Whether the generator may be given work: it answers, and it serves nothing older than it did before."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from typing import Final

from forebay.actors.backoff import Backoff
from forebay.actors.episode import StaleGeneratorError
from forebay.actors.settings import ActorSettings
from forebay.errors import GenerationError
from forebay.generation.protocol import Generator, GeneratorInfo
from forebay.trajectory import PolicyVersion

_ANSWER_S: Final = 10.0
_log = logging.getLogger(__name__)


class GeneratorHealth:
    """Looks at a generator now and then, and keeps away from one that fails.

    Versions are ordered by (incarnation, version). A generator that restarts with older weights, the
    initial ones for instance while its learner restores a checkpoint, gets no work until it has caught up.

    Args:
        generator: The generator.
        settings: How often to look, and how long to be patient.
        counters: Where `generator_errors` and `refused.old_version` are counted.
        now_s: The event loop's clock.

    Attributes:
        seen: The newest version that it said it serves.
    """

    def __init__(
        self,
        generator: Generator,
        settings: ActorSettings,
        counters: Counter[str],
        now_s: Callable[[], float],
    ) -> None:
        self._generator = generator
        self._period_s = settings.version_period_s
        self._counters = counters
        self._now_s = now_s
        # A generator can say that it is well and fail every request all the same.
        self._looks = Backoff.of("generator", settings, now_s)
        self._requests = Backoff.of("generator", settings, now_s)
        self._next_look_s = 0.0
        self._info: GeneratorInfo | None = None
        self.seen = PolicyVersion(0, 0)

    @property
    def pause_s(self) -> float:
        """Time until it may be asked again."""
        return max(self._looks.left_s, self._requests.left_s)

    async def look(self) -> GeneratorInfo | None:
        """Return what the generator says about itself; None if it gets no work now.

        Waits for: the generator, 10 s at most. Unblocked by: its answer.

        Raises:
            PeerFailedError: It has failed for longer than `peer_patience_s`.
        """
        if self.pause_s:
            return None
        now_s = self._now_s()
        if self._info is not None and now_s < self._next_look_s:
            return self._info
        try:
            info = await self._ask()
        except GenerationError as error:
            self._count(error)
            self._looks.failed(error)
            return None
        self._looks.succeeded()
        self._next_look_s = now_s + self._period_s
        self.seen = info.version
        self._info = info
        return info

    def failed(self, error: GenerationError) -> None:
        """Note that a request failed.

        Raises:
            PeerFailedError: None has succeeded for longer than `peer_patience_s`.
        """
        self._count(error)
        self._requests.failed(error)
        self._next_look_s = 0.0

    def succeeded(self) -> None:
        """Note that a request succeeded."""
        self._requests.succeeded()

    def _count(self, error: GenerationError) -> None:
        stale = isinstance(error, StaleGeneratorError)
        self._counters["refused.old_version" if stale else "generator_errors"] += 1
        _log.warning("%s", error)

    async def _ask(self) -> GeneratorInfo:
        try:
            async with asyncio.timeout(_ANSWER_S):
                info = await self._generator.info()
        except TimeoutError as error:
            raise GenerationError("generator does not answer", limit=f"{_ANSWER_S:g} s") from error
        if info.version < self.seen:
            raise StaleGeneratorError(
                "generator serves older weights than before", got=tuple(info.version), limit=tuple(self.seen)
            )
        return info
