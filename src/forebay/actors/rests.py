"""Rests: an environment that keeps failing is tried less and less often, and never given up here."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Final

from forebay.actors.backoff import Backoff
from forebay.actors.settings import ActorSettings
from forebay.errors import ForebayError

# A rest is up to this much longer, so that members that failed together do not come back together.
_JITTER: Final = 0.5


class Rests:
    """How long a member rests after its environment failed, before it may be tried again.

    Per environment: the first rest is `actors.backoff_s`, each further one twice as long, up to
    `actors.environment_backoff_max_s`; failures within one rest count as one, and a success ends the row.

    Args:
        settings: First and longest rest.
        now_s: Source of monotonic time.
        rng: Draws how much longer each rest is.

    Example:
        >>> rests = Rests(ActorSettings(), lambda: 0.0, random.Random(0))
        >>> 0.2 <= rests.failed("calculator", ForebayError("no answer")) <= 0.3
        True
    """

    def __init__(self, settings: ActorSettings, now_s: Callable[[], float], rng: random.Random) -> None:
        self._first_s = settings.backoff_s
        self._max_s = max(settings.backoff_s, settings.environment_backoff_max_s)
        self._now_s = now_s
        self._rng = rng
        self._by_environment: dict[str, Backoff] = {}

    def failed(self, environment: str, error: ForebayError) -> float:
        """Note a failure; return how long its member is to rest, in seconds."""
        backoff = self._by_environment.get(environment)
        if backoff is None:
            backoff = self._by_environment[environment] = Backoff(
                f"environment {environment}",
                first_s=self._first_s,
                max_s=self._max_s,
                patience_s=math.inf,
                now_s=self._now_s,
            )
        backoff.failed(error)
        return backoff.left_s * (1.0 + _JITTER * self._rng.random())

    def succeeded(self, environment: str) -> None:
        """Forget the failures so far."""
        self._by_environment.pop(environment, None)
