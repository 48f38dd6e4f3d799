"""How busy the learner is with slow tools: synchronous at its best concurrency, and decoupled, in one run.

    .venv/bin/python benchmarks/utilization.py --json [--env-s 4] [--stragglers 0.05] [--cv 0.5]
    .venv/bin/python benchmarks/utilization.py --json --quick            # within a minute; no steady figures
    .venv/bin/python benchmarks/utilization.py --json --grid             # all cells; goes on where it stopped
    .venv/bin/python benchmarks/utilization.py --grid --write docs/explanation/utilization.md

Both trainings are those of `forebay demo`: the same agent, tools and batches, as separate processes over the
durable store. With one batch outstanding, the synchronous one has all its episodes in flight at once, which
is its best concurrency. The decoupled one has the fleet that `forebay plan` asks for, from what `forebay
audit` measured on this machine; how long a cell is run follows from the plan. With `--quick` or
`--max-staleness` nothing is planned: then the runs differ in max_staleness alone.

If PEER_SCRIPT names a peer's benchmark script, the grid ends with both at the peer's shape, with the same
latencies and step time; a single cell ends with the peer alone.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import msgspec

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.prediction_study.machinery import prepare_environment  # noqa: E402
from benchmarks.utilization_study.beside_peer import BesidePeer, ask_peer, run_beside  # noqa: E402
from benchmarks.utilization_study.cells import Cell, grid  # noqa: E402
from benchmarks.utilization_study.fleet import measure_parts, plan_cell  # noqa: E402
from benchmarks.utilization_study.page import write_page  # noqa: E402
from benchmarks.utilization_study.running import CellResult, run_cell  # noqa: E402
from forebay.cli.comparison import compare, describe  # noqa: E402

_CREDITS = {"full": 5, "quick": 7}
# Training time of the synchronous and of the decoupled run; a run ends with the step that reaches it.
_SECONDS = {"full": (120.0, 120.0), "quick": (2.5, 12.0)}
# Fewer programs to compile and shorter episodes: the figures of seconds are no figures of a steady state.
_QUICK = (
    "batching.max_programs=3",
    "batching.groups=16",
    "generator.kv_windows=[256]",
    "environment.calculator.step_timeout_s=6.0",
    "environment.calculator.episode_timeout_s=6.0",
)
_PEER_TIMEOUT_S = 600.0
_AUDIT_S = 20.0
_PEER_ENV_S = 0.5
_WORK = ROOT / "runs" / "utilization"


def main() -> None:
    """Measure, and print one JSON object."""
    options = _options()
    prepare_environment()
    if options.grid:
        result = _grid(options)
    elif options.quick or options.max_staleness is not None or options.overrides:
        result = _unplanned(options)
    else:
        cell = Cell(env_s=options.env_s, cv=options.cv, stragglers=options.stragglers)
        result = _single(_cell_result(cell, options), options)
    if options.json:
        print(json.dumps(result))


def _grid(options: argparse.Namespace) -> dict[str, Any]:
    """Run the cells that are missing, in order, until the time is up; then stand beside the peer."""
    ends_s = time.monotonic() + 60.0 * options.budget_minutes
    cells = [cell for cell in grid() if not options.cells or cell.name in options.cells.split(",")]
    results = []
    for cell in cells:
        if time.monotonic() < ends_s or _path(cell, options).exists():
            results.append(_cell_result(cell, options))
    peers = []
    for stragglers in (0.0, 0.05):
        if time.monotonic() < ends_s:
            peers += _beside_peer(stragglers, options)
    if options.write:
        write_page(options.write, results, peers)
    return {
        "cells": [_single(result, None) for result in results],
        "missing": [cell.name for cell in cells if not _path(cell, options).exists()],
        "beside_peer": msgspec.to_builtins(peers),
        "env": _machine(options),
    }


def _cell_result(cell: Cell, options: argparse.Namespace) -> CellResult:
    path = _path(cell, options)
    if path.exists():
        return msgspec.json.decode(path.read_bytes(), type=CellResult)
    with redirect_stdout(sys.stderr):
        parts = options.directory / "parts.json"
        if not parts.exists():
            parts.parent.mkdir(parents=True, exist_ok=True)
            measure_parts(parts, _AUDIT_S)
        print(f"{cell.name}: plans")
        directory = options.directory / cell.name
        planned = plan_cell(cell, parts, directory)
        print(f"{cell.name}: {planned.plan.reason}")
        result = run_cell(cell, planned, directory, os.getloadavg()[0])
        print(f"{cell.name}: sync busy {result.sync.busy}, decoupled busy {result.decoupled.busy}")
    _keep(path, result)
    return result


def _beside_peer(stragglers: float, options: argparse.Namespace) -> list[BesidePeer]:
    """Return what both came to at the peer's shape; nothing if no peer is named and none was run before."""
    path = options.directory / "results" / f"beside-peer-{stragglers:g}.json"
    script = os.environ.get("PEER_SCRIPT")
    if path.exists():
        return [msgspec.json.decode(path.read_bytes(), type=BesidePeer)]
    if not script:
        return []
    with redirect_stdout(sys.stderr):
        found = run_beside(script, _PEER_ENV_S, stragglers, options.directory / f"beside-peer-{stragglers:g}")
    _keep(path, found)
    return [found]


