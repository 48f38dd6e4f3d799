"""The columns that charts draw: a value per bucket of batches, evaluation, or stretch of the actors' logs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import numpy as np

from forebay.report.history import Bucket
from forebay.report.load import RunRecord
from forebay.report.panels import Form, Line, RunTables, Source
from forebay.report.text import number, percent, seconds, size

Column = list[float | None]

# Means over the batches of a bucket, under their own names.
_MEANS: Final = (
    "busy",
    "goodput",
    "tokens_per_s",
    "reward",
    "ess",
    "clip_fraction",
    "cap_fraction",
    "rejected_fraction",
    "entropy",
    "k3",
    "reference_kl",
    "value.explained_variance",
    "value.mean",
    "value.target_mean",
    "logprob_mismatch",
    "grad_norm",
    "loss",
    "staleness",
    "buffer",
    "store.open_groups",
    "store.outstanding",
    "store.live_bytes",
    "store.retained_bytes",
    "fill",
    "step_s",
)
_LARGEST: Final = ("staleness_max", "compiles")
_PREFIXES: Final = ("latency.",)
_DIGITS: Final = 4


def tables_of(run: RunRecord) -> RunTables:
    """Return the tables of a run; a metric that no line has is left out."""
    begin_s = run.history.begin_s or run.created_s
    return RunTables(
        name=run.name,
        batches=_batches(run, begin_s),
        evaluations=_evaluations(run, begin_s),
        actors=_actors(run, begin_s),
    )


def has(run: RunTables, source: Source, column: str) -> bool:
    """Return whether a table has a column with a value in it."""
    return any(value is not None for value in column_of(run, source, column))


def column_of(run: RunTables, source: Source, column: str) -> Column:
    """Return a column; empty if there is none."""
    table: dict[str, Column] = getattr(run, source)
    return table.get(column, [])


def figures(runs: Sequence[RunTables], lines: Iterable[Line], form: Form) -> tuple[tuple[str, ...], ...]:
    """Return lines in figures: label, first, least, mean, largest and last value."""
    rows = []
    for line in lines:
        values = [v for v in column_of(runs[line.run], line.source, line.column) if v is not None]
        if values:
            picked = (values[0], min(values), sum(values) / len(values), max(values), values[-1])
            rows.append((line.label, *(written(value, form) for value in picked)))
    return tuple(rows)


def written(value: float | None, form: Form) -> str:
    """Return a value in words."""
    writers: dict[Form, Callable[[float | None], str]] = {
        "number": number,
        "percent": percent,
        "seconds": seconds,
        "bytes": size,
    }
    return writers[form](value)


def rounded(value: float | None) -> float | None:
    """Return a value with as many digits as a chart can show; None if it is not finite."""
    if value is None or not math.isfinite(value):
        return None
    if value == 0 or float(value).is_integer():
        return float(value)
    return round(value, max(0, _DIGITS - 1 - math.floor(math.log10(abs(value)))))


def _batches(run: RunRecord, begin_s: float) -> dict[str, Column]:
    buckets = run.history.buckets
    if not buckets:
        return {}
    names = [*_MEANS, *(n for n in sorted(run.history.names) if n.startswith(_PREFIXES))]
    table = {name: [rounded(bucket.mean(name)) for bucket in buckets] for name in names}
    table |= {name: [rounded(bucket.largest(name)) for bucket in buckets] for name in _LARGEST}
    groups = float(run.stored_groups)
    table["zero_spread"] = [
        rounded(_share_of(bucket.mean("zero_spread_groups"), groups)) for bucket in buckets
    ]
    table["masked"] = [rounded(_masked_share(bucket)) for bucket in buckets]
    kept = {name: column for name, column in table.items() if any(value is not None for value in column)}
    times: Column = [round(bucket.time_s - begin_s, 2) for bucket in buckets]
    return {"time": times, "step": [float(bucket.step) for bucket in buckets], **kept}


def _evaluations(run: RunRecord, begin_s: float) -> dict[str, Column]:
    scored = [evaluation for evaluation in run.evaluations if evaluation.reward is not None]
    if not scored:
        return {}
    return {
        "time": [round(max(0.0, evaluation.time_s - begin_s), 2) for evaluation in scored],
        "step": [float(evaluation.step) for evaluation in scored],
        "reward": [rounded(evaluation.reward) for evaluation in scored],
        "low": [rounded(evaluation.reward_low) for evaluation in scored],
        "high": [rounded(evaluation.reward_high) for evaluation in scored],
    }


def _actors(run: RunRecord, begin_s: float) -> dict[str, Column]:
    bins = [b for b in run.actors.bins if b.time_s >= begin_s] or list(run.actors.bins)
    if not bins:
        return {}
    names = sorted({name for one in bins for name in one.figures})
    ends_s = [bucket.time_s for bucket in run.history.buckets]
    steps = [float(bucket.step) for bucket in run.history.buckets]
    table: dict[str, Column] = {
        "time": [round(one.time_s - begin_s, 2) for one in bins],
        "step": [rounded(_interpolated(one.time_s, ends_s, steps)) for one in bins],
        "live": [rounded(one.live) for one in bins],
    }
    return table | {name: [rounded(one.figures.get(name)) for one in bins] for name in names}


def _masked_share(bucket: Bucket) -> float | None:
    masked, fresh = bucket.mean("masked_tokens"), bucket.mean("fresh_tokens")
    return None if masked is None or fresh is None else _share_of(masked, masked + fresh)


def _share_of(part: float | None, whole: float) -> float | None:
    return None if part is None or whole <= 0 else part / whole


def _interpolated(x: float, xs: Sequence[float], ys: Sequence[float]) -> float | None:
    """Return where `x` lies on a line through points; the ends go on flat."""
    if not xs:
        return None
    return float(np.interp(x, xs, ys))
