"""What more episodes at once have brought: turns by how many ran, and the knee where more bring no more."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

# Turns from this one on are alike.
_LAST_TURN: Final = 7
# A turn longer than so many mean ones counts as that many, or a single straggler would be a slow level.
_LONGEST: Final = 6.0
# Levels are compared if one has so many times the episodes of the other.
_APART: Final = 1.3
_LEAST_TURNS: Final = 6
_MOST_TURNS: Final = 2048.0
# Episodes bring more if doubling them brings this exponent of it, 2 ** 0.35 = 1.27 times the turns.
_LEAST_GAIN: Final = 0.35
# Beyond the knee, a little more than what it takes keeps the others' pauses filled.
_MARGIN: Final = 1.15
# A level brings as much as another if it brings so much of it.
_AS_GOOD: Final = 0.97
_FORGET_S: Final = 900.0


class Turn(NamedTuple):
    """One model call and the environment's answer to it.

    Attributes:
        number: Which turn of its episode, from 0.
        began_s: When the generator was asked, on the monotonic clock.
        generator_s: Until the call was answered.
        environment_s: Until the environment had answered too.
    """

    number: int
    began_s: float
    generator_s: float
    environment_s: float

    @property
    def seconds(self) -> float:
        """Both together."""
        return self.generator_s + self.environment_s


class Knee(NamedTuple):
    """More episodes have brought no more turns.

    Attributes:
        level: Episodes that bring as many.
        slower: How many times longer a turn takes than with fewer episodes.
        of_environment: Whether it is the environment that takes longer, and not the generator.
    """

    level: float
    slower: float
    of_environment: bool


@dataclass(slots=True)
class _Sums:
    count: float = 0.0
    seconds: float = 0.0
    generator_s: float = 0.0

    def scale(self, factor: float) -> None:
        self.count *= factor
        self.seconds *= factor
        self.generator_s *= factor


@dataclass(slots=True)
class _Level:
    """What ran at about so many episodes."""

    live: float = 0.0
    seen_s: float = 0.0
    turns: defaultdict[int, _Sums] = field(default_factory=lambda: defaultdict(_Sums))

    @property
    def count(self) -> float:
        return sum(sums.count for sums in self.turns.values())

    @property
    def mean_s(self) -> float:
        return sum(sums.seconds for sums in self.turns.values()) / self.count if self.count else 0.0


class Levels:
    """How long turns took, by how many episodes ran.

    Turns are compared with turns of the same index, so that a mix that changes while first episodes go on is
    not taken for a change of speed. N episodes whose turns take t seconds bring N / t of them a second.
    """

    def __init__(self) -> None:
        self._levels: dict[int, _Level] = {}
        self._mean_s = 0.0
        self._count = 0.0

    @property
    def turn_s(self) -> float | None:
        """Mean time of the newest turns; None before the first."""
        return self._mean_s if self._count else None

    def add(self, live: float, turns: Iterable[Turn], now_s: float) -> None:
        """Note turns that began and ended while so many episodes ran."""
        turns = list(turns)
        if not turns or live < 1.0:
            return
        bucket = _bucket(live)
        level = self._levels.setdefault(bucket, _Level())
        before = level.count
        if before > _MOST_TURNS:
            for sums in level.turns.values():
                sums.scale(0.5)
            before *= 0.5
        level.live = (level.live * before + live * len(turns)) / (before + len(turns))
        level.seen_s = now_s
        for turn in turns:
            self._add(level, turn)
        self._levels = {key: one for key, one in self._levels.items() if now_s - one.seen_s <= _FORGET_S}

    def knee(self, live: float, *, sure: bool = True) -> Knee | None:
        """Return the knee below a number of episodes, if there is one.

        Args:
            live: Episodes that run now.
            sure: Whether there must be evidence that more episodes bring no more; else that they do.
        """
        above = self._levels.get(_bucket(live))
        if above is None or above.count < _LEAST_TURNS:
            return None
        found = [
            (level, compared)
            for level in self._levels.values()
            if level.live * _APART <= above.live and (compared := _compare(level, above)) is not None
        ]
        if not found:
            return None
        level, compared = max(found, key=lambda one: one[0].live)
        wider = math.log(above.live / level.live)
        gain = 1.0 - math.log(compared.slower) / wider
        if gain + (compared.error / wider if sure else 0.0) >= _LEAST_GAIN:
            return None
        # What each level brings, over what the present one does.
        bring = {one.live: one.live * with_one.slower / above.live for one, with_one in found}
        most = max(1.0, *bring.values())
        good = [live for live, brings in bring.items() if brings >= _AS_GOOD * most]
        enough = min(good) if good else level.live / bring[level.live] * _MARGIN
        return Knee(min(enough, above.live), compared.slower, compared.of_environment)

    def slowness(self, live: float) -> float:
        """Return how many times longer turns take at a number of episodes than at any smaller one.

        Whatever their numbers: turns are few in the beginning, and this is reason for care, not for less.
        """
        above = self._levels.get(_bucket(live))
        if above is None:
            return 1.0
        below = [level.mean_s for level in self._levels.values() if level.live < above.live]
        least_s = min(below, default=0.0)
        return above.mean_s / least_s if least_s else 1.0

    def _add(self, level: _Level, turn: Turn) -> None:
        longest_s = _LONGEST * self._mean_s if self._count >= _LEAST_TURNS else math.inf
        seconds = min(turn.seconds, longest_s)
        sums = level.turns[min(turn.number, _LAST_TURN)]
        sums.count += 1.0
        sums.seconds += seconds
        sums.generator_s += min(turn.generator_s, seconds)
        self._count = min(self._count + 1.0, 256.0)
        self._mean_s += (seconds - self._mean_s) / self._count


def _bucket(live: float) -> int:
    return round(2.0 * math.log2(live))


class _Compared(NamedTuple):
    """How many times longer turns take above, its standard error in logs, and whose fault that is."""

    slower: float
    error: float
    of_environment: bool


def _compare(below: _Level, above: _Level) -> _Compared | None:
    """Compare turns of two levels; None if they have too few in common."""
    spent_s = would_s = generator_s = would_generator_s = num_below = num_above = 0.0
    for index, sums in above.turns.items():
        base = below.turns.get(index)
        if base is None or base.count < 4.0 or not base.seconds:
            continue
        spent_s += sums.seconds
        would_s += sums.count * base.seconds / base.count
        generator_s += sums.generator_s
        would_generator_s += sums.count * base.generator_s / base.count
        num_below += base.count
        num_above += sums.count
    if num_below < _LEAST_TURNS or num_above < _LEAST_TURNS or not would_s or not spent_s:
        return None
    more_generator_s = generator_s - would_generator_s
    more_s = spent_s - would_s
    error = math.sqrt(1.0 / num_below + 1.0 / num_above)
    return _Compared(spent_s / would_s, error, 2.0 * more_generator_s < more_s)
