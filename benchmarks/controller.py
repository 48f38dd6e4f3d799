"""Goodput of controlled episodes in flight, beside the best of the fixed numbers, from a cold start.

    .venv/bin/python benchmarks/controller.py --json [--quick]

The product's lanes, controllers, rests, dispatch, group and staleness rules on virtual time, so that the
machine does not matter; environments, the generator and the learner's steps are times to wait. The controller
is told nothing of the case. Each fixed number is one run of the same case with the same seed; the best is the
one that trains most episodes a second among those of which the environment refuses at most 2 % of the calls.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.controller_study.cases import CASES, Case
from benchmarks.controller_study.world import Outcome, World

_MOST_REFUSED: Final = 0.02
_PROCESSES: Final = (1, 2, 4)
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


def _table(results: dict[str, Any]) -> str:
    rows = ["| case | best fixed | 1 process | 2 | 4 | refused |", "|---|---|---|---|---|---|"]
    for name, result in results.items():
        controlled = result["controlled"]
        ratios = [f"{one['ratio']:.3f}" for one in controlled.values()] + ["-"] * (3 - len(controlled))
        refused = max(one["refused"] for one in controlled.values())
        best = f"{result['best_fixed']}: {result['best_fixed_per_s']:.2f}/s"
        rows.append(f"| {name} | {best} | {' | '.join(ratios)} | {100 * refused:.1f} % |")
    return "\n".join(rows)


def main() -> None:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--quick", action="store_true", help="three cases, half of the numbers and of the batches"
    )
    parser.add_argument("--case", help="only cases whose name holds this")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    results: dict[str, Any] = {}
    for case in CASES:
        if options.case is not None and options.case not in case.name:
            continue
        if options.quick and case.name not in _QUICK:
            continue
        if options.quick:
            shorter = case._replace(steps=case.steps // 2)
            results[case.name] = measure(shorter, case.fixed[1::2], (1,), options.seed)
        else:
            results[case.name] = measure(case, case.fixed, _PROCESSES, options.seed)
        print(_table({case.name: results[case.name]}).splitlines()[-1], file=sys.stderr)
    least = min(
        (one["ratio"] for result in results.values() for one in result["controlled"].values()), default=None
    )
    print(json.dumps({"least_ratio": least, "cases": results}) if options.json else _table(results))


if __name__ == "__main__":
    main()
