"""Tables, charts and one JSON object from whatever results there are."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from benchmarks.staleness_study.cells import (
    FRESH_SEEDS,
    MARGIN,
    SYNCHRONOUS,
    TRIAL_SEEDS,
    Cell,
    Regime,
)
from benchmarks.staleness_study.drawing import Chart, Point, Series, draw
from benchmarks.staleness_study.inference import Difference, Mean, compare, mean_of
from benchmarks.staleness_study.results import Result

ON_THE_CLOCK: Final[tuple[Regime, ...]] = ("wait", "drop", "mask")
# Of the seeds of a row: all that there are, or, of longer runs, those that one kind of evidence has.
Part = Literal["all", "fresh", "chosen by", "trial"]
_LONGER: Final[dict[Part, str]] = {
    "fresh": "Longer runs on fresh seeds, which chose nothing, each compared with a synchronous one of the"
    " usual length at the problem's own rate:",
    "chosen by": "Longer runs on the seeds that the defaults were chosen by, compared likewise:",
    "trial": "Trials, on seeds that judge nothing, compared likewise:",
}
_MARKS: Final = ("<!-- results: begin -->", "<!-- results: end -->")


class Row(NamedTuple):
    """One cell over its seeds.

    Attributes:
        cell: The cell, of seed 0.
        reward: Held-out reward.
        span: Reward of the worst and of the best seed.
        difference: To the synchronous run of the same seed.
        means: Figures of a step, means over seeds.
        clock_s: Mean virtual seconds of the whole run; None without a virtual clock.
        speedup: Synchronous virtual time over this one's, over paired seeds; None without a virtual clock.
        discarded: Share of the finished episodes that were rejected or had no trained token, for whatever
            reason; a deadline that left no reward is one.
        unscored: Share of the trained batches' episodes that a deadline left without a reward.
        masked: Share of the sampled tokens of trained batches that were left out as too old.
        part: Which seeds it is of.
    """

    cell: Cell
    reward: Mean
    span: tuple[float, float]
    difference: Difference
    means: dict[str, float]
    clock_s: float | None
    speedup: Mean | None
    discarded: float
    unscored: float
    masked: float
    part: Part


def rows_of(results: Iterable[Result]) -> list[Row]:
    """Return a row for every cell that has a result, in the order of first results.

    Of long runs, fresh seeds, seeds that something was chosen by, and seeds of trials have rows of their own;
    other runs are what those are compared with, seed by seed.
    """
    by_cell: defaultdict[Cell, dict[int, Result]] = defaultdict(dict)
    for result in results:
        by_cell[result.cell._replace(seed=0)][result.cell.seed] = result
    rows = []
    for cell, found in by_cell.items():
        parts: defaultdict[Part, dict[int, Result]] = defaultdict(dict)
        for seed, result in found.items():
            if cell.is_longer or seed not in TRIAL_SEEDS:
                parts[_part_of(cell, seed)][seed] = result
        base = by_cell.get(baseline_of(cell), {})
        rows += [_row(cell, shown, base, part) for part, shown in parts.items()]
    return rows


def _part_of(cell: Cell, seed: int) -> Part:
    if not cell.is_longer:
        return "all"
    if seed in TRIAL_SEEDS:
        return "trial"
    return "fresh" if seed in FRESH_SEEDS else "chosen by"


def baseline_of(cell: Cell) -> Cell:
    """Return the synchronous cell that one is compared with.

    Without a lag every token-level objective has the same gradient, so that one of them stands for all. A
    long run is compared with a shorter one at the rate that is best without a lag.
    """
    regime: Regime = "wait" if cell.regime in ON_THE_CLOCK else "controlled"
    base = cell._replace(objective=SYNCHRONOUS, regime=regime, lag=0, seed=0)
    return base._replace(rate=1.0, scale="full") if cell.is_longer else base


def _row(cell: Cell, found: Mapping[int, Result], base: Mapping[int, Result], part: Part) -> Row:
    rewards = {seed: result.reward for seed, result in found.items()}
    baseline = {seed: result.reward for seed, result in base.items()}
    names = next(iter(found.values())).means
    means = {name: _mean([result.means[name] for result in found.values()]) for name in names}
    ends = {seed: result.ends_s[-1] for seed, result in found.items() if result.ends_s}
    paired = [seed for seed in ends if seed in base and base[seed].ends_s]
    speedup = mean_of([base[seed].ends_s[-1] / ends[seed] for seed in paired]) if paired else None
    return Row(
        cell=cell,
        reward=mean_of(list(rewards.values())),
        span=(min(rewards.values()), max(rewards.values())),
        difference=compare(rewards, baseline, MARGIN),
        means=means,
        clock_s=_mean(list(ends.values())) if ends else None,
        speedup=speedup,
        discarded=_discarded(found.values()),
        unscored=_share(found.values(), "unscored", "episodes"),
        masked=_share(found.values(), "masked", "masked", "tokens"),
        part=part,
    )


def _share(results: Iterable[Result], part: str, *whole: str) -> float:
    """Return a share of totals, over all seeds."""
    totals = [result.totals for result in results]
    return sum(total[part] for total in totals) / max(
        sum(total[name] for total in totals for name in whole), 1
    )


def _discarded(results: Iterable[Result]) -> float:
    lost = finished = 0
    for result in results:
        counters = result.counters
        lost += sum(n for name, n in counters.items() if name.startswith("trajectories.rejected."))
        lost += result.totals["discarded"]
        finished += counters.get("trajectories.accepted", result.totals["episodes"])
    return lost / max(finished, 1)


def as_json(rows: Sequence[Row], missing: int) -> dict[str, Any]:
    """Return the whole study as one JSON object."""
    return {
        "margin": MARGIN,
        "missing_runs": missing,
        "cells": [
            {
                **row.cell._replace(seed=0)._asdict(),
                "seeds": row.reward.count,
                "part": row.part,
                "reward": round(row.reward.mean, 4),
                "difference": _finite(row.difference.mean),
                "difference_low": _finite(row.difference.low),
                "verdict": row.difference.verdict,
                "clock_s": row.clock_s,
                "speedup": None if row.speedup is None else row.speedup.mean,
                "speedup_low": None if row.speedup is None else _finite(row.speedup.low),
                "discarded": round(row.discarded, 4),
                "unscored": round(row.unscored, 4),
                "masked": round(row.masked, 4),
                "means": {name: float(f"{value:.4g}") for name, value in row.means.items()},
            }
            for row in rows
        ],
    }


def table(rows: Sequence[Row], problem: str, regimes: tuple[Regime, ...], title: str = "") -> str:
    """Return the Markdown table of one problem under some regimes; nothing if there are no results."""
    timed = regimes == ON_THE_CLOCK
    mine = [row for row in rows if row.cell.problem == problem and row.cell.regime in regimes]
    if not mine:
        return ""
    mine.sort(key=lambda row: (row.cell.rate, row.cell.regime, row.cell.objective, row.cell.lag))
    head = ["objective", "regime", "lag", "seeds", "held-out reward", "difference (at least)", "verdict"]
    head += ["ESS", "clipped or rejected", "KL, nats", "age"]
    head += ["masked", "discarded", "without reward", "virtual s", "speed"] if timed else []
    lines = [head, ["---"] * len(head)]
    lines += [[*_learned(row), *(_clocked(row) if timed else [])] for row in mine]
    found = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{title}\n\n{found}" if title else found


def _learned(row: Row) -> list[str]:
    cell, reward, difference = row.cell, row.reward, row.difference
    half = f" ± {reward.high - reward.mean:.3f}" if reward.count > 1 else ""
    is_base = cell == baseline_of(cell)
    return [
        _label(cell),
        cell.regime,
        str(cell.lag),
        str(reward.count),
        f"{reward.mean:.3f}{half}",
        "" if is_base or not difference.count else f"{difference.mean:+.3f} ({difference.low:+.3f})",
        "baseline" if is_base else difference.verdict,
        f"{row.means['ess']:.3f}",
        f"{100 * (row.means['clipped'] + row.means['rejected']):.1f} %",
        f"{row.means['k3']:.3g}",
        f"{row.means['staleness']:.1f}",
    ]


def _clocked(row: Row) -> list[str]:
    return [
        f"{100 * row.masked:.1f} %",
        f"{100 * row.discarded:.1f} %",
        f"{100 * row.unscored:.1f} %",
        "" if row.clock_s is None else f"{row.clock_s:.0f}",
        "" if row.speedup is None else _speed(row.speedup),
    ]


def _speed(speedup: Mean) -> str:
    half = speedup.high - speedup.mean
    return f"{speedup.mean:.2f} ± {half:.2f} ×" if 0.0 < half < float("inf") else f"{speedup.mean:.1f} ×"


def charts(results: Sequence[Result], rows: Sequence[Row], problem: str) -> dict[str, Chart]:
    """Return the charts of one problem by name; those without data are left out."""
    mine = [row for row in rows if row.cell.problem == problem and row.cell.regime == "controlled"]
    mine = [row for row in mine if not row.cell.is_longer]
    found: dict[str, Chart] = {}
    base = next((row for row in mine if row.cell == baseline_of(row.cell) and row.cell.rate == 1.0), None)
    if base is not None and len(mine) > 1:
        found["lag"] = Chart(
            f"{problem}: held-out reward by lag; bars reach from the worst seed to the best",
            "lag, versions",
            "reward",
            _by_lag(mine, lambda row: (row.reward.mean, *row.span)),
            (base.reward.mean - MARGIN, base.reward.mean + MARGIN, "synchronous ± margin"),
            even=True,
        )
        found["drift"] = Chart(
            f"{problem}: how far the policy moved from the one that sampled",
            "lag, versions",
            "KL, nats a token",
            _by_lag(mine, lambda row: (row.means["k3"],)),
            even=True,
        )
    lines = _against_time(results, problem)
    if lines:
        found["clock"] = Chart(f"{problem}: held-out reward by time", "virtual seconds", "reward", lines)
    return found


def _by_lag(rows: Sequence[Row], value: Callable[[Row], tuple[float, ...]]) -> tuple[Series, ...]:
    """Return a line for each objective and learning rate."""
    lines: defaultdict[str, list[Row]] = defaultdict(list)
    for row in rows:
        lines[_label(row.cell)].append(row)
    return tuple(
        Series(label, tuple(Point(row.cell.lag, *value(row)) for row in sorted(mine, key=_lag_of)))
        for label, mine in lines.items()
    )


def _lag_of(row: Row) -> int:
    return row.cell.lag


def _label(cell: Cell) -> str:
    rate = "" if cell.rate == 1.0 else f" (rate × {cell.rate:g})"
    steps = f", {cell.length.steps} steps" if cell.is_longer else ""
    return cell.objective + rate + steps


def _against_time(results: Sequence[Result], problem: str) -> tuple[Series, ...]:
    """Return mean held-out reward against mean virtual time, one line for each cell on the clock."""
    by_cell: defaultdict[Cell, list[Result]] = defaultdict(list)
    for result in results:
        cell = result.cell
        if cell.problem == problem and cell.regime in ON_THE_CLOCK:
            by_cell[cell._replace(seed=0)].append(result)
    lines = []
    for cell, found in by_cell.items():
        rule = "synchronous" if cell.lag == 0 else f"{cell.regime} {cell.lag}"
        points = [
            Point(_mean([one[2] or 0.0 for one in same]), _mean([one[1] for one in same]))
            for same in zip(*(result.evaluations for result in found), strict=True)
        ]
        lines.append(Series(f"{_label(cell)}, {rule}", tuple(points)))
    return tuple(lines)


def write_pages(results: Sequence[Result], page: Path, assets: Path, problems: Sequence[str]) -> None:
    """Draw the charts, and put tables and charts between the marks of the page."""
    rows = rows_of(results)
    parts = []
    for problem in problems:
        parts.append(f"### {problem}")
        for name, chart in charts(results, rows, problem).items():
            file = assets / f"staleness-{problem}-{name}.svg"
            file.write_text(draw(chart))
            parts.append(f"![{chart.title}](../assets/{file.name})")
        usual = [row for row in rows if not row.cell.is_longer]
        parts += [table(usual, problem, ("controlled", "spread")), table(usual, problem, ON_THE_CLOCK)]
        for part, title in _LONGER.items():
            longer = [row for row in rows if row.part == part]
            parts.append(table(longer, problem, ("controlled",), title))
            parts.append(table(longer, problem, ON_THE_CLOCK, f"On the clock: {title[0].lower()}{title[1:]}"))
    before, after = (re.escape(mark) for mark in _MARKS)
    body = "\n\n".join([_MARKS[0], *filter(None, parts), _MARKS[1]])
    text = re.sub(f"{before}.*{after}", lambda _: body, page.read_text(), flags=re.DOTALL)
    page.write_text(text)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _finite(value: float) -> float | None:
    return round(value, 4) if abs(value) < float("inf") else None
