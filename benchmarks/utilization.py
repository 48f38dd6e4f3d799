"""How busy the learner is with slow tools: synchronous at its best concurrency, and decoupled, in one run.

    .venv/bin/python benchmarks/utilization.py --json [--quick] [--env-s 1.0] [--stragglers 0.05]

Both trainings are those of `forebay demo`: the same agent, tools and batches, as separate processes over
the durable store; they differ in max_staleness alone. With one batch outstanding, the synchronous one has
all its episodes in flight at once, which is its best concurrency. If PEER_SCRIPT names a peer's benchmark
script, that runs afterwards, alone.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import msgspec

from forebay.cli.comparison import compare, describe

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


def main() -> None:
    """Measure, and print one JSON object."""
    options = _options()
    seconds = _SECONDS["quick" if options.quick else "full"]
    if options.seconds:
        seconds = (options.seconds, options.seconds)
    overrides = [
        f"environment.calculator.latency.mean_s={options.env_s}",
        f"environment.calculator.latency.straggler_probability={options.stragglers}",
        f"staleness.max_staleness={options.max_staleness}",
        f"staleness.credit={min(_CREDITS['quick' if options.quick else 'full'], options.max_staleness + 1)}",
        *(_QUICK if options.quick else ()),
        "learner.eval_every=0",
        *options.overrides,
    ]
    with tempfile.TemporaryDirectory() as scratch, redirect_stdout(sys.stderr):
        directory = Path(options.directory or scratch) / "utilization"
        summary = compare(directory, *seconds, overrides)
        print(describe(summary, directory))
    sync, decoupled = summary.sync, summary.decoupled
    speedup = None
    if sync.fresh_tokens_per_s and decoupled.fresh_tokens_per_s:
        speedup = decoupled.fresh_tokens_per_s / sync.fresh_tokens_per_s
    result = {
        **json.loads(msgspec.json.encode(summary)),
        "speedup": speedup,
        "env": _machine(options),
        "peer": _peer(options),
    }
    if options.json:
        print(json.dumps(result))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print the JSON object on stdout")
    parser.add_argument(
        "--quick", action="store_true", help="end within 60 s on 2 cores; too short for steady figures"
    )
    parser.add_argument("--seconds", type=float, help="training time of each run")
    parser.add_argument(
        "--env-s", type=float, default=1.0, help="mean time of a tool call, stragglers not counted"
    )
    parser.add_argument(
        "--stragglers", type=float, default=0.05, help="share of tool calls that take 8 times as long"
    )
    parser.add_argument("--max-staleness", type=int, default=8, help="of the decoupled run")
    parser.add_argument("--directory", help="keep the run directories here")
    parser.add_argument("overrides", nargs="*", help="section.key=value for both runs")
    return parser.parse_args()


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
    command = ["bash", script, "--engine", "sim", "--no-diag", "--off-policy", "2", *tools]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_PEER_TIMEOUT_S, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return json.loads(lines[-1]) if lines else {"error": done.stderr.strip()[-500:]}


if __name__ == "__main__":
    main()
