"""The staleness study: what a lag, an objective and `on_stale` do to the reward that is learned.

    .venv/bin/python benchmarks/staleness.py --budget-minutes 60    # goes on where it was stopped
    .venv/bin/python benchmarks/staleness.py --redraw               # tables and charts of what there is
    .venv/bin/python benchmarks/staleness.py --quick --json         # three tiny runs: does it work here?

Every finished run is one line of `benchmarks/data/staleness/results.jsonl`; a run that is there is not made
again. docs/explanation/staleness-study.md says how it is done and what was found.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
# One core: results do not depend on how busy the others are, and two can share a machine.
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

from benchmarks.staleness_study import report, results  # noqa: E402
from benchmarks.staleness_study.bench import Bench  # noqa: E402
from benchmarks.staleness_study.cells import Cell, plan, quick_plan  # noqa: E402
from benchmarks.staleness_study.problems import NAMES, WARM_STARTS  # noqa: E402

PAGE = ROOT / "docs" / "explanation" / "staleness-study.md"
ASSETS = ROOT / "docs" / "assets"


def main() -> None:
    """Run what is missing, redraw, and print one JSON object."""
    options = _options()
    cells = list(quick_plan() if options.quick else plan())
    cells = [cell for cell in cells if all(word in f"{cell.name} {cell.seed}" for word in options.only)]
    known = {} if options.quick else results.read(options.results)
    if not options.redraw:
        known = _run(cells, known, options)
    found = list(known.values())
    if options.redraw or not (options.quick or options.only):
        report.write_pages(found, PAGE, ASSETS, NAMES)
    if options.json:
        print(json.dumps(report.as_json(report.rows_of(found), len(_missing(cells, known)))))


def _run(
    cells: list[Cell], known: dict[str, results.Result], options: argparse.Namespace
) -> dict[str, results.Result]:
    """Run the cells that have no result yet, in order, until the time is up; return all results."""
    bench, commit = Bench(), _commit()
    ends_s = time.monotonic() + 60.0 * options.budget_minutes
    missing = _missing(cells, known)
    for number, cell in enumerate(missing):
        if time.monotonic() >= ends_s:
            break
        result = bench.run(cell, commit)
        known = {**known, result.fingerprint: result}
        if not options.quick:
            results.append(options.results, result)
        print(
            f"{number + 1}/{len(missing)} {cell.name} seed {cell.seed}: {result.reward:.3f} "
            f"({result.cpu_s:.0f} s of CPU)",
            file=sys.stderr,
            flush=True,
        )
    return known


def _missing(cells: list[Cell], known: dict[str, results.Result]) -> list[Cell]:
    done = {result.cell for result in known.values() if result.fingerprint == Bench.name_of(result.cell)}
    return list(dict.fromkeys(cell for cell in cells if cell not in done))


def _commit() -> str:
    """Return the revision that is checked out; empty without git."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print the JSON object on stdout")
    parser.add_argument("--quick", action="store_true", help="three tiny runs that are not kept")
    parser.add_argument("--redraw", action="store_true", help="run nothing; write tables and charts")
    parser.add_argument("--budget-minutes", type=float, default=float("inf"), help="begin no run after this")
    parser.add_argument("--only", nargs="+", default=[], help="words that a cell's name must contain")
    parser.add_argument(
        "--results", type=Path, default=WARM_STARTS / "results.jsonl", help="where they are kept"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
