"""Where trained tokens spent their lives: by stage and environment, and whether Little's law agrees."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from forebay.report.load import RunRecord
from forebay.report.panels import BarRow, Bars, Cell, Note, Panel, Part, Segment, Table
from forebay.report.text import NOT_RECORDED, number, percent, seconds
from forebay.report.verdicts import life_of, verdict_of
from forebay.telemetry.life_log import LifeTable
from forebay.telemetry.life_summary import LifeFigures, StageFigures, life_figures
from forebay.telemetry.life_table import Life
from forebay.telemetry.little import Balance, Flow, balance, balances
from forebay.telemetry.residence import TOTAL, Stage

_RESIDUAL: Final = "residual"
# No environment can be called so.
_ALL: Final = "all environments"
# Shares and seconds that are written as 0.
_NOTHING: Final = 5e-5
STAGE_NAMES: Final[Mapping[str, str]] = {
    "admission": "waiting for an actor",
    "retries": "failed attempts",
    "reset": "environment: reset",
    "generator_queue": "waiting for the generator",
    "generating": "generating",
    "environment": "environment: steps",
    "other": "between processes",
    "group": "waiting for its group",
    "buffer": "in the buffer",
    "packing": "packing",
    "handover": "waiting for the step before",
    "training": "training",
    _RESIDUAL: "residual",
    TOTAL: "whole life",
}
_QUEUE_NAMES: Final[Mapping[str, str]] = {
    "store": "groups, dispatch to journal",
    "episodes": "episodes, claim to end",
    "reset": "episodes in reset",
    "generator": "episodes in and around the generator",
    "environment": "episodes in environment steps",
    "buffer": "groups in the buffer",
    "packing": "batches being packed",
    "handover": "batches ready for the step",
    "training": "batches in the step",
}
# Actors report every 5 s: at both ends of a run, what they saw last may be missing.
_MISSED_S: Final = 10.0
_WORDS: Final[Mapping[bool | None, str]] = {True: "agrees", False: "off", None: "too few samples"}
# The stages that a bar shows together: there are eight colors.
_BAR: Final[Mapping[str, tuple[Stage, ...]]] = {
    "waiting for an actor": ("admission", "retries"),
    "environment": ("reset", "environment"),
    "waiting for the generator": ("generator_queue",),
    "generating": ("generating",),
    "between processes": ("other",),
    "waiting for its group": ("group",),
    "in the buffer, packed": ("buffer", "packing", "handover"),
    "training": ("training",),
}
# What the actors' gauges count, and the stages that it corresponds to.
_ACTOR_STAGES: Final[Mapping[str, tuple[str, ...]]] = {
    "reset": ("reset",),
    "generator": ("generator_queue", "generating", "other"),
    "environment": ("environment",),
}


def life_panel(runs: Sequence[RunRecord]) -> Panel:
    """Return where a trained token spent its life, by stage and environment."""
    said = [(run, verdict_of(run).life) for run in runs]
    sentences = [f"{run.name}: {life}" if len(runs) > 1 else life for run, life in said if life]
    parts: list[Part] = [Note(text=f"{sentence}.") for sentence in sentences]
    parts += _bars(runs)
    for run in runs:
        parts += _tables(run, f"{run.name}: " if len(runs) > 1 else "")
    parts += [Note(text=f"Life of a token: not recorded by {run.name}.") for run in runs if not _known(run)]
    return Panel(
        anchor="life",
        label="Life of a token",
        title="Where a trained token spent its life",
        lead="From the dispatch of its group to the end of its step. A token lives as long as the episode "
        "that it is part of and everything before and after it; every trained token weighs the same. "
        "The longest part is where to save time.",
        parts=tuple(parts),
    )


def little_of(run: RunRecord) -> tuple[Balance, ...]:
    """Return what Little's law says of the queues of a run, those that its actors looked at included."""
    table = run.lives
    if table is None:
        return ()
    found = {one.queue: one for one in balances(table.flows, table.wall_s)}
    for place, flow in _actor_flows(run.actors.inside, table.whole).items():
        if (one := balance(place, flow, table.wall_s, _MISSED_S)) is not None:
            found[place] = one
    return tuple(found[queue] for queue in _QUEUE_NAMES if queue in found)


def _actor_flows(inside: Mapping[str, Flow], life: Life) -> dict[str, Flow]:
    """Return what passed through the places where actors count episodes, with what they saw there."""
    flows: dict[str, Flow] = {}
    for place, stages in _ACTOR_STAGES.items():
        known = [life.stages[stage] for stage in stages if stage in life.stages]
        if place in inside and known:
            spent_s = sum(tally.trajectory_s for tally in known)
            flow = Flow(life.trajectories, spent_s)
            flow.merge(inside[place])
            flows[place] = flow
    return flows


def _bars(runs: Sequence[RunRecord]) -> list[Part]:
    lives = [(label, means) for run in runs for label, means in _means(run, several=len(runs) > 1) if means]
    longest_s = max((sum(means.values()) for _, means in lives), default=0.0)
    if not longest_s > 0:
        return []
    rows = tuple(
        BarRow(
            label=label,
            total=seconds(sum(means.values())),
            segments=tuple(
                Segment(
                    label=name,
                    value=f"{seconds(spent_s)} · {percent(spent_s / sum(means.values()))}",
                    share=spent_s / longest_s,
                    color=index,
                )
                for index, (name, stages) in enumerate(_BAR.items())
                if (spent_s := sum(means.get(stage, 0.0) for stage in stages))
            ),
        )
        for label, means in lives
    )
    return [Bars(title="Mean life of a trained token", rows=rows)]


