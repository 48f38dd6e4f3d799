"""Panels about the learner: its time, how much of it was useful, and what it learned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from forebay.report.charts import Axis, Curve, Plot, charts
from forebay.report.history import state_seconds, totals_under
from forebay.report.load import RunRecord
from forebay.report.panels import (
    BarRow,
    Bars,
    Cell,
    Note,
    Panel,
    Part,
    RunTables,
    Segment,
    StripRow,
    Strips,
    Table,
)
from forebay.report.strip import STACK, Strip, build_strip, paths
from forebay.report.text import percent, seconds

_NUM_TICKS: Final = 5
_WAITS: Final = {
    "episodes": "episodes that still run",
    "actors": "actors to take up groups",
    "credit": "credit to dispatch more",
    "urgent": "one group that may not be overtaken",
    "packing": "packing",
    "handover": "handing a batch over",
}

_SHARE: Final = Axis("share", "percent", 0.0, 1.0)
_SHARE_OF_FRESH: Final = Axis("share of fresh tokens", "percent", 0.0)
_NATS: Final = Axis("nats per token", low=0.0)
_USE: Final = (
    Plot(
        "busy",
        "Busy and goodput",
        Axis("share of time", "percent", 0.0, 1.0),
        (Curve("busy", "busy"), Curve("goodput", "goodput")),
    ),
    Plot(
        "rate",
        "Fresh tokens trained",
        Axis("tokens per second", low=0.0),
        (Curve("tokens_per_s", "fresh tokens"),),
    ),
)
_LEARNING: Final = (
    Plot(
        "reward",
        "Reward",
        Axis("mean reward"),
        (
            Curve("reward", "training batches"),
            Curve("reward", "held-out tasks, 95 % interval", "evaluations", "low", "high"),
        ),
    ),
    Plot(
        "ess",
        "Effective sample size",
        Axis("share of fresh tokens", "percent", None, 1.0),
        (Curve("ess", "ESS"),),
    ),
    Plot(
        "clip",
        "Tokens without their full gradient",
        _SHARE_OF_FRESH,
        (
            Curve("clip_fraction", "clipped"),
            Curve("cap_fraction", "weight capped"),
            Curve("rejected_fraction", "rejected"),
        ),
    ),
    Plot("entropy", "Entropy of the policy", _NATS, (Curve("entropy", "entropy"),)),
    Plot("kl", "Distance from the policy that acted", _NATS, (Curve("k3", "KL(behavior ‖ current)"),)),
    Plot(
        "reference_kl",
        "Distance from the reference policy",
        _NATS,
        (Curve("reference_kl", "KL(current ‖ reference)"),),
        is_optional=True,
    ),
    Plot(
        "critic",
        "What the critic explains of the returns",
        Axis("share of their variance", "percent", None, 1.0),
        (Curve("value.explained_variance", "explained variance"),),
        is_optional=True,
    ),
    Plot(
        "value",
        "What the critic expects",
        Axis("mean over tokens, in units of return"),
        (Curve("value.mean", "value"), Curve("value.target_mean", "its target")),
        is_optional=True,
    ),
    Plot("grad", "Gradient norm before clipping", Axis("norm", low=0.0), (Curve("grad_norm", "norm"),)),
)
_BATCHES: Final = (
    Plot("fill", "Fill", _SHARE, (Curve("fill", "fill"),)),
    Plot(
        "lost",
        "Sampled in vain",
        _SHARE,
        (Curve("zero_spread", "groups with equal rewards"), Curve("masked", "sampled tokens not trained")),
    ),
    Plot(
        "compiles",
        "Programs compiled since warm-up",
        Axis("programs", low=0.0, high=1.0),
        (Curve("compiles", "programs"),),
    ),
    Plot("step", "Time of a step", Axis("time", "seconds", 0.0), (Curve("step_s", "step"),)),
)


def time_panel(runs: Sequence[RunRecord]) -> Panel:
    """Return where the learner's time went."""
    strips = [(run, build_strip(run.history)) for run in runs]
    longest_s = max((strip.duration_s for _, strip in strips if strip), default=0.0)
    rows = tuple(_strip_row(run, strip, longest_s) for run, strip in strips if strip)
    parts: list[Part] = [Strips(rows=rows, states=STACK)] if rows else []
    parts += [
        Note(text=f"{run.name}: no batch was trained, so there is no strip.")
        for run, strip in strips
        if strip is None
    ]
    if rows:
        parts.append(_shares_table(runs))
        parts += _causes(runs)
    return Panel(
        anchor="time",
        label="Time",
        title="Where the learner's time went",
        lead="Every second of the learner belongs to one state. Only “computing” trains; the more of "
        "the strip it fills, the better.",
        parts=tuple(parts),
    )


