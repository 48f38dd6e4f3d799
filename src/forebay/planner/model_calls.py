"""How long simulated model calls take: in their slot, on their way, and until a block of decoding ends."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from forebay.planner.distribution import Distribution
from forebay.planner.events import Draws
from forebay.planner.profile import GeneratorLevel, GeneratorProfile

_MAX_TABLE: Final = 4096


def interpolate(load: float, points: Sequence[tuple[float, float]]) -> float:
    """Return the value at a load: linear between measured points, and that of the outermost beyond them.

    Args:
        load: Where.
        points: (load, value), ascending by load, at least one.

    Example:
        >>> interpolate(3.0, [(1.0, 0.2), (5.0, 0.6)]), interpolate(9.0, [(1.0, 0.2), (5.0, 0.6)])
        (0.4, 0.6)
    """
    for (low, at_low), (high, at_high) in itertools.pairwise(points):
        if low <= load <= high:
            return at_low + (at_high - at_low) * (load - low) / (high - low)
    return points[0][1] if load <= points[0][0] else points[-1][1]


class _AtLoad(NamedTuple):
    """Times at one load: of a distribution each, times a factor."""

    call: Draws
    call_factor: float
    wait: Draws
    wait_factor: float
    slot_factor: float


class CallTimes:
    """How long a model call takes, by how many run on the same generator.

    The load is that at the start of the call. Between two measured loads a mean is interpolated, and the
    shape is that of the nearer one.

    A call that finds a free slot waits for the block that is being decoded, then is served. One that has
    waited for a slot begins with the block after the one that freed it: it takes the time in the slot alone.

    Args:
        generator: As measured.
        slots: Most requests at once.
        factor: How many times longer all take.
        rng: Source of randomness.
    """

    def __init__(self, generator: GeneratorProfile, slots: int, factor: float, rng: random.Random) -> None:
        self._random = rng.random
        self._table = list(_table(generator, min(slots, _MAX_TABLE), factor, rng))

    def draw(self, load: int) -> float:
        """Return the time of a call that makes so many on its generator, but for its wait."""
        at = self._at(load)
        return at.call.draw() * at.call_factor

    def draw_in_slot(self, load: int) -> float:
        """Return how long such a call holds its slot."""
        at = self._at(load)
        return at.call.draw() * at.slot_factor

    def draw_wait(self, load: int) -> float:
        """Return how long such a call waits although there was a free slot: see `mean_wait`."""
        at = self._at(load)
        wait_s = at.wait.draw() * at.wait_factor
        # It comes at any time of a block, each as likely as any other.
        return 2.0 * wait_s * self._random() if wait_s else 0.0

    def mean(self, load: int) -> float:
        """Return the mean time of a call at a load, but for its wait."""
        at = self._at(load)
        return at.call.mean * at.call_factor

    def mean_in_slot(self, load: int) -> float:
        """Return how long calls hold their slot at a load, on the average."""
        at = self._at(load)
        return at.call.mean * at.slot_factor

    def _at(self, load: int) -> _AtLoad:
        return self._table[min(load, len(self._table)) - 1]


def _table(generator: GeneratorProfile, slots: int, factor: float, rng: random.Random) -> Iterator[_AtLoad]:
    levels = generator.levels
    calls = {id(level): Draws(level.call_s, rng, factor) for level in levels}
    # Beyond its slots it is the queue that is waited for, which the simulation has itself.
    unhindered = [one for one in levels if one.requests <= generator.slots and one.wait_s is not None]
    nothing = Draws(Distribution(num_samples=1, mean=0.0, values=(0.0,)), rng)
    waits = {id(level): Draws(level.wait_s, rng, factor) for level in unhindered if level.wait_s is not None}
    for load in range(1, slots + 1):
        level = _nearest(levels, load)
        mean = level.call_s.mean
        wait = waits[id(_nearest(unhindered, load))] if unhindered else nothing
        yield _AtLoad(
            calls[id(level)],
            interpolate(load, [(one.requests, one.call_s.mean) for one in levels]) / mean if mean else 1.0,
            wait,
            mean_wait(unhindered, load) * factor / wait.mean if wait.mean else 0.0,
            time_in_slot(generator, load) / mean if mean else 1.0,
        )


def mean_wait(levels: Sequence[GeneratorLevel], load: int) -> float:
    """Return how long a call waits, on the average, that comes at any time while slots are free, seconds.

    Calls that were measured one after another miss a block by the time d of their way, and wait for the rest
    of it, w: a block takes d + w, of which a call that comes at any time waits for half. Where the way takes
    longer than the block, they came at any time themselves.

    Args:
        levels: As measured, by ascending load; those with free slots.
        load: Calls in slots.
    """
    if not levels:
        return 0.0
    waits = [(float(one.requests), 0.0 if one.wait_s is None else one.wait_s.mean) for one in levels]
    ways = [(float(one.requests), max(0.0, one.call_s.mean - _told_in_slot(one))) for one in levels]
    wait_s = interpolate(load, waits)
    return min(wait_s, (wait_s + interpolate(load, ways)) / 2.0)


def time_in_slot(generator: GeneratorProfile, load: int) -> float:
    """Return how long a call holds its slot at a load, seconds on the average.

    It is what the generator says, and a whole call if it does not; but if more requests than slots were
    tried, not so little that slots which are never free would give more calls per second than there ever
    were (Little's law): then something else limits it.

    Args:
        generator: As measured.
        load: Calls in slots.
    """
    levels = generator.levels
    in_slot_s = interpolate(load, [(float(one.requests), _told_in_slot(one)) for one in levels])
    if levels[-1].requests <= generator.slots:
        return in_slot_s
    most_per_s = max(
        (one.requests / round_s for one in levels if (round_s := _round_s(one))), default=math.inf
    )
    return max(in_slot_s, min(load, generator.slots) / most_per_s)


def _told_in_slot(level: GeneratorLevel) -> float:
    if level.prefill_s is None or level.decode_s is None:
        return level.call_s.mean
    return level.prefill_s.mean + level.decode_s.mean


def _round_s(level: GeneratorLevel) -> float:
    """Return the mean time from a request to the next one that follows its answer."""
    return level.call_s.mean + (0.0 if level.wait_s is None else level.wait_s.mean)


def _nearest(levels: Sequence[GeneratorLevel], load: int) -> GeneratorLevel:
    return min(levels, key=lambda level: abs(level.requests - load))
