"""Requests that wait for a slot: which are refused, who is next, who is late; without JAX."""

from __future__ import annotations

from collections.abc import Callable

from forebay.clock import Clock
from forebay.errors import GenerationError
from forebay.generation.protocol import (
    BadRequestError,
    DuplicateRequestError,
    GenerationRequest,
    OverloadedError,
)
from forebay.generation.settings import GeneratorSettings
from forebay.generation.slots import Done, Waiting
from forebay.trajectory import PolicyVersion


class RequestQueue:
    """A bounded queue.

    Follow-ups of parked episodes come first (their cache is at hand, and finishing an episode frees more than
    starting one), then first come, first served; a request held back by `min_version` lets others pass.

    Args:
        settings: Its length and the limits of a request.
        clock: Source of time.
    """

    def __init__(self, settings: GeneratorSettings, clock: Clock) -> None:
        self._settings, self._clock = settings, clock
        self._waiting: dict[str, Waiting] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._waiting

    def add(self, request: GenerationRequest, done: Done, arrived_s: float | None = None) -> Waiting:
        """Queue a request; one whose prompt fills the context is returned without being queued.

        Args:
            request: The request.
            done: Called once, with its completion or its error.
            arrived_s: When it came, on the clock's monotonic scale; None for now.

        Returns:
            The request with its deadline, and `max_tokens` clipped to the room that the context leaves.

        Raises:
            BadRequestError: It can never be served.
            OverloadedError: The queue is full.
        """
        problem = self._problem(request)
        if problem is not None:
            raise problem
        arrived_s = self._clock.monotonic_s() if arrived_s is None else arrived_s
        waiting = Waiting(
            request=request,
            done=done,
            arrived_s=arrived_s,
            deadline_s=arrived_s + (request.deadline_s or self._settings.request_timeout_s),
            max_tokens=max(min(request.max_tokens, self._settings.context - len(request.prompt)), 0),
        )
        if waiting.max_tokens:
            self._waiting[request.request_id] = waiting
        return waiting

    def take(self, num_free: int, version: PolicyVersion, is_parked: Callable[[str], bool]) -> list[Waiting]:
        """Remove and return up to `num_free` requests that `version` may serve, in order."""
        ready = [waiting for waiting in self._waiting.values() if waiting.request.min_version <= version]
        ready.sort(key=lambda waiting: not is_parked(waiting.request.episode_id))
        for waiting in ready[:num_free]:
            del self._waiting[waiting.request.request_id]
        return ready[:num_free]

    def remove(self, request_id: str) -> Waiting | None:
        """Remove and return a request; None if it is not here."""
        return self._waiting.pop(request_id, None)

    def late(self, now_s: float) -> list[str]:
        """Return the ids of requests whose deadline has passed."""
        return [name for name, waiting in self._waiting.items() if waiting.deadline_s <= now_s]

    def may_go_on(self, version: PolicyVersion) -> bool:
        """Return whether any request may be served by `version`."""
        return any(waiting.request.min_version <= version for waiting in self._waiting.values())

    def next_deadline_s(self) -> float | None:
        """Return the earliest deadline, on the clock's monotonic scale."""
        return min((waiting.deadline_s for waiting in self._waiting.values()), default=None)

    def clear(self) -> list[Waiting]:
        """Remove and return everything."""
        lost = list(self._waiting.values())
        self._waiting.clear()
        return lost

    def _problem(self, request: GenerationRequest) -> GenerationError | None:
        settings = self._settings
        if request.request_id in self._waiting:
            return DuplicateRequestError("a request with this id is running", got=request.request_id)
        if request.max_tokens < 1 or not len(request.prompt):
            return BadRequestError("a request needs a prompt and max_tokens of at least 1")
        if len(request.stop_tokens) > settings.max_stop_tokens:
            return BadRequestError(
                "too many stop tokens",
                got=len(request.stop_tokens),
                limit=settings.max_stop_tokens,
                remedy="Raise generator.max_stop_tokens.",
            )
        if len(self._waiting) >= settings.max_queue:
            return OverloadedError(
                "the queue is full",
                got=len(self._waiting),
                limit=settings.max_queue,
                remedy="Raise generator.max_queue, add generators, or keep fewer episodes in flight.",
            )
        return None