def use_panel(tables: Sequence[RunTables]) -> Panel:
    """Return how busy the learner was, and with how much use."""
    return Panel(
        anchor="busy",
        label="Busy",
        title="Busy, and with what use",
        lead="Busy is time inside compiled training programs. Goodput is what of it the fresh tokens "
        "would have needed on full rows alone: padding, masking and contention lower it.",
        parts=charts(tables, _USE),
    )


def learning_panel(tables: Sequence[RunTables]) -> Panel:
    """Return reward, evaluation, and the health of the updates."""
    return Panel(
        anchor="learning",
        label="Learning",
        title="What was learned",
        lead="The first batches hold the groups that came back first, which are short and easy: "
        "held-out tasks are the fairer figure.",
        parts=charts(tables, _LEARNING),
    )


def batches_panel(runs: Sequence[RunRecord], tables: Sequence[RunTables]) -> Panel:
    """Return how full the batches were, what was masked, and whether programs were compiled."""
    return Panel(
        anchor="batches",
        label="Batches",
        title="What the batches were made of",
        lead="Fill is real tokens over slots. Groups whose rewards are equal have advantage 0 and "
        "teach nothing. After warm-up, nothing may compile.",
        parts=(*charts(tables, _BATCHES), _masked_table(runs)),
    )


def _strip_row(run: RunRecord, strip: Strip, longest_s: float) -> StripRow:
    states = state_seconds(run.history.buckets)
    wall_s = sum(states.values()) or 1.0
    said = ", ".join(f"{state} {percent(states[state] / wall_s)}" for state in STACK if states[state])
    limit = run.setting("staleness.max_staleness")
    return StripRow(
        name=run.name,
        detail=f"max_staleness {limit}" if limit is not None else "",
        paths=tuple(paths(strip).items()),
        num_columns=len(strip.columns),
        width=strip.duration_s / longest_s,
        ticks=tuple(seconds(strip.duration_s * i / (_NUM_TICKS - 1)) for i in range(_NUM_TICKS)),
        summary=f"Time strip of {run.name} over {seconds(strip.duration_s)}: {said}",
    )


def _shares_table(runs: Sequence[RunRecord]) -> Table:
    of_run = [state_seconds(run.history.buckets) for run in runs]
    walls_s = [sum(states.values()) or 1.0 for states in of_run]
    rows = [
        (
            Cell(state),
            *(
                Cell(f"{percent(states[state] / wall_s)} · {seconds(states[state])}", states[state] / wall_s)
                for states, wall_s in zip(of_run, walls_s, strict=True)
            ),
        )
        for state in STACK
    ]
    return Table(
        title="Time by state",
        headers=("state", *(run.name for run in runs)),
        rows=tuple(rows),
    )


def _causes(runs: Sequence[RunRecord]) -> list[Part]:
    """Return what the learner waited for, where a run recorded it."""
    found = [(run, totals_under(run.history.buckets, "wait.")) for run in runs]
    causes = list(
        dict.fromkeys([*_WAITS, *(name.removesuffix("_s") for _, waited in found for name in waited)])
    )
    waits = [
        (run, {cause: waited.get(f"{cause}_s", 0.0) for cause in causes}) for run, waited in found if waited
    ]
    longest_s = max((sum(waited.values()) for _, waited in waits), default=0.0)
    rows = tuple(
        BarRow(
            label=run.name,
            total=seconds(sum(waited.values())),
            segments=tuple(
                Segment(
                    label=_WAITS.get(cause, cause), value=seconds(value), share=value / longest_s, color=index
                )
                for index, (cause, value) in enumerate(waited.items())
                if value > 0
            ),
        )
        for run, waited in waits
        if longest_s
    )
    return [Bars(title="What the learner waited for while it starved", rows=rows)] if rows else []


def _masked_table(runs: Sequence[RunRecord]) -> Part:
    counts = [totals_under(run.history.buckets, "masked.") for run in runs]
    fresh = [sum(bucket.total("fresh_tokens") for bucket in run.history.buckets) for run in runs]
    reasons = sorted({reason for masked in counts for reason in masked})
    if not any(fresh):
        return Note(text="Tokens: not recorded by this run.")
    sampled = [sum(masked.values()) + trained for masked, trained in zip(counts, fresh, strict=True)]
    rows = [(Cell("trained"), *(_tokens(t, n) for t, n in zip(fresh, sampled, strict=True)))]
    rows += [
        (
            Cell(f"masked: {reason}"),
            *(_tokens(masked.get(reason, 0.0), n) for masked, n in zip(counts, sampled, strict=True)),
        )
        for reason in reasons
    ]
    return Table(
        title="Sampled tokens, by what became of them",
        headers=("tokens", *(run.name for run in runs)),
        rows=tuple(rows),
    )


def _tokens(count: float, whole: float) -> Cell:
    share = count / whole if whole else 0.0
    return Cell(f"{count:,.0f} · {percent(share)}", share)
