"""Panels about episodes: how long they were at each stage, and what failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from forebay.report.charts import RUN_COLORS
from forebay.report.history import Bucket, totals_under, weighted_mean
from forebay.report.load import RunRecord
from forebay.report.panels import Cell, Note, Panel, Part, Range, Ranges, Table
from forebay.report.text import number, percent

_PERCENTILES: Final = ("p50", "p95", "p99")
_MAX_TURNS: Final = 40
_STAGES: Final = (
    ("started", "lengths.started"),
    ("accepted", "lengths.accepted"),
    ("trained", "lengths.trained"),
)
# Counters of failures, by the prefix of their name: in the store's, which outlive restarts, and the actors'.
_STORE_FAILURES: Final[Mapping[str, str]] = {
    "store.errors.": "attempt failed",
    "store.dropped.": "group dropped",
    "store.rejected.": "group rejected",
    "store.trajectories.rejected.": "trajectory rejected",
    "store.members.": "member left out",
}
_STORE_COUNTERS: Final[Mapping[str, str]] = {
    "store.timeouts": "episode ended by a deadline",
    "store.expired": "lease expired",
    "store.retried": "member tried again",
    "store.late": "result came late",
    "store.duplicate": "result came twice",
}
_ACTOR_FAILURES: Final[Mapping[str, str]] = {
    "failures.": "episode failed",
    "rejected.": "episode refused",
    "blocked.": "event loop blocked by",
}
_ACTOR_COUNTERS: Final[Mapping[str, str]] = {
    "generator_errors": "generator did not answer",
    "store_errors": "store did not answer",
    "leases_lost": "lease lost",
    "refused.old_version": "generator served an old version",
    "report_errors": "statistics not written",
}


def lengths_panel(runs: Sequence[RunRecord]) -> Panel:
    """Return how long episodes were when they started, were accepted, and were trained."""
    found = []
    for index, run in enumerate(runs):
        for color, (stage, name) in enumerate(_STAGES):
            values = _length_percentiles(run, name)
            if values is not None:
                label = f"{run.name}: {stage}" if len(runs) > 1 else stage
                found.append((label, values, RUN_COLORS[index] if len(runs) > 1 else color))
    top = max((values[-1] for _, values, _ in found), default=0.0)
    rows = tuple(
        Range(
            label=label,
            p50=values[0] / top,
            p95=values[1] / top,
            p99=values[2] / top,
            words=(number(round(values[0], 1)), number(round(values[1], 1)), number(round(values[2], 1))),
            color=color,
        )
        for label, values, color in found
        if top > 0
    )
    recorded = {label.split(": ")[-1] for label, _, _ in found}
    missing = [stage for stage, _ in _STAGES if stage not in recorded]
    parts: list[Part] = []
    if rows:
        title = "Sampled tokens of an episode"
        parts.append(Ranges(title=title, unit="tokens", top=number(round(top)), rows=rows))
    if missing:
        parts.append(Note(text=f"Lengths of episodes {', '.join(missing)}: not recorded."))
    parts.append(_turns_table(runs))
    return Panel(
        anchor="lengths",
        label="Lengths",
        title="Lengths: started, accepted, trained",
        lead="If trained episodes are shorter than started ones, slow tasks are starved: discards and "
        "deadlines bias what is learned.",
        parts=tuple(parts),
    )


def failures_panel(runs: Sequence[RunRecord]) -> Panel:
    """Return what failed, by cause."""
    counts = [_failures(run) for run in runs]
    causes = sorted(
        {cause for found in counts for cause in found}, key=lambda c: -max(f.get(c, 0) for f in counts)
    )
    top = max((count for found in counts for count in found.values()), default=0) or 1
    parts: list[Part] = []
    if causes:
        rows = tuple(
            (Cell(cause), *(Cell(number(found.get(cause, 0)), found.get(cause, 0) / top) for found in counts))
            for cause in causes
        )
        headers = ("cause", *(run.name for run in runs))
        parts.append(Table(title="Failures and refusals", headers=headers, rows=rows))
    else:
        parts.append(Note(text="Nothing failed, timed out, or was refused."))
    if (finishes := _finish_table(runs)) is not None:
        parts.append(finishes)
    return Panel(
        anchor="failures",
        label="Failures",
        title="What failed, by cause",
        lead="Everything that was not trained is counted under a named reason. Lost and repeated "
        "trajectories are defects, and are 0.",
        parts=tuple(parts),
    )


def _length_percentiles(run: RunRecord, name: str) -> tuple[float, ...] | None:
    """Return the percentiles of a stage: from the batches, or from what the actors logged."""
    buckets, logged = run.history.buckets, run.actors.figures
    readings = (
        [weighted_mean(buckets, f"{name}.{which}", "trajectories") for which in _PERCENTILES],
        [logged.get(f"{name}.{which}") for which in _PERCENTILES],
        # Where the lengths of all that started were not logged, those that left a trajectory stand for them.
        [logged.get(f"action_tokens.{which}") for which in _PERCENTILES] if name == "lengths.started" else [],
    )
    for values in readings:
        known = tuple(value for value in values if value is not None)
        if len(known) == len(_PERCENTILES):
            return known
    return None


def _turns_table(runs: Sequence[RunRecord]) -> Part:
    """Return sampled and trained tokens by turn: late turns must not be starved."""
    sampled = [_by_turn(run.history.buckets, "action_tokens.turn.") for run in runs]
    trained = [_by_turn(run.history.buckets, "fresh_tokens.turn.") for run in runs]
    turns = sorted({turn for found in sampled for turn in found})
    if not turns:
        return Note(text="Tokens by turn: not recorded by this run.")
    rows = []
    for turn in turns[:_MAX_TURNS]:
        cells = []
        for of_run, fresh in zip(sampled, trained, strict=True):
            count = of_run.get(turn, 0.0)
            share = fresh.get(turn, 0.0) / count if count else 0.0
            cells += [Cell(number(count)), Cell(percent(share) if count else "–", share)]
        rows.append((Cell(f"turn {turn + 1}"), *cells))
    several = len(runs) > 1
    headers = [
        f"{run.name}: {what}" if several else what for run in runs for what in ("tokens sampled", "trained")
    ]
    return Table(
        title="Tokens by turn of the episode", headers=("turn", *headers), rows=tuple(rows), is_folded=True
    )


def _by_turn(buckets: Sequence[Bucket], prefix: str) -> dict[int, float]:
    return {int(turn): count for turn, count in totals_under(buckets, prefix).items() if turn.isdigit()}


def _failures(run: RunRecord) -> dict[str, int]:
    """Return counts by cause: the newest of the store's counters, and what the actors counted."""
    last = run.history.buckets[-1].stats if run.history.buckets else {}
    stored = {name: int(stat.last) for name, stat in last.items()}
    found = _named(stored, _STORE_COUNTERS, _STORE_FAILURES)
    found |= _named(run.actors.counters, _ACTOR_COUNTERS, _ACTOR_FAILURES)
    found["update not finite"] = int(sum(bucket.total("nonfinite_updates") for bucket in run.history.buckets))
    found["batch trained again after a crash"] = run.history.num_repeated
    return {cause: count for cause, count in found.items() if count > 0}


