"""The page of the headline benchmark: its tables, its picture, and what is real in it."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.prose import markdown
from benchmarks.staleness_study.drawing import Chart, Point, Series, draw
from benchmarks.utilization_study.beside_peer import BesidePeer
from benchmarks.utilization_study.running import REWARD_THRESHOLD, CellResult

ASSETS: Final = "assets"
PICTURE: Final = "utilization.svg"
_HEADER: Final = (
    "| tools | cv | busy: sync, decoupled | goodput | steps/s | tokens/s | times | fleet: episodes, S | "
    "staleness: mean, oldest | discarded | s to reward |"
)


def write_page(path: Path, results: Sequence[CellResult], peers: Sequence[BesidePeer]) -> None:
    """Write the page and its picture.

    Args:
        path: The Markdown file, in a folder beside `assets`.
        results: The cells there are.
        peers: What the peer came to; may be empty.
    """
    assets = path.parent.parent / ASSETS
    assets.mkdir(parents=True, exist_ok=True)
    (assets / PICTURE).write_text(draw(chart_of(results)))
    lines = [
        *_head(results),
        f"![Busy by the mean time of a tool call](../{ASSETS}/{PICTURE})",
        "",
        _HEADER,
        "|" + "---|" * (_HEADER.count("|") - 1),
        *(_row(result) for result in results),
        "",
        *_explained(results),
        *_beside(peers),
        *_how(results),
    ]
    path.write_text("\n".join(lines))


def chart_of(results: Sequence[CellResult]) -> Chart:
    """Return busy by the mean time of a tool call, a line for each kind of tail and each way to run."""
    series = []
    for way in ("decoupled", "sync"):
        for cv, stragglers in sorted({(one.cell.cv, one.cell.stragglers) for one in results}):
            label = f"{way}, cv {cv:g}" + (f", {stragglers:.0%} stragglers" if stragglers else "")
            points = sorted(
                Point(one.cell.env_s, 100.0 * (getattr(one, way).busy or 0.0))
                for one in results
                if (one.cell.cv, one.cell.stragglers) == (cv, stragglers)
            )
            series.append(Series(label, tuple(points)))
    return Chart(
        title="The learner computing, % of the time",
        x_label="mean time of a tool call, s",
        y_label="busy, %",
        series=tuple(series),
        even=True,
    )


def _head(results: Sequence[CellResult]) -> list[str]:
    steps_s = [one.decoupled.step_s for one in results if one.decoupled.step_s]
    between = f"{min(steps_s):.2g} to {max(steps_s):.2g} s" if steps_s else "unknown"
    return markdown(
        f"""
# How busy the learner is, by the time of its tools

Written by `benchmarks/utilization.py --grid --write`. An agent learns to work out sums with a calculator tool
that takes a while: once synchronously, with every episode of its one batch in flight at once, which is its
best concurrency, and once decoupled, with the fleet that `forebay plan` asked for. 32 groups of 4
trajectories a batch, a step of {between}.
"""
    )


def _row(result: CellResult) -> str:
    sync, decoupled, plan = result.sync, result.decoupled, result.plan
    tail = f"{result.cell.cv:g}" + (f", {result.cell.stragglers:.0%} x 8" if result.cell.stragglers else "")
    cells = [
        f"{result.cell.env_s:g} s",
        tail,
        f"{_percent(sync.busy)}, **{_percent(decoupled.busy)}**",
        f"{_percent(sync.goodput)}, **{_percent(decoupled.goodput)}**",
        f"{_number(sync.steps_per_s)}, {_number(decoupled.steps_per_s)}",
        f"{_number(sync.fresh_tokens_per_s)}, {_number(decoupled.fresh_tokens_per_s)}",
        "-" if result.speedup is None else f"{result.speedup:.1f}",
        f"{plan.episodes_in_flight}, {plan.max_staleness}",
        f"{_number(decoupled.staleness_mean)}, {decoupled.staleness_max}",
        _percent(decoupled.discarded / decoupled.accepted if decoupled.accepted else None),
        f"{_number(result.sync_reward_s)}, {_number(result.decoupled_reward_s)}",
    ]
    return f"| {' | '.join(cells)} |"


def _explained(results: Sequence[CellResult]) -> list[str]:
    runs = [run for one in results for run in (one.sync, one.decoupled)]
    unsound = sum(run.lost + run.repeated + run.compiles_after_warmup for run in runs)
    return markdown(
        f"""
