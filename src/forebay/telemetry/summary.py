"""`summary.json`: the figures of a run, under names that scripts rely on."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from forebay.errors import ConfigError
from forebay.telemetry.files import write_atomically
from forebay.telemetry.life_summary import LifeSummary


class EpisodeDecisions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the actors decided about the episodes in flight of one environment.

    Args:
        allowed: Episodes at once that all processes allowed when they last reported; None if none did.
        counts: How many decisions there were, by kind, the most frequent first.
    """

    allowed: float | None
    counts: dict[str, int]


class RunSummary(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The figures of one run. Fractions are 0 to 1; a figure that could not be measured is None.

    Args:
        busy: Time inside compiled training programs over wall time, after warm-up.
        goodput: Fresh tokens per second over those of the bare step alone.
        starved: Time spent waiting for trajectories over wall time, after warm-up.
        steps: Optimizer steps taken.
        steps_per_s: Steps per second of wall time, after warm-up.
        fresh_tokens_per_s: Trained action tokens per second of wall time, after warm-up.
        max_staleness: The limit, in versions.
        group_size: Trajectories of a group.
        step_s: Mean time of a step alone.
        env_s: Mean time of an environment step.
        reward_first: Mean reward at the beginning of the run.
        reward_last: Mean reward at its end.
        staleness_max: Largest staleness of a trained token, in versions.
        staleness_mean: Mean staleness of the trained tokens, in versions.
        discarded: Acknowledged trajectories rejected with a named reason.
        masked_tokens: Action tokens not trained because they were too old.
        compiles_after_warmup: Programs built after warm-up; 0 is right.
        accepted: Trajectories acknowledged.
        trained: Trajectories trained.
        lost: Acknowledged, and neither trained nor stored nor rejected; 0 is right.
        repeated: Trajectories trained in more than one step of the surviving history; 0 is right.
        life: Where the trained tokens spent their lives; None if nothing was trained.
        decisions: What the actors decided about episodes in flight, by environment; None if their number was
            fixed.
    """

    busy: float | None
    goodput: float | None
    starved: float | None
    steps: int
    steps_per_s: float | None
    fresh_tokens_per_s: float | None
    max_staleness: int
    group_size: int
    step_s: float | None
    env_s: float | None
    reward_first: float | None
    reward_last: float | None
    staleness_max: int | None
    staleness_mean: float | None
    discarded: int
    masked_tokens: int
    compiles_after_warmup: int
    accepted: int
    trained: int
    lost: int
    repeated: int
    life: LifeSummary | None = None
    decisions: dict[str, EpisodeDecisions] | None = None


class ComparisonSummary(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The same work done synchronously, at its best concurrency, and decoupled."""

    sync: RunSummary
    decoupled: RunSummary


Summary = TypeVar("Summary", RunSummary, ComparisonSummary)


def write_summary(path: Path, summary: RunSummary | ComparisonSummary) -> None:
    """Write a summary as JSON, atomically; what is not finite becomes null."""
    write_atomically(path, msgspec.json.format(msgspec.json.encode(summary), indent=2) + b"\n")


def read_summary(path: Path, kind: type[Summary]) -> Summary:
    """Return a summary.

    Raises:
        ConfigError: The file is missing or is not a summary of this kind.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        raise ConfigError(f"no summary at {path}", remedy="The run has not ended yet.") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not a {kind.__name__}: {error}") from error