def _named(
    counters: Mapping[str, int], exact: Mapping[str, str], prefixes: Mapping[str, str]
) -> dict[str, int]:
    """Return counters under the names of the page; what none of them names is left out."""
    found = {exact[name]: count for name, count in counters.items() if name in exact}
    for name, count in counters.items():
        prefix = next((p for p in prefixes if name.startswith(p)), None)
        if prefix is not None:
            found[f"{prefixes[prefix]}: {name.removeprefix(prefix)}"] = count
    return found


def _finish_table(runs: Sequence[RunRecord]) -> Part | None:
    counts = []
    for run in runs:
        trained = totals_under(run.history.buckets, "finish.")
        logged = {
            name.removeprefix("finished."): float(count)
            for name, count in run.actors.counters.items()
            if name.startswith("finished.")
        }
        counts.append(trained or logged)
    finishes = sorted({name for found in counts for name in found})
    if not finishes:
        return None
    totals = [sum(found.values()) or 1.0 for found in counts]
    rows = tuple(
        (
            Cell(name),
            *(
                Cell(
                    f"{found.get(name, 0):,.0f} · {percent(found.get(name, 0) / total)}",
                    found.get(name, 0) / total,
                )
                for found, total in zip(counts, totals, strict=True)
            ),
        )
        for name in finishes
    )
    return Table(title="How episodes ended", headers=("finish", *(run.name for run in runs)), rows=rows)
