"""The head of the page: verdicts, key figures, the comparison in one sentence, and the configuration."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from forebay.report.history import mean_of, state_seconds
from forebay.report.load import RunRecord
from forebay.report.panels import Cell, Note, Panel, Part, Table
from forebay.report.text import number, percent, seconds
from forebay.report.verdicts import verdict_of
from forebay.telemetry.verdict import Standing

_TITLES: Final[dict[Standing, str]] = {"good": "Good", "attention": "Could be better", "bad": "Held back"}

_MIN_REWARD_BATCHES: Final = 3


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """What is said first about a run.

    Args:
        name: The run.
        run_id: Its unique name.
        began: When it was created.
        ending: Whether it ended in order.
        standing: Whether somebody should do something.
        title: The standing in words.
        sentence: The verdict.
        life: What takes most of a token's life, and what would shorten it; empty if unknown.
        settings: Proposed settings, as they are written on a command line.
        facts: More about it, in a few words each.
        problems: Files that could not be read.
    """

    name: str
    run_id: str
    began: str
    ending: str
    standing: Standing
    title: str
    sentence: str
    life: str
    settings: tuple[str, ...]
    facts: tuple[str, ...]
    problems: tuple[str, ...]


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """A key figure: its name, its value for each run in words, and what it means."""

    name: str
    values: tuple[str, ...]
    meaning: str


def head_of(run: RunRecord) -> Head:
    """Return what is said first about a run."""
    verdict = verdict_of(run)
    facts = [f"forebay {run.versions.get('forebay', 'of unknown version')}"]
    facts += [f"commit {run.commit[:10]}{'+' * run.commit.endswith('+')}"] if run.commit else []
    facts += [f"{run.history.incarnation} resumes"] if run.history.incarnation else []
    return Head(
        name=run.name,
        run_id=run.run_id,
        began=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(run.created_s)),
        ending=run.ending,
        standing=verdict.standing,
        title=_TITLES[verdict.standing],
        sentence=verdict.sentence,
        life=verdict.life,
        settings=tuple(f"{name}={value:g}" for name, value in verdict.settings.items()),
        facts=tuple(facts),
        problems=(*run.problems, *run.samples.problems, *_torn(run)),
    )


def figures_of(runs: Sequence[RunRecord]) -> tuple[Figure, ...]:
    """Return the key figures of all runs: those of `summary.json`, or of the metrics while a run goes on."""
    tables = [_figures(run) for run in runs]
    meanings = {name: meaning for table in tables for name, (_, meaning) in table.items()}
    return tuple(
        Figure(name=name, values=tuple(table[name][0] for table in tables), meaning=meaning)
        for name, meaning in meanings.items()
    )


def comparison_of(runs: Sequence[RunRecord]) -> str:
    """Return how two runs compare, in one sentence; empty if there is nothing to say."""
    if len(runs) != 2:
        return ""
    first, second = runs
    rates = [_value(run, "fresh_tokens_per_s", "tokens_per_s") for run in runs]
    busy = [_value(run, "busy", "busy") for run in runs]
    if None in rates or None in busy or not rates[0]:
        return ""
    ratio = rates[1] / rates[0]  # type: ignore[operator]
    faster, slower, factor = (second, first, ratio) if ratio >= 1 else (first, second, 1 / max(ratio, 1e-9))
    return (
        f"{faster.name} trains {factor:.1f} times as many fresh tokens a second as {slower.name}: "
        f"{first.name} is busy {percent(busy[0])} of the time, {second.name} {percent(busy[1])}."
    )


def configuration_panel(runs: Sequence[RunRecord]) -> Panel:
    """Return the configuration, or what differs between two of them."""
    flats = [_flat(run.config) for run in runs]
    keys = list(dict.fromkeys(key for flat in flats for key in flat))
    parts: list[Part] = []
    if len(runs) > 1:
        differing = [key for key in keys if len({_shown(flat, key) for flat in flats}) > 1]
        parts.append(
            _settings_table("Settings that differ", runs, flats, differing)
            if differing
            else Note(text="All settings are equal.")
        )
    parts.append(_settings_table("All settings", runs, flats, keys, is_folded=True))
    packages = list(dict.fromkeys(name for run in runs for name in run.versions))
    versions = tuple((Cell(name), *(Cell(run.versions.get(name, "–")) for run in runs)) for name in packages)
    parts.append(
        Table(
            title="Versions",
            headers=("package", *(run.name for run in runs)),
            rows=versions,
            is_folded=True,
        )
    )
    return Panel(
        anchor="configuration",
        label="Configuration",
        title="Configuration",
        lead="As stored in manifest.json when the run was started or resumed.",
        parts=tuple(parts),
    )


def _figures(run: RunRecord) -> dict[str, tuple[str, str]]:
    wall_s = sum(state_seconds(run.history.buckets).values())
    first, last = _rewards(run)
    scores = [evaluation.reward for evaluation in run.evaluations if evaluation.reward is not None]
    rewards = f"{first:.3f} → {last:.3f}" if first is not None and last is not None else number(None)
    held_out = number(None) if not run.evaluations else "none scored"
    if scores:
        held_out = f"{scores[0]:.3f} → {scores[-1]:.3f}" if len(scores) > 1 else f"{scores[0]:.3f}"
    lost, repeated = _value(run, "lost", None), _value(run, "repeated", None)
    unbroken = number(None) if lost is None or repeated is None else f"{lost:.0f} / {repeated:.0f}"
    oldest = max((b.largest("staleness_max") or 0.0 for b in run.history.buckets), default=None)
    mean = _value(run, "staleness_mean", "staleness")
    staleness = f"{number(None if mean is None else round(mean, 2))} / {number(oldest)}"
    return {
        "Busy": (percent(_value(run, "busy", "busy")), "of the time inside compiled training programs"),
        "Goodput": (percent(_value(run, "goodput", "goodput")), "of what the bare step does alone"),
        "Fresh tokens": (
            f"{number(_value(run, 'fresh_tokens_per_s', 'tokens_per_s'))} /s",
            "trained per second",
        ),
        "Steps": (f"{run.history.num_steps:,} in {seconds(wall_s)}", "batches trained"),
        "Reward": (rewards, "training batches, at first → at last"),
        "Held-out reward": (
            held_out,
            "the only evaluation" if len(scores) == 1 else "evaluations, first → last",
        ),
        "Staleness": (staleness, "mean / oldest trained token, in versions"),
        "Lost / repeated": (unbroken, "trajectories; both must be 0"),
    }


def _rewards(run: RunRecord) -> tuple[float | None, float | None]:
    """Return the mean reward of the first and of the last batches, as many as a summary takes."""
    ends = max(_MIN_REWARD_BATCHES, int(run.setting("staleness.max_staleness", 0)) + 1)
    buckets = run.history.buckets
    first, last = mean_of(buckets[:ends], "reward"), mean_of(buckets[-ends:], "reward")
    return _value(run, "reward_first", None) or first, _value(run, "reward_last", None) or last


def _value(run: RunRecord, in_summary: str, in_metrics: str | None) -> float | None:
    """Return a figure of the summary, or its mean over the metrics while there is none."""
    value = None if run.summary is None or run.ending == "goes on" else run.summary.get(in_summary)
    if isinstance(value, int | float):
        return float(value)
    return None if in_metrics is None else mean_of(run.history.buckets, in_metrics)


def _torn(run: RunRecord) -> tuple[str, ...]:
    count = run.history.num_unreadable
    return (f"metrics.jsonl: {count} lines are not whole and were left out",) if count else ()


def _settings_table(
    title: str,
    runs: Sequence[RunRecord],
    flats: Sequence[dict[str, Any]],
    keys: Sequence[str],
    *,
    is_folded: bool = False,
) -> Table:
    rows = tuple((Cell(key), *(Cell(_shown(flat, key)) for flat in flats)) for key in keys)
    headers = ("setting", *(run.name for run in runs))
    return Table(title=title, headers=headers, rows=rows, is_folded=is_folded)


def _shown(flat: dict[str, Any], key: str) -> str:
    return "(absent)" if key not in flat else msgspec.json.encode(flat[key]).decode()


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat
