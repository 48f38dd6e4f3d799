"""What runs come to beside fixed numbers: one number for all seeds, and each seed's own best."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
from scipy.special import stdtrit

# A fixed number is compared with if so much of its calls is refused at most.
MOST_REFUSED: Final = 0.02
# Numbers that are refused so much more in the first seed, or train less than this part, are not run on.
_HOPELESS: Final = 3.0
_WORTH: Final = 0.8


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """One run.

    Args:
        case: Its case.
        seed: Its seed.
        fixed: Episodes at once; None for controllers.
        processes: Actor processes.
        steps: Batches trained.
        fresh_per_s: Trained episodes a second of the whole run.
        refused: Share of the calls of environments that were refused, 0 to 1.
        lost: Groups given up.
        busy: Share of the time that the learner computed.
        mean_live: Mean number of episodes in flight.
        staleness: Mean staleness, versions.
        decisions: The first decisions, in words.
    """

    case: str
    seed: int
    fixed: int | None
    processes: int
    steps: int
    fresh_per_s: float
    refused: float
    lost: int
    busy: float
    mean_live: float
    staleness: float
    decisions: tuple[str, ...] = ()


class Ratio(NamedTuple):
    """A ratio of means and its 95 % interval; the interval is infinite if there is one seed."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        """Say it as `0.98 (0.96 to 1.00)`."""
        if not math.isfinite(self.low):
            return f"{self.value:.2f}"
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"


class Beside(msgspec.Struct, frozen=True, kw_only=True):
    """Controllers beside fixed numbers.

    Args:
        ratio: Of the means over the seeds, to the one number whose mean is highest; interval paired by seed.
        ratios: Of each seed, to that seed's own best number, chosen afterwards.
        refused: The largest share of calls refused in a seed.
        lost: Groups given up in all seeds.
    """

    ratio: Ratio
    ratios: tuple[float, ...]
    refused: float
    lost: int


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What a case came to.

    Args:
        number: The fixed number whose mean over the seeds is highest.
        numbers: The best fixed number of each seed.
        controlled: What controllers came to, by processes.
    """

    number: int
    numbers: tuple[int, ...]
    controlled: dict[int, Beside]


def worth_running(first: Sequence[Ran]) -> list[int]:
    """Return the fixed numbers that may be the best, from the runs of one seed.

    Args:
        first: The runs of all numbers with the first seed.
    """
    hopeful = [one for one in first if one.refused <= _HOPELESS * MOST_REFUSED]
    fair = [one for one in first if one.refused <= MOST_REFUSED] or hopeful or first
    enough = _WORTH * max(one.fresh_per_s for one in fair)
    return [one.fixed for one in hopeful or first if one.fixed is not None and one.fresh_per_s >= enough]


def ratio_of_means(above: Sequence[float], below: Sequence[float]) -> Ratio:
    """Return the ratio of two means over the same seeds, r = mean(a) / mean(b), by Student's t.

    The standard error is that of the mean of a - r b, over mean(b): seeds are paired, and what both share
    cancels. That `below` is the best of several by the same seeds is not in it, and favours `below`.

    Args:
        above: A figure of each seed.
        below: The other figure of each seed, in the same order.
    """
    base = statistics.fmean(below)
    ratio = statistics.fmean(above) / base
    count = len(above)
    if count < 2:
        return Ratio(ratio, -math.inf, math.inf)
    rests = [a - ratio * b for a, b in zip(above, below, strict=True)]
    error = float(stdtrit(count - 1, 0.975)) * statistics.stdev(rests) / math.sqrt(count) / base
    return Ratio(ratio, ratio - error, ratio + error)


def judge(runs: Iterable[Ran], seeds: Sequence[int]) -> Verdict:
    """Return what a case came to.

    Args:
        runs: Runs of one case; those with other seeds are passed over.
        seeds: The seeds to be judged.

    Raises:
        ValueError: No fixed number was run with every seed and seldom refused.
    """
    fixed: defaultdict[int, dict[int, Ran]] = defaultdict(dict)
    controlled: defaultdict[int, dict[int, Ran]] = defaultdict(dict)
    for one in runs:
        if one.seed in seeds:
            (controlled[one.processes] if one.fixed is None else fixed[one.fixed])[one.seed] = one
    means = {
        number: statistics.fmean(one.fresh_per_s for one in by_seed.values())
        for number, by_seed in fixed.items()
        if len(by_seed) == len(seeds)
        and statistics.fmean(one.refused for one in by_seed.values()) <= MOST_REFUSED
    }
    if not means:
        raise ValueError(f"no fixed number was run with all of {len(seeds)} seeds and refused at most 2 %")
    number = max(means, key=lambda one: means[one])
    own = [_best_of(fixed, seed) for seed in seeds]
    return Verdict(
        number=number,
        numbers=tuple(one.fixed or 0 for one in own),
        controlled={
            processes: _beside([by_seed[seed] for seed in seeds], [fixed[number][s] for s in seeds], own)
            for processes, by_seed in sorted(controlled.items())
            if len(by_seed) == len(seeds)
        },
    )


def _best_of(fixed: Mapping[int, Mapping[int, Ran]], seed: int) -> Ran:
    """Return the run that trained most with a seed, of those seldom refused."""
    ran = [by_seed[seed] for by_seed in fixed.values() if seed in by_seed]
    return max(
        (one for one in ran if one.refused <= MOST_REFUSED), key=lambda one: one.fresh_per_s, default=ran[0]
    )


def _beside(controlled: Sequence[Ran], number: Sequence[Ran], own: Sequence[Ran]) -> Beside:
    rates = [one.fresh_per_s for one in controlled]
    return Beside(
        ratio=ratio_of_means(rates, [one.fresh_per_s for one in number]),
        ratios=tuple(rate / one.fresh_per_s for rate, one in zip(rates, own, strict=True)),
        refused=max(one.refused for one in controlled),
        lost=sum(one.lost for one in controlled),
    )


def table(verdicts: Mapping[str, Verdict]) -> str:
    """Return the verdicts as a table, a row per case."""
    processes = sorted({number for one in verdicts.values() for number in one.controlled})
    names = [f"{number} process{'es' if number > 1 else ''}" for number in processes]
    head = ["case", "fixed number"]
    for name in names:
        head += [f"{name}: beside it", "beside each seed's own best: worst, median", "calls refused at most"]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for case, verdict in verdicts.items():
        cells = [case, str(verdict.number)]
        for number in processes:
            cells += _cells(verdict.controlled[number])
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _cells(beside: Beside) -> list[str]:
    refused = f"{100.0 * beside.refused:.1f} %" if beside.refused else "0"
    lost = f", {beside.lost} groups lost" if beside.lost else ""
    seeds = f"{min(beside.ratios):.2f}, {statistics.median(beside.ratios):.2f}"
    return [str(beside.ratio), seeds, refused + lost]
