"""What more episodes at once have brought: turns by how many ran, and the knee where more bring no more."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

# Turns from this one on are alike.
_LAST_TURN: Final = 7
# A turn longer than so many mean ones counts as that many, or a single straggler would be a slow level.
_LONGEST: Final = 6.0
# Levels are compared if one has so many times the episodes of the other.
_APART: Final = 1.3
_LEAST_TURNS: Final = 6
# So many turns that vary as if exponentially distributed are presumed before any have been seen.
_PRIOR_TURNS: Final = 4.0
_MOST_TURNS: Final = 2048.0
# Episodes bring more if doubling them brings this exponent of it, 2 ** 0.35 = 1.27 times the turns.
_LEAST_GAIN: Final = 0.35
# Beyond the knee, a little more than what it takes keeps the others' pauses filled.
_MARGIN: Final = 1.15
# A level brings as much as another if it brings so much of it.
_AS_GOOD: Final = 0.97
_FORGET_S: Final = 900.0
# Turns that end late are added to the level that they began at, of so many of the last ones.
_LAST_WINDOWS: Final = 4


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
    squares: float = 0.0
    generator_s: float = 0.0

    def scale(self, factor: float) -> None:
        self.count *= factor
        self.seconds *= factor
        self.squares *= factor
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
    def scatter(self) -> float:
        """Variance of turns of the same number over the square of their mean; 1 before there are any."""
        expected = sum(one.seconds**2 / one.count for one in self.turns.values() if one.count)
        spread = sum(one.squares for one in self.turns.values()) - expected
        relative = self.count * max(0.0, spread) / expected if expected else 0.0
        return (relative + _PRIOR_TURNS) / (self.count + _PRIOR_TURNS)

    def add(self, live: float, turns: Collection[Turn], now_s: float) -> None:
        before = self.count
        if before > _MOST_TURNS:
            for sums in self.turns.values():
                sums.scale(0.5)
            before *= 0.5
        self.live = (self.live * before + live * len(turns)) / (before + len(turns))
        self.seen_s = now_s
        for turn in turns:
            sums = self.turns[min(turn.number, _LAST_TURN)]
            sums.count += 1.0
            sums.seconds += turn.seconds
            sums.squares += turn.seconds**2
            sums.generator_s += turn.generator_s


class _Window(NamedTuple):
    """When about so many episodes ran, and nothing else was tried."""

    since_s: float
    until_s: float
    bucket: int


class Levels:
    """How long turns took, by how many episodes ran.

    Turns are compared with turns of the same index, so that a mix that changes while first episodes go on is
    not taken for a change of speed. N episodes whose turns take t seconds bring N / t of them a second.

    Of the turns that begin at a number, the short ones end first. So a look in haste is compared with what
    was known of another number after as hasty a look; otherwise with all that began there.
    """

    def __init__(self) -> None:
        self._whole: dict[int, _Level] = {}
        self._hasty: dict[int, _Level] = {}
        self._windows: deque[_Window] = deque(maxlen=_LAST_WINDOWS)
        self._mean_s = 0.0
        self._count = 0.0

    @property
    def turn_s(self) -> float | None:
        """Mean time of the newest turns; None before the first."""
        return self._mean_s if self._count else None

    def add(
        self, live: float, turns: Iterable[Turn], since_s: float, now_s: float, *, hasty: bool = False
    ) -> None:
        """Note turns that began and ended while so many episodes ran.

        Args:
            live: Episodes.
            turns: Turns that began since then and have ended.
            since_s: From when on so many ran.
            now_s: Monotonic clock.
            hasty: Whether many turns that began then have not ended.
        """
        turns = list(turns)
        if not turns or live < 1.0:
            return
        bucket = _bucket(live)
        self._windows.append(_Window(since_s, now_s, bucket))
        turns = [self._cut(turn) for turn in turns]
        for levels in (self._whole, self._hasty) if hasty else (self._whole,):
            levels.setdefault(bucket, _Level()).add(live, turns, now_s)
            for key in [key for key, one in levels.items() if now_s - one.seen_s > _FORGET_S]:
                del levels[key]

    def late(self, turns: Iterable[Turn]) -> None:
        """Note turns that may have begun while another number ran."""
        for turn in turns:
            window = next((one for one in self._windows if one.since_s <= turn.began_s < one.until_s), None)
            level = self._whole.get(window.bucket) if window is not None else None
            if level is not None:
                level.add(level.live, (self._cut(turn),), level.seen_s)

    def knee(self, live: float, *, sure: bool = True, hasty: bool = False) -> Knee | None:
        """Return the knee below a number of episodes, if there is one.

        Args:
            live: Episodes that run now.
            sure: Whether there must be evidence that more episodes bring no more; else that they do.
            hasty: Whether many turns that began at that number have not ended.
        """
        above, found = self._compared(live, hasty)
        if above is None or not found:
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

    def slowness(self, live: float, *, hasty: bool = False) -> float:
        """Return how many times longer turns take, at the least, at a number than at a smaller one."""
        _, found = self._compared(live, hasty)
        return max((one.slower / math.exp(one.error) for _, one in found), default=1.0)

    def _compared(self, live: float, hasty: bool) -> tuple[_Level | None, list[tuple[_Level, _Compared]]]:
        """Return what is known of a number, and of smaller ones beside it."""
        levels = self._hasty if hasty else self._whole
        above = levels.get(_bucket(live))
        if above is None or above.count < _LEAST_TURNS:
            return None, []
        return above, [
            (level, compared)
            for level in levels.values()
            if level.live * _APART <= above.live and (compared := _compare(level, above)) is not None
        ]

    def _cut(self, turn: Turn) -> Turn:
        """Shorten a turn that is far longer than the others, and note how long they are."""
        longest_s = _LONGEST * self._mean_s if self._count >= _LEAST_TURNS else math.inf
        if turn.seconds > longest_s:
            part = longest_s / turn.seconds
            turn = turn._replace(generator_s=part * turn.generator_s, environment_s=part * turn.environment_s)
        self._count = min(self._count + 1.0, 256.0)
        self._mean_s += (turn.seconds - self._mean_s) / self._count
        return turn


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
    error = math.sqrt(below.scatter / num_below + above.scatter / num_above)
    return _Compared(spent_s / would_s, error, 2.0 * more_generator_s < more_s)
