"""Goodput of controlled episodes in flight, beside the best of the fixed numbers, from a cold start.

    .venv/bin/python benchmarks/controller.py --json [--quick]

The product's lanes, controllers, rests, dispatch, group and staleness rules on virtual time, so that the
machine does not matter; environments, the generator and the learner's steps are times to wait. The controller
is told nothing of the case. Each fixed number is one run of the same case with the same seed; the best is the
one that trains most episodes a second among those of which the environment refuses at most 2 % of the calls,
chosen anew for every seed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.controller_study.cases import CASES, Case
from benchmarks.controller_study.world import Outcome, World

_MOST_REFUSED: Final = 0.02
_PROCESSES: Final = (1, 4)
_SEEDS: Final = 5
_QUICK: Final = ("light tail", "slower past 48 at once", "refuses past 48 at once")


def measure(case: Case, fixed: tuple[int, ...], processes: tuple[int, ...], seed: int) -> dict[str, Any]:
    """Return what a case came to, with fixed numbers and with controllers."""
    by_number = {number: World(case, fixed=number, seed=seed).run() for number in fixed}
    fair = {number: one for number, one in by_number.items() if refused_share(one) <= _MOST_REFUSED}
    best = max(fair, key=lambda number: fair[number].fresh_per_s)
    controlled = {number: World(case, processes=number, seed=seed).run() for number in processes}
    return {
        "best_fixed": best,
        "best_fixed_per_s": fair[best].fresh_per_s,
        "fixed_per_s": {str(number): one.fresh_per_s for number, one in by_number.items()},
        "fixed_refused": {str(number): refused_share(one) for number, one in by_number.items()},
        "controlled": {str(number): _told(one, fair[best].fresh_per_s) for number, one in controlled.items()},
    }


def refused_share(outcome: Outcome) -> float:
    """Return the share of the calls that were refused, 0 to 1."""
    return outcome.refused / outcome.calls if outcome.calls else 0.0


def _told(outcome: Outcome, best_per_s: float) -> dict[str, Any]:
    return {
        "fresh_per_s": outcome.fresh_per_s,
        "ratio": outcome.fresh_per_s / best_per_s,
        "busy": outcome.busy,
        "mean_live": outcome.mean_live,
        "refused": refused_share(outcome),
        "groups_lost": outcome.lost,
        "staleness_mean": outcome.staleness,
        "decisions": [f"{one.at_s:.0f} s, {one.environment}: {one.decision}" for one in outcome.told[:200]],
    }


def summary_of(seeds: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the least and the median ratio over seeds, by number of processes, and the most refused."""
    controlled = [one["controlled"] for one in seeds]
    return {
        number: {
            "least_ratio": min(one[number]["ratio"] for one in controlled),
            "median_ratio": statistics.median(one[number]["ratio"] for one in controlled),
            "most_refused": max(one[number]["refused"] for one in controlled),
            "groups_lost": sum(one[number]["groups_lost"] for one in controlled),
        }
        for number in controlled[0]
    }


def _row(name: str, seeds: list[dict[str, Any]]) -> str:
    numbers = sorted({one["best_fixed"] for one in seeds})
    best = f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
    cells = [
        f"{one['least_ratio']:.2f}, {one['median_ratio']:.2f} | {100 * one['most_refused']:.1f} %, "
        f"{one['groups_lost']}"
        for one in summary_of(seeds).values()
    ]
    return f"| {name} | {best} | {' | '.join(cells)} |"


def _head(processes: tuple[int, ...]) -> str:
    names = [f"{n} process{'es' if n > 1 else ''}" for n in processes]
    cells = " | ".join(f"{name}: worst, median | calls refused at most, groups lost" for name in names)
    return f"| case | best fixed number | {cells} |\n|---|---|{'---|---|' * len(processes)}"


def main() -> None:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--quick", action="store_true", help="three cases, one seed, half of the numbers and of the batches"
    )
    parser.add_argument("--case", help="only cases whose name holds this")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=_SEEDS, help="how many seeds")
    options = parser.parse_args()
    if options.seeds < 1:
        parser.error(f"--seeds must be 1 or more (got {options.seeds})")
    if options.case is not None and not any(options.case in case.name for case in CASES):
        parser.error(
            f"no case has {options.case!r} in its name; there are: {', '.join(c.name for c in CASES)}"
        )
    processes = (1,) if options.quick else _PROCESSES
    results: dict[str, Any] = {}
    rows = [_head(processes)]
    for case in CASES:
        if options.case is not None and options.case not in case.name:
            continue
        if options.quick and case.name not in _QUICK:
            continue
        run = case._replace(steps=case.steps // 2) if options.quick else case
        fixed = case.fixed[1::2] if options.quick else case.fixed
        num_seeds = 1 if options.quick else options.seeds
        seeds = [measure(run, fixed, processes, options.seed + index) for index in range(num_seeds)]
        results[case.name] = {"summary": summary_of(seeds), "seeds": seeds}
        rows.append(_row(case.name, seeds))
        print(rows[-1], file=sys.stderr)
    least = min(
        (one["least_ratio"] for result in results.values() for one in result["summary"].values()),
        default=None,
    )
    print(json.dumps({"least_ratio": least, "cases": results}) if options.json else "\n".join(rows))


if __name__ == "__main__":
    main()