*cv* is the standard deviation of a tool call's time over its mean (lognormal); *x 8* the share of calls that
take 8 times as long. *Times* is trained tokens per second, decoupled over synchronous. *Fleet* is what was
planned: episodes in flight, and max_staleness. *Discarded* trajectories missed the deadline of their episode,
of 15 mean tool calls and at least 6 s. *To reward* is the training time until the mean of 8 batches reached
{REWARD_THRESHOLD:g}; - if it did not in the time of the run. Lost, repeated, and compiled after warm-up, in
all runs together: {unsound}.

Real: the learner and its steps, the generator (a small model on the second core, with the actors), the store,
actors and processes, and what is learned. Emulated: the tool waits as long as the cell says; it stands for a
service elsewhere. Learner, generator, weights and store were measured by `forebay audit` before any cell; the
tool's times are a setting and were drawn. How long a cell is run follows from its plan: until its pipeline is
full, which no figure counts, and a minute or 20 batches more. One run a cell.
"""
    )


def _beside(peers: Sequence[BesidePeer]) -> list[str]:
    if not peers:
        return []
    shape = peers[0]
    ratios = ", ".join(
        f"{one.ratio:.1f} times with {one.stragglers:.0%} stragglers"
        for one in peers
        if one.ratio is not None
    )
    return markdown(
        f"""
## Beside google-tunix

Both at the shape of the peer's benchmark: 4 tasks x 4 trajectories a step, 1 to 4 turns, {shape.env_s:g} s an
environment step, {shape.turn_s:g} s a model turn. The learner's step here is real and takes
{shape.step_s:.2f} s on one core; the peer's is told to take as long (asleep, and its own small model's on
top). Both generators wait and sample at random. The peer: its own agentic GRPO learner, unpatched, by its own
script.

| stragglers | learner | busy | steps/s |
|---|---|---|---|
{chr(10).join(row for one in peers for row in _peer_rows(one))}

Steps per second over the peer's best: {ratios or "the peer printed none"}.
"""
    )


def _peer_rows(one: BesidePeer) -> Iterator[str]:
    share = f"{one.stragglers:.0%}"
    yield f"| {share} | forebay, synchronous | {one.sync_busy:.1%} | {one.sync_steps_per_s:.3f} |"
    ours = f"forebay, max_staleness {one.plan.max_staleness}"
    yield f"| {share} | {ours} | **{one.busy:.1%}** | **{one.steps_per_s:.3f}** |"
    for line in one.peer:
        busy = _percent(line.get("learner_busy"))
        yield f"| {share} | {_peer_name(line)} | {busy} | {_peer_rate(line)} |"


def _peer_name(line: dict[str, Any]) -> str:
    return f"google-tunix {line.get('tunix', '')}, off_policy_steps {line.get('off_policy', '?')}"


def _peer_rate(line: dict[str, Any]) -> str:
    rate = line.get("steps_per_s")
    return f"{rate:.3f}" if rate else f"none: {line.get('status', line.get('error', 'no line'))[:60]}"


def _how(results: Sequence[CellResult]) -> list[str]:
    loads = sorted(one.load_before for one in results)
    between = f" Load average before the cells {loads[0]:.1f} to {loads[-1]:.1f}." if loads else ""
    return markdown(
        f"""
{platform.system()} {platform.machine()}, {os.cpu_count()} shared cores: one for the learner, one for the
rest.{between}

<!-- not run: takes more than an hour -->
```bash
.venv/bin/python benchmarks/utilization.py --json --grid --write docs/explanation/utilization.md
```
"""
    )


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