def _means(run: RunRecord, *, several: bool) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield a run's mean lives: of all environments, then of each if there are several."""
    if run.lives is None:
        yield run.name, life_of(run.history.buckets)
        return
    environments = run.lives.environments
    yield run.name, _token_means(run.lives.whole)
    if len(environments) > 1:
        for name in sorted(environments):
            yield f"{run.name}: {name}" if several else name, _token_means(environments[name])


def _token_means(life: Life) -> dict[str, float]:
    if not life.tokens:
        return {}
    return {stage: life.stages[stage].token_s / life.tokens for stage in life.recorded}


def _tables(run: RunRecord, prefix: str) -> Iterator[Part]:
    table = run.lives
    if table is None or not table.whole.tokens:
        return
    life = table.whole
    columns = {name: life_figures(mine, life) for name, mine in sorted(table.environments.items())}
    if len(columns) != 1:
        columns = {_ALL: life_figures(life, life), **columns}
    yield _overview(f"{prefix}Share of the life, and mean over trained tokens", columns)
    for name, figures in columns.items():
        yield _details(f"{prefix}{name}: percentiles by stage", figures)
    yield from _little(run, prefix)
    yield from _remarks(table, prefix)


def _overview(title: str, columns: Mapping[str, LifeFigures]) -> Table:
    rows = []
    for stage in _stages(columns):
        cells = [_share(figures.stages.get(stage)) for figures in columns.values()]
        rows.append((Cell(STAGE_NAMES.get(stage, stage)), *cells))
    counts = [
        Cell(f"{figures.tokens:,} tokens of {figures.trajectories:,} trajectories")
        for figures in columns.values()
    ]
    rows.append((Cell("recorded"), *counts))
    return Table(title=title, headers=("stage", *columns), rows=tuple(rows))


def _stages(columns: Mapping[str, LifeFigures]) -> list[str]:
    found = {stage for figures in columns.values() for stage in figures.stages}
    return [stage for stage in STAGE_NAMES if stage in found or stage not in ("retries", _RESIDUAL, TOTAL)]


def _share(figures: StageFigures | None) -> Cell:
    if figures is None:
        return Cell(NOT_RECORDED)
    share = 0.0 if abs(figures.share) < _NOTHING else figures.share
    return Cell(f"{percent(share)} · {_time(figures.mean_s)}", min(max(share, 0.0), 1.0))


def _details(title: str, figures: LifeFigures) -> Table:
    rows = tuple(
        (
            Cell(STAGE_NAMES.get(stage, stage)),
            Cell(_time(one.mean_s)),
            Cell(_percentile(stage, one.p50_s)),
            Cell(_percentile(stage, one.p95_s)),
            Cell(_time(one.trajectory_mean_s)),
            Cell(_percentile(stage, one.trajectory_p50_s)),
            Cell(_percentile(stage, one.trajectory_p95_s)),
        )
        for stage, one in figures.stages.items()
    )
    headers = (
        "stage",
        *("tokens: mean", "half within", "95 % within"),
        *("trajectories: mean", "half within", "95 % within"),
    )
    return Table(title=title, headers=headers, rows=rows, is_folded=True)


def _percentile(stage: str, value_s: float | None) -> str:
    return "–" if stage == _RESIDUAL else _time(value_s)


def _time(value_s: float | None) -> str:
    if value_s is not None and abs(value_s) < _NOTHING:
        return seconds(0.0)
    if value_s is not None and value_s < 0:
        return f"−{seconds(-value_s)}"
    return seconds(value_s)


def _little(run: RunRecord, prefix: str) -> Iterator[Part]:
    found = little_of(run)
    if not found:
        yield Note(text=f"{prefix}Little's law: not recorded.")
        return
    rows = tuple(
        (
            Cell(_QUEUE_NAMES.get(one.queue, one.queue)),
            Cell(number(one.inside)),
            Cell(number(one.rate_per_s)),
            Cell(_time(one.time_s)),
            Cell(number(one.rate_per_s * one.time_s)),
            Cell("–" if one.ratio is None else f"{one.ratio:.2f} (± {one.tolerance:.2f})"),
            Cell(_WORDS[one.agrees]),
        )
        for one in found
    )
    yield Table(
        title=f"{prefix}Little's law: what was seen inside against what passed through",
        headers=("queue", "inside, sampled", "through, a second", "time inside", "rate × time", "ratio", ""),
        rows=rows,
    )
    for one in found:
        if one.agrees is False:
            yield Note(text=f"{prefix}{_QUEUE_NAMES.get(one.queue, one.queue)}: {one.meaning}.")


def _remarks(table: LifeTable, prefix: str) -> Iterator[Part]:
    clamped = table.whole.clamped
    if clamped:
        counts = ", ".join(
            f"{STAGE_NAMES.get(name, name)} {count}" for name, count in sorted(clamped.items())
        )
        yield Note(
            text=f"{prefix}Clocks disagreed: of {table.whole.trajectories} trajectories a stage would have "
            f"been negative, or absurdly long, and was cut ({counts}). The residual holds the difference."
        )


def _known(run: RunRecord) -> bool:
    return run.lives is not None or bool(life_of(run.history.buckets))
