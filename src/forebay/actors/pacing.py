"""A number of episodes at once on its way to another, and what the learner could spare of it."""

from __future__ import annotations

import math
from typing import Final

from forebay.actors.observing import Demand, Epoch

# Of a turn, how long a larger number takes to be reached.
_SETTLE: Final = 0.3
# Batches that are ready: with more the learner has more than it needs.
_HIGH_BATCHES: Final = 1.0
# It is believed after so many episodes, one after the other, and batches.
_EPISODES: Final = 8.0
_STEPS: Final = 3
_WINDOW_S: Final = 300.0
# What runs has become few enough if it is at most this times what is allowed.
_DRAINED: Final = 1.05


class Pace:
    """How many episodes may run, while that changes.

    A larger number is reached little by little, so that an environment that refuses is noticed before all of
    it is there. A smaller one holds at once, and tells what it brings once what runs already has ended.

    Args:
        first: The number in the beginning.

    Attributes:
        limit: The number that is aimed at.
        epoch: What was seen since it changed, or was last thought about.
        turn_s: Mean time of a turn; 0 before it is known.
        lag_s: Until a number is known wherever episodes run.
    """

    def __init__(self, first: int) -> None:
        self.limit = self._before = float(first)
        self.epoch: Epoch | None = None
        self.turn_s = self.lag_s = self._falls_until_s = self._full_s = 0.0

    def allowed(self, now_s: float) -> int:
        """Return how many may run now."""
        epoch = self.epoch
        if epoch is None or self.limit <= self._before or now_s >= self._full_s:
            return max(1, int(self.limit))
        part = max(0.0, now_s - epoch.began_s) / (self._full_s - epoch.began_s)
        return max(1, int(self._before + (self.limit - self._before) * part))

    def is_falling(self, now_s: float) -> bool:
        """Return whether what runs may still be more than is allowed."""
        return self.epoch is not None and now_s < self._falls_until_s

    def drained(self, live: int, now_s: float) -> None:
        """Let a smaller number tell what it brings only once no more than that run."""
        epoch = self.epoch
        if (
            epoch is not None
            and self.limit < self._before
            and not epoch.turns
            and live > _DRAINED * self.limit
        ):
            epoch.settled_s = max(epoch.settled_s, math.nextafter(now_s, math.inf))
            epoch.looks, epoch.live, epoch.waits = 0, 0.0, 0

    def now(self, now_s: float) -> Epoch:
        """Return the present epoch; the first begins here."""
        if self.epoch is None:
            self.epoch = Epoch(now_s, now_s)
        return self.epoch

    def begin(self, now_s: float) -> None:
        """Begin an epoch at the same number."""
        self._before = self.limit
        self.epoch = Epoch(now_s, now_s)

    def change(self, limit: float, now_s: float) -> tuple[int, int]:
        """Aim at another number; return the one so far, and that."""
        before = self.allowed(now_s)
        self._before, self.limit = float(before), limit
        self._full_s = now_s + (self.turn_s * _SETTLE if limit > before else 0.0)
        settle_s = self.turn_s * (_SETTLE if limit > before else 1.0) + self.lag_s
        self.epoch = Epoch(now_s, now_s + settle_s)
        self._falls_until_s = 0.0 if limit > before else now_s + settle_s
        return before, int(limit)


class Surplus:
    """Whether the learner has had more than it needs for long, and the most episodes that ran of late."""

    def __init__(self) -> None:
        self._since: tuple[float, int] | None = None
        self._newest = 0
        self._windows = [0, 0]
        self._window_s = 0.0

    def note(self, demand: Demand, now_s: float) -> None:
        """Note what the store shows."""
        self._newest = demand.steps
        if demand.batches < _HIGH_BATCHES or demand.starved:
            self._since = None
        elif self._since is None:
            self._since = now_s, demand.steps

    def note_live(self, live: int, now_s: float) -> None:
        """Note how many episodes run."""
        if now_s >= self._window_s:
            self._windows, self._window_s = [self._windows[1], 0], now_s + _WINDOW_S
        self._windows[1] = max(self._windows[1], live)

    @property
    def most_live(self) -> int:
        """The most episodes that ran in the last five to ten minutes."""
        return max(self._windows)

    def has_lasted(self, episode_s: float, now_s: float) -> bool:
        """Return whether there has been a batch to spare for long, and the learner took others meanwhile."""
        if self._since is None:
            return False
        since_s, steps = self._since
        return now_s - since_s >= _EPISODES * episode_s and self._newest - steps >= _STEPS

    def spend(self) -> None:
        """Begin anew, since the number of episodes changes."""
        self._since = None
