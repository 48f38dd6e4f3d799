"""Where the learner's time goes: every wait is a span named after its cause."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, get_args

import msgspec

from forebay.clock import Clock

State = Literal[
    "computing",
    "starved",
    "publishing",
    "compiling",
    "checkpointing",
    "packing",
    "other",
]
STATES: tuple[State, ...] = get_args(State)


class TimeShares(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds by state over an interval; they add up to `wall_s`.

    Args:
        wall_s: Length of the interval.
        seconds: Exclusive seconds by state; `other` is outside every span.
    """

    wall_s: float
    seconds: dict[State, float]

    def share(self, state: State) -> float:
        """Return the fraction of the interval spent in a state, 0 to 1."""
        return self.seconds[state] / self.wall_s if self.wall_s > 0 else 0.0

    @property
    def busy(self) -> float:
        """The fraction spent inside compiled training programs, 0 to 1."""
        return self.share("computing")

    def minus(self, earlier: TimeShares) -> TimeShares:
        """Return the shares of the time since `earlier`, a reading of the same strip."""
        return TimeShares(
            wall_s=self.wall_s - earlier.wall_s,
            seconds={state: self.seconds[state] - earlier.seconds[state] for state in STATES},
        )


class TimeStrip:
    """Accounts for every second of one thread: each belongs to exactly one state.

    An inner span pauses the outer one, so that a compilation inside a step is not counted as computing.

    Args:
        clock: Source of time.
        observe: Called at the end of each span: its state, begin and end in monotonic seconds.

    Example:
        >>> from forebay.clock import ManualClock
        >>> clock = ManualClock()
        >>> strip = TimeStrip(clock)
        >>> with strip.span("computing"):
        ...     clock.advance(3.0)
        ...     with strip.span("compiling"):
        ...         clock.advance(1.0)
        >>> strip.read().seconds["computing"], strip.read().busy
        (3.0, 0.75)
    """

    def __init__(
        self, clock: Clock, observe: Callable[[State, float, float], None] = lambda *_: None
    ) -> None:
        self._clock = clock
        self._observe = observe
        self._state: State = "other"
        self._since_s = self._began_s = clock.monotonic_s()
        self._seconds: dict[State, float] = dict.fromkeys(STATES, 0.0)

    @property
    def state(self) -> State:
        """The state that time is booked on now."""
        return self._state

    @contextmanager
    def span(self, state: State) -> Iterator[None]:
        """Book the time inside the block on `state`."""
        outer = self._enter(state)
        began_s = self._since_s
        try:
            yield
        finally:
            self._enter(outer)
            self._observe(state, began_s, self._since_s)

    def restart(self) -> None:
        """Forget what has passed: warm-up is over. The state stays what it is."""
        self._since_s = self._began_s = self._clock.monotonic_s()
        self._seconds = dict.fromkeys(STATES, 0.0)

    def read(self) -> TimeShares:
        """Return the shares since the start or the last `restart`, the open span included."""
        self._enter(self._state)
        return TimeShares(wall_s=self._since_s - self._began_s, seconds=dict(self._seconds))

    def _enter(self, state: State) -> State:
        now_s = self._clock.monotonic_s()
        self._seconds[self._state] += now_s - self._since_s
        outer, self._state, self._since_s = self._state, state, now_s
        return outer
