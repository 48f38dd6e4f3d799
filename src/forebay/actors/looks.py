"""Where the episodes of an actor are, counted in random moments, so that the looks see the mean over time."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from forebay.actors.slot_run import LiveSlot
from forebay.actors.stats import PLACES

_PERIOD_S: Final = 0.5


async def look_now_and_then(
    live: Callable[[], Iterable[LiveSlot]],
    counters: Counter[str],
    rng: random.Random,
    period_s: float = _PERIOD_S,
) -> None:
    """Count the episodes in each place until canceled, at exponentially distributed intervals.

    Waits for: the next moment. Unblocked by: time. Produces: the counters `looks`, and `seen.PLACE` and
    `seen_squared.PLACE`: what was there, and its square, added up over the looks.

    Args:
        live: Returns the slots whose episodes run.
        counters: Where looks are counted.
        rng: Draws the intervals.
        period_s: Mean interval.

    References:
        Wolff (1982), Poisson arrivals see time averages, https://doi.org/10.1287/opre.30.2.223.
    """
    while True:
        await asyncio.sleep(rng.expovariate(1.0 / period_s))
        where = Counter(slot.log.doing for slot in live())
        counters["looks"] += 1
        for place in PLACES:
            counters[f"seen.{place}"] += where[place]
            counters[f"seen_squared.{place}"] += where[place] ** 2
