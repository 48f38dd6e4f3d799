"""Predictions, runs, and how near they come to one another."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.prediction_study.calibration import steady_lines
from benchmarks.prediction_study.settings import Setting
from forebay.planner.plan import make_scenario
from forebay.planner.profile import Profile
from forebay.planner.simulation import Outcome, simulate
from forebay.telemetry.summary import RunSummary

# How far a prediction may be off: points for shares, versions for staleness, a share for the rate.
TOLERANCES: Final = {"busy": 0.05, "goodput": 0.05, "steps_per_h": 0.10, "staleness": 0.5}
_BATCHES: Final = 300
_SEEDS: Final = 3
_SPREAD_SEEDS: Final = 8
_SYNC_WARMUP_BATCHES: Final = 2


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What is predicted and measured.

    Args:
        busy: Time inside steps over all time.
        goodput: Useful work over what the bare step would do in that time.
        steps_per_h: Optimizer updates per hour.
        staleness: Mean staleness of the trained tokens, versions.
        step_s: Mean time of a step.
        discarded: Trajectories that came and were not trained, over those that came.
        masked: Tokens in batches that were not trained, over all.
    """

    busy: float
    goodput: float
    steps_per_h: float
    staleness: float
    step_s: float
    discarded: float = 0.0
    masked: float = 0.0


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """What a simulation says before a run.

    Args:
        setting: Its name.
        profile_sha256: Of the profile that it was made from.
        made: When, UTC.
        warmup_batches: First batches that both leave out.
        figures: Means over long simulations.
        spread: Standard deviation of each over simulations as long as the run.
    """

    setting: str
    profile_sha256: str
    made: str
    warmup_batches: int
    figures: Figures
    spread: dict[str, float]


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What a run came to.

    Args:
        setting: Its name.
        began: When, UTC.
        batches: Batches measured, after warm-up.
        wall_s: Time of the whole command for it.
        figures: Its figures.
        given_step: What the simulation says once it is told how long this run's steps took: the rest of the
            difference is not the machine's being slower or faster than when its parts were measured.
        loss: Trajectories lost or trained twice, programs compiled after warm-up: all 0 in a sound run.
        load_before: The machine's load average when it began.
    """

    setting: str
    began: str
    batches: int
    wall_s: float
    figures: Figures
    given_step: Figures
    loss: int
    load_before: float


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """How far a figure was off, and whether that is near enough."""

    figure: str
    predicted: float
    measured: float
    off: float
    holds: bool


def warmup_batches(setting: Setting) -> int:
    """Return the first batches that run and simulation leave out; a synchronous run fills no pipeline."""
    if setting.max_staleness == 0:
        return _SYNC_WARMUP_BATCHES
    return make_scenario({**setting.scenario, "steps": 1000}).warmup


def predict(profile: Profile, setting: Setting, sha256: str, made: str) -> Prediction:
    """Simulate a setting.

    Args:
        profile: What was measured, of this setting's own environment.
        setting: The setting.
        sha256: Of the profile.
        made: When.
    """
    long = [_simulate(profile, setting, _BATCHES, seed) for seed in range(_SEEDS)]
    figures = [_figures(one) for one in long]
    mean = Figures(**{name: _mean(figures, name) for name in Figures.__struct_fields__})
    warmup = warmup_batches(setting)
    batches = max(warmup + 5, round(setting.seconds_s * mean.steps_per_h / 3600.0))
    short = [_figures(_simulate(profile, setting, batches, 100 + seed)) for seed in range(_SPREAD_SEEDS)]
    return Prediction(
        setting=setting.name,
        profile_sha256=sha256,
        made=made,
        warmup_batches=warmup,
        figures=mean,
        spread={name: statistics.stdev(getattr(one, name) for one in short) for name in TOLERANCES},
    )


def measured_figures(summary: RunSummary, path: Path, warmup: int) -> Figures:
    """Return the figures of a run, all of them after warm-up."""
    lines = steady_lines(path, warmup)
    fresh = sum(line["fresh_tokens"] for line in lines)
    masked = sum(line["masked_tokens"] for line in lines)
    aged = sum(line["staleness"] * line["fresh_tokens"] for line in lines if line["fresh_tokens"])
    return Figures(
        busy=summary.busy or 0.0,
        goodput=summary.goodput or 0.0,
        steps_per_h=3600.0 * (summary.steps_per_s or 0.0),
        staleness=aged / fresh if fresh else 0.0,
        step_s=sum(line["time.computing_s"] for line in lines) / len(lines),
        discarded=summary.discarded / summary.accepted if summary.accepted else 0.0,
        masked=masked / (masked + fresh) if masked + fresh else 0.0,
    )


def predict_given_step(profile: Profile, setting: Setting, said: Figures, found: Figures) -> Figures:
    """Simulate a setting again with steps as long as those of its run; the bare step stays what it was.

    Args:
        profile: As for the prediction.
        setting: The setting.
        said: What was predicted.
        found: What the run came to.
    """
    factor = found.step_s / said.step_s
    runs = [_figures(_simulate(profile, setting, _BATCHES, seed, factor)) for seed in range(_SEEDS)]
    mean = Figures(**{name: _mean(runs, name) for name in Figures.__struct_fields__})
    return msgspec.structs.replace(mean, goodput=mean.goodput / factor)


def compare(predicted: Figures, measured: Figures) -> list[Verdict]:
    """Judge a prediction, figure by figure."""
    verdicts = []
    for name, limit in TOLERANCES.items():
        said, found = getattr(predicted, name), getattr(measured, name)
        off = said / found - 1.0 if name == "steps_per_h" else said - found
        verdicts.append(
            Verdict(figure=name, predicted=said, measured=found, off=off, holds=abs(off) <= limit)
        )
    return verdicts


def _simulate(
    profile: Profile, setting: Setting, batches: int, seed: int, learner_factor: float = 1.0
) -> Outcome:
    changed = {
        "steps": batches,
        "warmup_steps": warmup_batches(setting),
        "seed": seed,
        "learner_factor": learner_factor,
    }
    return simulate(profile, make_scenario({**setting.scenario, **changed}))


def _figures(outcome: Outcome) -> Figures:
    return Figures(
        busy=outcome.busy,
        goodput=outcome.goodput,
        steps_per_h=3600.0 * outcome.steps_per_s,
        staleness=outcome.staleness_mean,
        step_s=outcome.step_s,
        discarded=outcome.discarded_share,
        masked=outcome.masked_share,
    )


def _mean(figures: list[Figures], name: str) -> float:
    return statistics.fmean(getattr(one, name) for one in figures)
