"""What a controller sees, remembers and decides."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from forebay.actors.levels import Turn

# A bound is tried again after so many turns, within these seconds; after twice as long each time it holds.
# What only becomes slower is tried later: that costs more, and tells less.
_FIRST_PROBE_TURNS: Final = 10.0
_FIRST_PROBE_S: Final = 60.0
_LATER: Final = 4.0
_LAST_PROBE_S: Final = 3600.0
# A bound that is so much higher than before is a new one.
_NEW: Final = 1.3


class Demand(NamedTuple):
    """What the store shows of the learner at one look.

    Attributes:
        starved: Whether nothing is in the learner's hands.
        batches: Settled groups of the environment, over what a batch owes it.
        steps: Batches that the learner has made use of so far.
    """

    starved: bool
    batches: float
    steps: int


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """What happened since the last observation.

    Args:
        now_s: Monotonic clock.
        live: Episodes that hold a place.
        work_waits: Whether the store had as much work as was asked for.
        turns: Turns that ended.
        failures: Resets and steps that failed.
        episodes_s: Times of the episodes that ended.
        demand: What the store shows; None if nobody looked.
    """

    now_s: float
    live: int
    work_waits: bool
    turns: tuple[Turn, ...] = ()
    failures: int = 0
    episodes_s: tuple[float, ...] = ()
    demand: Demand | None = None


class Decision(NamedTuple):
    """A change of the number of episodes, or why there is none.

    Attributes:
        kind: What was decided, as a name for counters.
        before: Episodes at once, so far.
        after: Episodes at once, from now on.
        reason: Why, in words.
    """

    kind: str
    before: int
    after: int
    reason: str

    def __str__(self) -> str:
        """Say it as one line, such as `+16 (96 to 112): learner starved 12 %`."""
        change = self.after - self.before
        if change == 0:
            return f"{self.after} held: {self.reason}"
        size = f"{change:+d}" if change > 0 else f"{change / self.before:+.0%}".replace("%", " %")
        return f"{size} ({self.before} to {self.after}): {self.reason}"


@dataclass(slots=True)
class Bound:
    """A number of episodes that is not passed, and when it will be tried again; the wait doubles.

    Args:
        level: The number.
        wait_s: How long it holds the next time that it is set; 0 for a first time.
        probe_s: When it may be tried again, on the monotonic clock.
        why: Why it is not passed.
        refuses: Whether beyond it calls fail.
        held_at: The number when it was last set.
    """

    level: float
    wait_s: float = 0.0
    probe_s: float = 0.0
    why: str = ""
    refuses: bool = False
    held_at: float = 0.0

    def set(self, level: float, now_s: float, turn_s: float, why: str = "", *, refuses: bool = False) -> None:
        """Set it, now, where a turn takes so long."""
        if level > _NEW * self.held_at:
            self.wait_s = 0.0
        self.level, self.why, self.refuses = level, why, refuses
        self.held_at = level
        later = 1.0 if refuses else _LATER
        self.wait_s = self.wait_s or later * min(max(_FIRST_PROBE_TURNS * turn_s, 1.0), _FIRST_PROBE_S)
        self.probe_s = now_s + self.wait_s
        self.wait_s = min(2.0 * self.wait_s, _LAST_PROBE_S)

    def lift(self) -> None:
        """Forget the number, but not how often it has held."""
        self.level = math.inf


@dataclass(slots=True)
class Epoch:
    """What was seen since the number of episodes changed, or was last thought about.

    Args:
        began_s: When that was, on the monotonic clock.
        settled_s: From when on what begins tells what the number brings.
        turns: Turns that began since then and have ended.
        num_turns: All turns that have ended.
        failures: Calls that have failed.
        looks: Observations since `settled_s`.
        live: Sum of the episodes over the observations.
        waits: Those of them at which the store had work enough.
        demands: What the store showed.
    """

    began_s: float
    settled_s: float
    turns: list[Turn] = field(default_factory=list)
    num_turns: int = 0
    failures: int = 0
    looks: int = 0
    live: float = 0.0
    waits: int = 0
    demands: list[Demand] = field(default_factory=list)

    def note(self, seen: Observation) -> None:
        """Add an observation."""
        if seen.now_s >= self.settled_s:
            self.looks += 1
            self.live += seen.live
            self.waits += seen.work_waits
        self.turns += [turn for turn in seen.turns if turn.began_s >= self.settled_s]
        self.num_turns += len(seen.turns)
        self.failures += seen.failures
        if seen.demand is not None:
            self.demands.append(seen.demand)

    @property
    def calls(self) -> int:
        """Calls that have ended, in whatever way."""
        return self.num_turns + self.failures

    @property
    def mean_live(self) -> float:
        """Mean number of episodes."""
        return self.live / self.looks if self.looks else 0.0

    @property
    def failing(self) -> float:
        """Share of the calls that failed, 0 to 1."""
        return self.failures / self.calls if self.calls else 0.0

    @property
    def starved(self) -> float:
        """Share of the looks at which the learner had nothing in its hands, 0 to 1."""
        return _mean([float(one.starved) for one in self.demands])

    @property
    def batches(self) -> float:
        """Mean number of batches that were ready."""
        return _mean([one.batches for one in self.demands])

    @property
    def steps(self) -> int:
        """Batches that the learner made use of."""
        return self.demands[-1].steps - self.demands[0].steps if self.demands else 0


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
