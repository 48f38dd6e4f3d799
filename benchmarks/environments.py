"""What training on a known environment reaches: one of the examples, over several seeds.

    .venv/bin/python benchmarks/environments.py examples/blackjack.toml --warm-start --json [--seeds 3]

Each seed is a run of `forebay train` of its own, evaluated on held-out tasks by the weights that it began
with and by those that it ended with. With --warm-start, `forebay sft` makes the model of each seed first.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_FOREBAY = (sys.executable, "-m", "forebay")
_SUMMARY = (
    "steps", "reward_first", "reward_last", "busy", "goodput", "starved", "staleness_mean", "discarded",
    "lost", "repeated", "compiles_after_warmup",
)  # fmt: skip
_NOT_EVALUATED = dict.fromkeys(("step", "reward", "reward_low", "reward_high", "num_tasks"))


def main() -> None:
    """Train, evaluate, and print one JSON object."""
    options = _options()
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(options.directory or scratch)
        runs = [
            _run(options, directory, seed)
            for seed in range(options.first_seed, options.first_seed + options.seeds)
        ]
    result = {
        "example": options.example,
        "overrides": options.overrides,
        "runs": runs,
        "held_out_first": _spread([run["held_out_first"]["reward"] for run in runs]),
        "held_out_last": _spread([run["held_out_last"]["reward"] for run in runs]),
        "env": {
            "cores": len(os.sched_getaffinity(0)),
            "load_before": os.getloadavg()[0],
            "machine": platform.machine(),
            "python": platform.python_version(),
        },
    }
    if options.json:
        print(json.dumps(result))


def _run(options: argparse.Namespace, directory: Path, seed: int) -> dict[str, Any]:
    """Train one seed and return what it reached."""
    name = f"{Path(options.example).stem}-{seed}"
    common = [*options.overrides, f"run.seed={seed}", f"run.directory={directory}", f"run.name={name}"]
    started = time.monotonic()
    if options.warm_start:
        model = directory / f"{name}-model"
        _forebay("sft", options.example, "--to", str(model), *common, *options.sft)
        common.append(f"model.path={model}")
    sft_s = time.monotonic() - started
    started = time.monotonic()
    _forebay("train", options.example, *common)
    train_s = time.monotonic() - started
    run = directory / name
    summary = json.loads((run / "summary.json").read_text())
    return {
        "seed": seed,
        "sft_s": sft_s if options.warm_start else None,
        "train_s": train_s,
        **{key: summary.get(key) for key in _SUMMARY},
        "held_out_first": _first_evaluation(run),
        "held_out_last": _last_evaluation(run, options.eval_tasks),
        "learned": _curve(run),
    }


def _forebay(*arguments: str) -> str:
    """Run a command whose log goes to stderr, and return what it printed."""
    done = subprocess.run([*_FOREBAY, *arguments], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def _first_evaluation(run: Path) -> dict[str, Any]:
    """Return the evaluation of the weights that training began with, if the run made one."""
    lines = _evaluations(run)
    return lines[0] if lines and lines[0]["step"] == 0 else {**_NOT_EVALUATED}


def _last_evaluation(run: Path, num_tasks: int) -> dict[str, Any]:
    _forebay("eval", str(run), "--num-tasks", str(num_tasks))
    return _evaluations(run)[-1]


def _evaluations(run: Path) -> list[dict[str, Any]]:
    path = run / "eval.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [{key: json.loads(line).get(key) for key in _NOT_EVALUATED} for line in lines]


def _curve(run: Path, points: int = 10) -> list[list[float]]:
    """Return training time and mean reward of the steps around some points of a run."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if row.get("reward") is not None]
    size = max(1, len(rows) // points)
    chunks = [rows[start : start + size] for start in range(0, len(rows), size)]
    return [
        [
            round(chunk[-1]["time_s"] - rows[0]["time_s"], 1),
            round(statistics.fmean(row["reward"] for row in chunk), 4),
        ]
        for chunk in chunks
    ]


def _spread(rewards: Sequence[float | None]) -> dict[str, float | None]:
    known = [reward for reward in rewards if reward is not None]
    if not known:
        return {"mean": None, "low": None, "high": None}
    return {"mean": statistics.fmean(known), "low": min(known), "high": max(known)}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("example", help="a configuration, for instance examples/blackjack.toml")
    parser.add_argument("--json", action="store_true", help="print the JSON object on stdout")
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument("--first-seed", type=int, default=0, help="the others follow it")
    parser.add_argument("--warm-start", action="store_true", help="imitate demonstrations first")
    parser.add_argument(
        "--sft", nargs="+", default=["optimizer.learning_rate=3e-3"], help="section.key=value for that alone"
    )
    parser.add_argument("--eval-tasks", type=int, default=1000, help="held-out tasks of the last evaluation")
    parser.add_argument("--directory", help="keep the run directories here")
    parser.add_argument("overrides", nargs="*", help="section.key=value for every run")
    return parser.parse_args()


if __name__ == "__main__":
    main()
