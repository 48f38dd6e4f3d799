"""Virtual time: what happens next, and stations that serve so many at once."""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from forebay.planner.distribution import Distribution

Job = TypeVar("Job")


class Events:
    """A queue of calls by virtual time; those of one instant in the order in which they were made.

    Attributes:
        now_s: Virtual seconds since the start.
        num_done: Calls made.
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self.num_done = 0
        self._queue: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._numbers = itertools.count()

    def after(self, delay_s: float, call: Callable[[Any], None], argument: Any) -> None:
        """Make a call so many seconds from now."""
        heapq.heappush(self._queue, (self.now_s + delay_s, next(self._numbers), call, argument))

    def run(self, ended: Callable[[], bool], limit_s: float) -> None:
        """Let time pass until `ended`, nothing happens any more, or the limit."""
        queue, pop = self._queue, heapq.heappop
        while not ended():
            if not queue or queue[0][0] > limit_s:
                return
            self.now_s, _, call, argument = pop(queue)
            self.num_done += 1
            call(argument)


class Draws:
    """Draws from a distribution, each value as likely as any other.

    Args:
        distribution: What is drawn from.
        rng: Source of randomness.
        factor: What every value is multiplied by.
    """

    def __init__(self, distribution: Distribution, rng: random.Random, factor: float = 1.0) -> None:
        self._values = tuple(value * factor for value in distribution.values)
        self._count = len(self._values)
        self._random = rng.random
        self.mean = distribution.mean * factor

    def draw(self) -> float:
        """Return a value."""
        count = self._count
        return self._values[0] if count == 1 else self._values[int(self._random() * count)]


class Station(Generic[Job]):
    """Serves so many jobs at once; the others wait in the order of arrival, those that go ahead first.

    Args:
        start: Called when a job is served.
        capacity: Jobs served at once; None for no limit.

    Attributes:
        capacity: As given; it may change.
        num_busy: Jobs served now.
        queue: Jobs that wait.
        ahead: Jobs that wait, but go first.
    """

    def __init__(self, start: Callable[[Job], None], capacity: int | None) -> None:
        self.capacity = capacity
        self.num_busy = 0
        self.queue: deque[Job] = deque()
        self.ahead: deque[Job] = deque()
        self._start = start

    @property
    def has_room(self) -> bool:
        """Whether a job that arrives is served at once."""
        return self.capacity is None or self.num_busy < self.capacity

    def arrive(self, job: Job, *, goes_ahead: bool = False) -> None:
        """Serve a job, now or when it has its turn."""
        if self.capacity is None or self.num_busy < self.capacity:
            self.num_busy += 1
            self._start(job)
        else:
            (self.ahead if goes_ahead else self.queue).append(job)

    def leave(self) -> None:
        """Note that a job has been served."""
        self.num_busy -= 1
        self.refill()

    def refill(self) -> None:
        """Serve whoever waits, as far as there is room."""
        while (waiting := self.ahead or self.queue) and self.has_room:
            self.num_busy += 1
            self._start(waiting.popleft())
