"""A cell's two runs: synchronous at its best concurrency, and decoupled with the planned fleet."""

from __future__ import annotations

import shutil
import statistics
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.utilization_study.cells import Cell
from benchmarks.utilization_study.fleet import Planned
from forebay.cli.train import supervise
from forebay.config import load_config
from forebay.errors import PeerFailedError
from forebay.learner.run_directory import RunLayout
from forebay.planner.plan import Plan
from forebay.telemetry.metrics import read_metrics
from forebay.telemetry.summary import RunSummary, read_summary

REWARD_THRESHOLD: Final = 0.8
_REWARD_BATCHES: Final = 8
_LEAST_S: Final = 60.0
_LEAST_BATCHES: Final = 20
_LEAST_SYNC_BATCHES: Final = 3


class Lengths(msgspec.Struct, frozen=True, kw_only=True):
    """How long a cell's runs train, from their first batch on; warm-up is in it."""

    sync_s: float
    decoupled_s: float
    warmup_batches: int


class CellResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a cell came to.

    Args:
        cell: The environment.
        plan: The planned fleet, with what was predicted of it.
        lengths: How long it was run.
        sync: The synchronous run.
        decoupled: The decoupled one.
        sync_reward_s: Seconds of training until the reward threshold was passed; None if it was not.
        decoupled_reward_s: The same of the decoupled run.
        load_before: The machine's load average when it began.
    """

    cell: Cell
    plan: Plan
    lengths: Lengths
    sync: RunSummary
    decoupled: RunSummary
    sync_reward_s: float | None
    decoupled_reward_s: float | None
    load_before: float

    @property
    def speedup(self) -> float | None:
        """Trained tokens per second, decoupled over synchronous."""
        if not self.sync.fresh_tokens_per_s or self.decoupled.fresh_tokens_per_s is None:
            return None
        return self.decoupled.fresh_tokens_per_s / self.sync.fresh_tokens_per_s


def lengths_of(plan: Plan) -> Lengths:
    """Return how long a cell must be run: until its pipeline is full, then a minute and some batches more.

    Args:
        plan: Says how long a batch takes, and how many are in flight.
    """
    cycle_s = 1.0 / plan.steps_per_s
    step_s = cycle_s * plan.busy
    warmup = 2 * plan.credit + 2
    sync_cycle_s = step_s / max(plan.sync_busy, 1e-3)
    return Lengths(
        sync_s=max(_LEAST_S, (_LEAST_SYNC_BATCHES + 1) * sync_cycle_s),
        decoupled_s=warmup * cycle_s + max(_LEAST_S, _LEAST_BATCHES * cycle_s),
        warmup_batches=warmup,
    )


def run_cell(cell: Cell, planned: Planned, directory: Path, load_before: float) -> CellResult:
    """Run both, one after the other.

    Args:
        cell: The environment.
        planned: Its fleet.
        directory: Where the runs lie.
        load_before: The machine's load average.

    Raises:
        PeerFailedError: A run did not end well.
    """
    lengths = lengths_of(planned.plan)
    parked = f"generator.parked_episodes={planned.plan.episodes_in_flight}"
    sync = ("staleness.max_staleness=0", "staleness.credit=1", "learner.warmup_steps=1")
    decoupled = (parked, f"learner.warmup_steps={lengths.warmup_batches}")
    summaries = {
        name: run_for(planned.config, directory / name, seconds_s, extra)
        for name, seconds_s, extra in (
            ("sync", lengths.sync_s, sync),
            ("decoupled", lengths.decoupled_s, decoupled),
        )
    }
    rewards_s = {name: seconds_to_reward(directory / name, REWARD_THRESHOLD) for name in summaries}
    return CellResult(
        cell=cell,
        plan=planned.plan,
        lengths=lengths,
        sync=summaries["sync"],
        decoupled=summaries["decoupled"],
        sync_reward_s=rewards_s["sync"],
        decoupled_reward_s=rewards_s["decoupled"],
        load_before=load_before,
    )


def run_for(config: Path, path: Path, seconds_s: float, overrides: tuple[str, ...]) -> RunSummary:
    """Train anew for so many seconds, counted from the first batch on.

    Raises:
        PeerFailedError: It did not end well.
    """
    shutil.rmtree(path, ignore_errors=True)
    endless = (f"learner.max_time_s={seconds_s:g}", "learner.steps=100000", f"run.name={path.name}")
    ending = supervise(load_config(config, (*overrides, *endless)), path)
    if ending.code or ending.stopped:
        raise PeerFailedError(f"the run in {path} did not end well, with code {ending.code}")
    return read_summary(RunLayout(path).summary, RunSummary)


def seconds_to_reward(path: Path, threshold: float) -> float | None:
    """Return the time from a run's first trained batch until the mean of the last batches passes a reward.

    Args:
        path: The run.
        threshold: Mean reward of the last 8 batches.

    Returns:
        Seconds; None if it was not reached.
    """
    lines = [line for line in read_metrics(RunLayout(path).metrics) if line.get("reward") is not None]
    for end in range(_REWARD_BATCHES, len(lines) + 1):
        last = lines[end - _REWARD_BATCHES : end]
        if statistics.fmean(line["reward"] for line in last) >= threshold:
            return float(last[-1]["time_s"] - lines[0]["time_s"])
    return None
