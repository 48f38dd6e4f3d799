"""The page with the table of predictions and measurements, and its picture."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.prediction_study.comparing import TOLERANCES, Measured, Prediction, Verdict, compare
from benchmarks.prediction_study.machinery import BLOCK_S
from benchmarks.prediction_study.settings import Setting
from benchmarks.prose import markdown
from forebay.planner.profile import LearnerProfile

_TITLE: Final = "# How near predictions come"
_COLUMNS: Final = {"busy": "busy", "goodput": "goodput", "steps_per_h": "steps/h", "staleness": "staleness"}

_CHANGES: Final = """\
## What was changed after which look

The simulator was compared with the settings called `bench-…` in `benchmarks/prediction_study/settings.py`
while it was worked on. Four of the table (`wait-light-4`, `limited-4`, `mask-heavy-4`, `sync-short-8`) were
run once on a loaded machine; afterwards settings were changed (longer runs, lighter tails, a larger model, so
that chance weighs less), and the simulator was not.

Then all sixteen were predicted and run on a loaded machine, and 9 held. The causes of the misses were looked
for in those runs, and four were found. In the simulation, the wait for the end of a decoding block counted as
time in a slot, where a full generator has no such wait; a full generator served first who came first, where
the product goes on with the episodes that it knows; and steps went by the number of trajectories, where the
product packs their tokens into micro-batches. And the summary of a run timed the bare step on padded rows,
and so called more of its work useful than was. All four were mended, which left no number to be chosen, and
the new predictions were compared with the runs of that table. So the settings are not unseen any more; but
the table above is of a profile measured anew, and of runs that began after their predictions were written.

After these were mended 11 held. What missed then was the time of a step after a rest, in runs that often
wait; the simulator was right once it was told that time. The learner was mended, not the simulator: it keeps
the memory of its temporary values, and a rest costs nothing any more (decision 0064). In the runs of
2026-11-30 10 held: busy missed twice and goodput six times, as each run timed its bare step in one moment of
a shared machine, slow or not. Later runs keep the best of two, at their beginning and at their end."""


def write_page(
    path: Path,
    settings: Sequence[Setting],
    predictions: Sequence[Prediction],
    measured: Sequence[Measured],
    learner: LearnerProfile,
    num_layers: int,
) -> None:
    """Write the page.

    Args:
        path: The Markdown file.
        settings: What was run.
        predictions: What was said before, in the same order.
        measured: What came of it.
        learner: What the predictions took the learner's steps from.
        num_layers: Blocks of the model.
    """
    verdicts = [
        compare(said.figures, found.figures) for said, found in zip(predictions, measured, strict=True)
    ]
    rows = list(zip(settings, predictions, measured, verdicts, strict=True))
    path.write_text(
        "\n".join(
            [
                _TITLE,
                "",
                *_head(measured, verdicts),
                *_table(rows),
                "",
                *_rest(rows, regimes(learner), num_layers),
            ]
        )
    )


def _head(measured: Sequence[Measured], verdicts: Sequence[list[Verdict]]) -> list[str]:
    holding = sum(all(one.holds for one in each) for each in verdicts)
    cells = [one for each in verdicts for one in each]
    inside = sum(0.3 <= one.figures.busy <= 0.9 for one in measured)
    given_step = sum(all(v.holds for v in compare(one.given_step, one.figures)) for one in measured)
    by_figure = ", ".join(
        f"{label} {sum(v.holds for v in cells if v.figure == name)} of {len(verdicts)}"
        for name, label in _COLUMNS.items()
    )
    return markdown(
        f"""
Written by `benchmarks/prediction.py --write`: what `forebay simulate` said before a run, and what the run
came to. A prediction holds if busy and goodput are within 5 points, steps per hour within 10 % and the mean
staleness within half a version.