def _single(result: CellResult, options: argparse.Namespace | None) -> dict[str, Any]:
    """Return a cell as scripts read it; with options, with the machine and the peer."""
    built: dict[str, Any] = {**msgspec.to_builtins(result), "speedup": result.speedup}
    if options is not None:
        built |= {"env": _machine(options), "peer": _peer(options)}
    return built


def _unplanned(options: argparse.Namespace) -> dict[str, Any]:
    """Run the demo's two trainings with a given limit."""
    size = "quick" if options.quick else "full"
    seconds = (options.seconds, options.seconds) if options.seconds else _SECONDS[size]
    max_staleness = 8 if options.max_staleness is None else options.max_staleness
    overrides = [
        f"environment.calculator.latency.mean_s={options.env_s}",
        f"environment.calculator.latency.straggler_probability={options.stragglers}",
        f"staleness.max_staleness={max_staleness}",
        f"staleness.credit={min(_CREDITS[size], max_staleness + 1)}",
        *(_QUICK if options.quick else ()),
        "learner.eval_every=0",
        *options.overrides,
    ]
    with tempfile.TemporaryDirectory() as scratch, redirect_stdout(sys.stderr):
        directory = (Path(scratch) if options.directory == _WORK else options.directory) / "utilization"
        summary = compare(directory, *seconds, overrides)
        print(describe(summary, directory))
    sync, decoupled = summary.sync, summary.decoupled
    speedup = None
    if sync.fresh_tokens_per_s and decoupled.fresh_tokens_per_s:
        speedup = decoupled.fresh_tokens_per_s / sync.fresh_tokens_per_s
    return {
        **json.loads(msgspec.json.encode(summary)),
        "speedup": speedup,
        "env": _machine(options),
        "peer": _peer(options),
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print the JSON object on stdout")
    parser.add_argument(
        "--quick", action="store_true", help="end within 60 s on 2 cores; too short for steady figures"
    )
    parser.add_argument("--grid", action="store_true", help="all cells, each once; resumable")
    parser.add_argument("--cells", help="of the grid only these, separated by commas, e.g. 4s-cv0.5")
    parser.add_argument("--budget-minutes", type=float, default=1e6, help="begin no cell after this long")
    parser.add_argument("--write", type=Path, help="write the grid's page, and its charts to docs/assets")
    parser.add_argument("--seconds", type=float, help="training time of each run, if nothing is planned")
    parser.add_argument(
        "--env-s", type=float, default=1.0, help="mean time of a tool call, stragglers not counted"
    )
    parser.add_argument("--cv", type=float, default=0.5, help="its standard deviation over its mean")
    parser.add_argument(
        "--stragglers", type=float, default=0.05, help="share of tool calls that take 8 times as long"
    )
    parser.add_argument("--max-staleness", type=int, help="of the decoupled run, instead of planning it")
    parser.add_argument("--directory", type=Path, default=_WORK, help="runs, profiles and results lie here")
    parser.add_argument("overrides", nargs="*", help="section.key=value for both runs; nothing is planned")
    options = parser.parse_args()
    known = [cell.name for cell in grid()]
    if unknown := set(filter(None, (options.cells or "").split(","))).difference(known):
        parser.error(f"--cells: no {', '.join(sorted(unknown))} among {', '.join(known)}")
    return options


def _path(cell: Cell, options: argparse.Namespace) -> Path:
    found: Path = options.directory / "results" / f"{cell.name}.json"
    return found


def _keep(path: Path, found: CellResult | BesidePeer) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1))
    partial.rename(path)


def _machine(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "env_s": options.env_s,
        "stragglers": options.stragglers,
        "straggler_factor": 8.0,
        "cores": len(os.sched_getaffinity(0)),
        "load_before": os.getloadavg()[0],
        "machine": platform.machine(),
        "python": platform.python_version(),
    }


def _peer(options: argparse.Namespace) -> dict[str, Any] | None:
    """Run the peer's own benchmark script, if one is named, and return what it printed last."""
    script = os.environ.get("PEER_SCRIPT")
    if not script:
        return None
    tools = ["--latency", str(options.env_s), "--straggler-p", str(options.stragglers)]
    return ask_peer([script, "--engine", "sim", "--no-diag", "--off-policy", "2", *tools], _PEER_TIMEOUT_S)


if __name__ == "__main__":
    main()
