"""Results: one JSON line a finished run, so that the study can be stopped anywhere and goes on later."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks.staleness_study.cells import Cell
from benchmarks.staleness_study.outcomes import Outcome

BINS: Final = 20
_MEANS: Final = ("staleness", "ess", "rejected", "clipped", "k3", "entropy")
_TOTALS: Final = ("tokens", "masked", "discarded", "unscored", "episodes")


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One finished run.

    Args:
        cell: What was run.
        fingerprint: Of all that it depends on but the code.
        reward: Held-out reward: the mean of the last evaluations.
        evaluations: Version, reward, and virtual seconds or None.
        curve: Mean reward of the training batches, in equal parts of the run.
        means: Figures of a step: means over the second half, when the data is as old as it gets.
        totals: Tokens and episodes of all trained batches.
        staleness_max: The oldest trained token of the run.
        nonfinite: Steps whose loss or gradient was not finite; they changed nothing.
        ends_s: Virtual seconds at the end of each part of the curve; empty without a virtual clock.
        counters: Counters of the store; empty without one.
        cpu_s: Processor time of the run.
        commit: Revision of the code.
        python: Version of Python.
        machine: Processor.
    """

    cell: Cell
    fingerprint: str
    reward: float
    evaluations: list[tuple[int, float, float | None]]
    curve: list[float]
    means: dict[str, float]
    totals: dict[str, int]
    staleness_max: int
    nonfinite: int
    ends_s: list[float]
    counters: dict[str, int]
    cpu_s: float
    commit: str = ""
    python: str = ""
    machine: str = ""


def summarize_run(cell: Cell, name: str, outcome: Outcome, cpu_s: float, commit: str) -> Result:
    """Return what is kept of a run."""
    scale, steps = cell.length, outcome.steps
    counted = outcome.evaluations[-scale.counted :]
    late = steps[len(steps) // 2 :]
    return Result(
        cell=cell,
        fingerprint=name,
        reward=_mean(one.reward for one in counted),
        evaluations=[(one.version, round(one.reward, 5), one.clock_s) for one in outcome.evaluations],
        curve=[round(_mean(step.reward for step in part), 4) for part in _parts(steps)],
        means={field: float(f"{_mean(getattr(step, field) for step in late):.5g}") for field in _MEANS},
        totals={field: sum(getattr(step, field) for step in steps) for field in _TOTALS},
        staleness_max=max(step.staleness_max for step in steps),
        nonfinite=sum(not step.finite for step in steps),
        ends_s=[round(part[-1], 2) for part in _parts(outcome.ends_s)],
        counters={key: value for key, value in sorted(outcome.counters.items()) if value},
        cpu_s=round(cpu_s, 1),
        commit=commit,
        python=platform.python_version(),
        machine=f"{platform.machine()}, {os.cpu_count()} cores",
    )


def append(path: Path, result: Result) -> None:
    """Add a result; it is on disk when this returns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        if file.tell() and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n":
            file.write(b"\n")  # what a kill left unfinished must not spoil the next line
        file.write(msgspec.json.encode(result) + b"\n")
        file.flush()
        os.fsync(file.fileno())


def read(path: Path) -> dict[str, Result]:
    """Return the results of a file by fingerprint; a line that was cut by a kill is left out."""
    if not path.exists():
        return {}
    results = {}
    for line in path.read_bytes().split(b"\n"):
        try:
            result = msgspec.json.decode(line, type=Result)
        except msgspec.DecodeError:
            continue
        results[result.fingerprint] = result
    return results


def _parts(items: list[Any]) -> list[list[Any]]:
    """Split into equal parts, as many as the curves have."""
    size = max(1, len(items) // BINS)
    return [items[first : first + size] for first in range(0, len(items), size)]


def _mean(values: Iterable[float]) -> float:
    known = list(values)
    return sum(known) / len(known)
