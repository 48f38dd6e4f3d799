"""Panels about the data: how old it was, where it waited, how long environments took, and what failed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from forebay.report.charts import RUN_COLORS, Axis, Curve, Plot, charts
from forebay.report.history import mean_of, totals_under, weighted_mean
from forebay.report.load import RunRecord
from forebay.report.panels import (
    Bin,
    Cell,
    Histogram,
    Mark,
    Note,
    Panel,
    Part,
    RunTables,
    Source,
    Table,
)
from forebay.report.text import number, percent, seconds
from forebay.report.verdicts import environment_names

_MAX_BINS: Final = 40
_PERCENTILE_NAMES: Final = {"p50": "half within", "p95": "95 % within", "p99": "99 % within"}
_PERCENTILES: Final = tuple(_PERCENTILE_NAMES)

_BUFFER: Final = (
    Plot(
        "depth",
        "Buffer depth",
        Axis("groups", low=0.0),
        (
            Curve("buffer", "settled"),
            Curve("store.open_groups", "waiting for members"),
            Curve("store.outstanding", "outstanding"),
        ),
    ),
    Plot(
        "bytes",
        "Buffer size",
        Axis("bytes", "bytes", 0.0),
        (
            Curve("store.live_bytes", "not yet trained"),
            Curve("store.retained_bytes", "kept for replay"),
        ),
    ),
)


def staleness_panel(runs: Sequence[RunRecord], tables: Sequence[RunTables]) -> Panel:
    """Return how old trained tokens were, against the limit, and the buffer that they waited in."""
    limits = {run.setting("staleness.max_staleness") for run in runs}
    marks = tuple(
        Mark(value=float(limit), label=f"max_staleness {limit}")
        for limit in sorted(value for value in limits if isinstance(value, int))
    )
    over_time = Plot(
        "staleness",
        "Staleness over the run",
        Axis("versions", low=0.0, marks=marks),
        (Curve("staleness", "mean"), Curve("staleness_max", "oldest")),
    )
    return Panel(
        anchor="staleness",
        label="Staleness and buffer",
        title="How old the data was, and where it waited",
        lead="Staleness is counted in policy versions, per token; no token beyond max_staleness is "
        "ever trained. A buffer that never empties keeps the learner fed.",
        parts=(_staleness_histogram(runs), *charts(tables, (over_time, *_BUFFER))),
    )


def environment_panel(runs: Sequence[RunRecord], tables: Sequence[RunTables]) -> Panel:
    """Return the latencies of each environment, and how many episodes were in flight."""
    names = sorted({name for run in runs for name in environment_names(run)})
    marks = tuple(
        Mark(value=float(limit), label=f"limit {limit}")
        for limit in sorted({_in_flight(run) for run in runs if _in_flight(run)})
        if limit
        <= 2 * max((max(filter(None, t.actors.get("live", [])), default=0.0) for t in tables), default=0.0)
    )
    in_flight = Plot(
        "live",
        "Episodes in flight",
        Axis("episodes", low=0.0, marks=marks),
        (Curve("live", "episodes", "actors"),),
    )
    plots = [plot for name in names for plot in _latency_plots(tables, name)]
    return Panel(
        anchor="latency",
        label="Environments",
        title="How long environments took",
        lead="Percentiles of environment steps and of whole episodes. One slow step in twenty holds "
        "back a whole group.",
        parts=(_latency_table(runs, names), *charts(tables, (*plots, in_flight))),
    )


def _staleness_histogram(runs: Sequence[RunRecord]) -> Part:
    counts = [
        {int(age): n for age, n in totals_under(run.history.buckets, "fresh_tokens.staleness.").items()}
        for run in runs
    ]
    totals = [sum(found.values()) for found in counts]
    if not any(totals):
        return Note(text="Staleness histogram: not recorded by this run.")
    limits = [run.setting("staleness.max_staleness") for run in runs]
    limit = max((value for value in limits if isinstance(value, int)), default=None)
    oldest = max(age for found in counts for age in found)
    last = max(oldest, limit or 0)
    width = -(-(last + 1) // _MAX_BINS)
    groups = [range(start, min(start + width, last + 1)) for start in range(0, last + 1, width)]
    shares = [
        [
            sum(found.get(age, 0) for age in ages) / (total or 1)
            for found, total in zip(counts, totals, strict=True)
        ]
        for ages in groups
    ]
    top = max(max(of_bin) for of_bin in shares)
    bins = tuple(
        Bin(
            label=str(ages[0]) if len(ages) == 1 else f"{ages[0]}–{ages[-1]}",
            values=tuple(map(percent, of_bin)),
            heights=tuple(share / top for share in of_bin),
            is_last=limit is not None and limit in ages,
        )
        for ages, of_bin in zip(groups, shares, strict=True)
    )
    means = [mean_of(run.history.buckets, "staleness") for run in runs]
    said = "; ".join(
        f"{run.name}: mean {number(None if mean is None else round(mean, 2))}, limit {bound}"
        for run, bound, mean in zip(runs, limits, means, strict=True)
    )
    return Histogram(
        title="Staleness of trained tokens",
        x_label="staleness in policy versions",
        y_label="share of trained tokens",
        top=percent(top),
        bins=bins,
        runs=tuple((run.name, RUN_COLORS[i]) for i, run in enumerate(runs)) if len(runs) > 1 else (),
        caption=said,
    )


def _latency_table(runs: Sequence[RunRecord], names: Sequence[str]) -> Part:
    rows = []
    for run in runs:
        for name in names:
            for what, label in (("step_s", "step"), ("episode_s", "episode")):
                values = _latencies(run, name, what)
                if any(value is not None for value in values):
                    heading = f"{run.name}: {name}, {label}" if len(runs) > 1 else f"{name}, {label}"
                    rows.append((Cell(heading), *(Cell(seconds(value)) for value in values)))
    if not rows:
        return Note(text="Latencies of environments: not recorded by this run.")
    return Table(
        title="Latency by environment, over the whole run",
        headers=("environment", "half within", "95 % within", "99 % within", "longest"),
        rows=tuple(rows),
    )


def _latencies(run: RunRecord, name: str, what: str) -> tuple[float | None, ...]:
    buckets, weight = run.history.buckets, f"trajectories.{name}"
    metric = f"latency.{name}.{what}"
    if any(f"{metric}.p50" in bucket.stats for bucket in buckets):
        means = (weighted_mean(buckets, f"{metric}.{which}", weight) for which in _PERCENTILES)
        return (
            *means,
            max((v for b in buckets if (v := b.largest(f"{metric}.max")) is not None), default=None),
        )
    logged = f"environment_s.{name}" if what == "step_s" else "episode_s"
    return (*(run.actors.figures.get(f"{logged}.{which}") for which in _PERCENTILES), None)


def _latency_plots(tables: Sequence[RunTables], name: str) -> Iterator[Plot]:
    for what, label, logged in (
        ("step_s", "a step", f"environment_s.{name}"),
        ("episode_s", "an episode", "episode_s"),
    ):
        from_batches = any(f"latency.{name}.{what}.p50" in run.batches for run in tables)
        source: Source = "batches" if from_batches else "actors"
        base = f"latency.{name}.{what}" if from_batches else logged
        # Of two runs one line each: six could not be told apart, and the table has them all.
        shown = _PERCENTILE_NAMES if len(tables) == 1 else {"p95": _PERCENTILE_NAMES["p95"]}
        yield Plot(
            f"latency-{what.removesuffix('_s')}-{name}",
            f"{name}: time of {label}",
            Axis("time", "seconds", 0.0),
            tuple(Curve(f"{base}.{which}", said, source) for which, said in shown.items()),
        )


def _in_flight(run: RunRecord) -> int:
    processes, each = run.setting("actors.processes"), run.setting("actors.episodes_per_process")
    return processes * each if isinstance(processes, int) and isinstance(each, int) else 0
