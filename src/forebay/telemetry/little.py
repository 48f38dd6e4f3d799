"""Little's law as a check: what is inside a queue, against how many pass and how long they stay.

In a queue that neither grows nor shrinks, the mean number inside is the rate of passage times the mean time
inside, whatever the distributions. The number inside is sampled at random moments by whoever holds the
queue; the times come from the stamps of what has passed. Neither knows of the other, so that their ratio
shows what one of them misses.

References:
    Little (1961), A proof for the queuing formula L = lambda W, https://doi.org/10.1287/opre.9.3.383.
    Wolff (1982), Poisson arrivals see time averages, https://doi.org/10.1287/opre.30.2.223.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, Literal, get_args

import msgspec

Queue = Literal["store", "episodes", "buffer", "packing", "handover", "training"]
QUEUES: Final[tuple[Queue, ...]] = get_args(Queue)
# Wrong by so much, a figure still says what it is for.
_TOLERATED: Final = 0.1
_MIN_SAMPLES: Final = 20
# A queue that holds so little on average says nothing about its times.
_EMPTY: Final = 0.05


class Flow(msgspec.Struct, array_like=True, gc=False):
    """What passed through a queue, and what was seen inside it, over a stretch of time.

    Args:
        passed: How many left it.
        time_s: What they spent inside, added up.
        samples: Looks at the queue.
        seen: What was inside, added up over the looks.
        seen_squared: The same, each number squared.
    """

    passed: int = 0
    time_s: float = 0.0
    samples: int = 0
    seen: float = 0.0
    seen_squared: float = 0.0

    def merge(self, other: Flow) -> None:
        """Add what passed through the same queue at another time."""
        self.passed += other.passed
        self.time_s += other.time_s
        self.samples += other.samples
        self.seen += other.seen
        self.seen_squared += other.seen_squared


class Balance(msgspec.Struct, frozen=True, kw_only=True):
    """One queue under Little's law.

    Args:
        queue: Its name.
        inside: Mean number inside, sampled.
        rate_per_s: How many left it per second.
        time_s: Mean time inside.
        ratio: `inside / (rate_per_s * time_s)`; None where nothing is expected inside.
        tolerance: How far from 1 the ratio may be by chance: what was inside at the ends of the window or not
            looked at, the error of the samples, and a tenth.
        agrees: Whether it is no further than that; None with too few samples to tell.
        meaning: What it means, as a sentence without a full stop.
    """

    queue: str
    inside: float
    rate_per_s: float
    time_s: float
    ratio: float | None
    tolerance: float
    agrees: bool | None
    meaning: str


def balance(queue: str, flow: Flow, wall_s: float, missed_s: float = 0.0) -> Balance | None:
    """Return what Little's law says of a queue; None if it was not looked at, or nothing passed.

    Args:
        queue: Its name.
        flow: What passed and what was seen.
        wall_s: Length of the window.
        missed_s: How much of it nobody may have looked at.

    Example:
        >>> found = balance("buffer", Flow(100, 400.0, 50, 195.0, 800.0), 100.0)
        >>> round(found.inside, 2), found.rate_per_s * found.time_s, round(found.ratio, 3), found.agrees
        (3.9, 4.0, 0.975, True)
    """
    if not flow.samples or not flow.passed or not wall_s > 0:
        return None
    inside = flow.seen / flow.samples
    expected = flow.time_s / wall_s
    time_s = flow.time_s / flow.passed
    tolerance = _TOLERATED + (time_s + missed_s) / wall_s + _sampling_error(flow, inside, expected)
    ratio = inside / expected if expected > 0 else None
    agrees = _agrees(inside, expected, tolerance) if flow.samples >= _MIN_SAMPLES else None
    return Balance(
        queue=queue,
        inside=inside,
        rate_per_s=flow.passed / wall_s,
        time_s=time_s,
        ratio=ratio,
        tolerance=tolerance,
        agrees=agrees,
        meaning=_meaning(agrees, inside, expected),
    )


def balances(flows: Mapping[str, Flow], wall_s: float) -> tuple[Balance, ...]:
    """Return what Little's law says of every queue that was looked at."""
    found = (balance(queue, flow, wall_s) for queue, flow in flows.items())
    return tuple(one for one in found if one is not None)


def _sampling_error(flow: Flow, inside: float, expected: float) -> float:
    """Return two standard errors of the sampled mean, relative to what is expected."""
    # At least that of a Poisson number: what is there rarely may never have been seen.
    variance = max(expected, flow.seen_squared / flow.samples - inside * inside)
    return 2.0 * math.sqrt(variance / flow.samples) / max(expected, inside, 1e-9)


def _agrees(inside: float, expected: float, tolerance: float) -> bool:
    larger = max(inside, expected)
    return larger < _EMPTY or abs(inside - expected) <= tolerance * larger


def _meaning(agrees: bool | None, inside: float, expected: float) -> str:
    if agrees is None:
        return "too few samples to tell"
    if max(inside, expected) < _EMPTY:
        return "nearly always empty"
    if agrees:
        return "agrees"
    if inside > expected:
        return (
            "more is inside than passes on to be trained: episodes that fail, are discarded, or still run at "
            "the end of the window"
        )
    return "less is inside than the times say: clocks disagree, or something is counted as inside too late"