**{holding} of {len(verdicts)} settings hold in all four figures, {sum(v.holds for v in cells)} of
{len(cells)} figures do** ({by_figure}). {inside} of the runs are busy between 0.3 and 0.9. Largest miss:
{_largest(verdicts)}. Told afterwards how long the steps of each run took, the simulation holds in
{given_step} of {len(verdicts)} settings.
"""
    )


def _largest(verdicts: Sequence[list[Verdict]]) -> str:
    parts = []
    for name, label in _COLUMNS.items():
        off = max((one.off for each in verdicts for one in each if one.figure == name), key=abs)
        parts.append(f"{label} {_off(name, off)}")
    return ", ".join(parts)


def _table(rows: Sequence[tuple[Setting, Prediction, Measured, list[Verdict]]]) -> list[str]:
    lines = [
        "| setting | batch | S | rule | busy: said, found | goodput | steps/h | staleness | step | holds |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for setting, said, run, verdicts in rows:
        found = {one.figure: one for one in verdicts}
        cells = [
            setting.name,
            f"{setting.groups} x {setting.group_size}",
            str(setting.max_staleness),
            setting.on_stale if setting.max_staleness else "sync",
            *(_cell(found[name], said) for name in TOLERANCES),
            f"{said.figures.step_s:.3f}, {run.figures.step_s:.3f}",
            "yes" if all(one.holds for one in verdicts) else f"{sum(one.holds for one in verdicts)} of 4",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _cell(verdict: Verdict, said: Prediction) -> str:
    form = {"busy": "{:.3f}", "goodput": "{:.3f}", "steps_per_h": "{:.0f}", "staleness": "{:.2f}"}[
        verdict.figure
    ]
    spread = f" ±{form.format(said.spread[verdict.figure])}"
    text = f"{form.format(verdict.predicted)}{spread}, {form.format(verdict.measured)}"
    return text if verdict.holds else f"**{text}** ({_off(verdict.figure, verdict.off)})"


def _off(figure: str, off: float) -> str:
    if figure == "steps_per_h":
        return f"{off:+.1%}"
    return f"{off:+.2f}" if figure == "staleness" else f"{100.0 * off:+.1f} points"


def regimes(learner: LearnerProfile) -> str:
    """Return what steps of each size took alone and in runs, as text; micro-batches are taken largest first.

    Args:
        learner: With shapes, and steps by slots.
    """
    assert learner.apply_s is not None
    largest_first = sorted(learner.buckets, key=lambda one: one.rows * one.length, reverse=True)
    parts = []
    for level in learner.packed:
        alone_s, left = learner.apply_s.mean, level.slots
        for bucket in largest_first:
            calls, left = divmod(left, bucket.rows * bucket.length)
            alone_s += calls * bucket.call_s.mean
        parts.append(
            f"{level.slots} slots {alone_s:.3f}, {level.step_s.mean:.3f} ({level.step_s.num_samples})"
        )
    return "; ".join(parts)


def _rest(
    rows: Sequence[tuple[Setting, Prediction, Measured, list[Verdict]]], regimes_text: str, num_layers: int
) -> list[str]:
    described = "\n".join(
        f"- `{setting.name}`: {setting.about}; {_environment(setting)}." for setting, *_ in rows
    )
    loads = [found.load_before for _, _, found, _ in rows]
    return markdown(
        f"""
`±` is one standard deviation of the prediction over simulations as long as the run: a run is one draw.
*Step* is the time of a step in seconds, which is measured and not predicted: where it differs, the machine
was not as fast as when its parts were measured.

## What is real and what is not

Real: the learner (compiled ahead; its first batches, while the pipeline fills, are left out of every figure),
the durable store, the actor process, HTTP, the generator's server, queue and slots, and the weights on their
way to it. Emulated: the environments wait instead of working, and the generator's device waits
{1000.0 * BLOCK_S:.0f} ms for every four tokens and samples at random: it stands for hardware of its
own. Rewards mean nothing, so nothing is learned. The model has {num_layers} blocks of width 256: so many that
a step takes about half a second on the machine at hand, and waits matter.

The learner has one core, everything else the other one, in the runs and when the parts were measured:
learner, store and weights by two runs of settings that are not in the table (tools of 0.15 s, max_staleness
2), the generator, the learner's compiled shapes and each environment by `forebay audit`, with other seeds.
The prediction is written to a file, with the hash of its profile, before its run begins.

What a step takes is taken from the calibrating runs, by the slots that its batch is packed into. Whether it
is longer beside the others than alone can be read from the same profile; seconds alone, seconds in the runs
(and steps): {regimes_text}. Synchronous runs have the same steps as the others.

{_CHANGES}

## The settings

{described}

{platform.system()} {platform.machine()}, {os.cpu_count()} shared cores; load average before the runs
{min(loads):.1f} to {max(loads):.1f}. {sum(found.batches for _, _, found, _ in rows)} batches in
{len(rows)} runs; first prediction {min(said.made for _, said, _, _ in rows)}, last run begun
{max(found.began for _, _, found, _ in rows)}.

<!-- not run: takes twenty minutes -->
```bash
.venv/bin/python benchmarks/prediction.py --again --layers {num_layers} --write docs/explanation/prediction.md
```
"""
    )


def _environment(setting: Setting) -> str:
    waits = setting.waits
    turns = (
        f"{waits.least_turns}"
        if waits.least_turns == waits.most_turns
        else (f"{waits.least_turns} to {waits.most_turns}")
    )
    parts = [f"tools of {waits.mean_s:g} s (lognormal, sigma {waits.sigma:g}), {turns} turns"]
    parts += [f"{waits.stragglers:.0%} of them 8 times as long"] if waits.stragglers else []
    parts += [f"{setting.places} places"] if setting.places < 512 else []
    parts += [f"{setting.slots} slots"] if setting.slots < 64 else []
    return ", ".join(parts)
