"""The lives of a run in a few figures: by environment and stage, and what Little's law says of them."""

from __future__ import annotations

import msgspec

from forebay.telemetry.dominance import dominant_of
from forebay.telemetry.life_log import LifeTable
from forebay.telemetry.life_table import Life, Tally
from forebay.telemetry.little import Balance, balances
from forebay.telemetry.residence import TOTAL


class StageFigures(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One stage of the lives of an environment's trajectories. Percentiles are within 5 %.

    Args:
        share: Of the life of a trained token, 0 to 1; those of all stages and the residual add up to 1.
        mean_s: Mean over trained tokens.
        p50_s: Half of the trained tokens spent no longer there.
        p95_s: 95 % of them spent no longer there.
        trajectory_mean_s: Mean over trajectories, whatever is trained of them.
        trajectory_p50_s: Half of the trajectories spent no longer there.
        trajectory_p95_s: 95 % of them spent no longer there.
    """

    share: float
    mean_s: float | None
    p50_s: float | None = None
    p95_s: float | None = None
    trajectory_mean_s: float | None = None
    trajectory_p50_s: float | None = None
    trajectory_p95_s: float | None = None


class LifeFigures(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The lives of the trajectories of one environment, or of all.

    Args:
        trajectories: How many there were in trained batches.
        tokens: Their trained tokens.
        share: Of the seconds that the run's trained tokens lived, 0 to 1.
        stages: By stage, in order; a stage that was not recorded is missing. `total` is the whole life, and
            `residual` what the stages leave of it, by means only.
        clamped: How often a stage would have been negative or absurd and was cut, by its name.
    """

    trajectories: int
    tokens: int
    share: float
    stages: dict[str, StageFigures]
    clamped: dict[str, int]


class LifeSummary(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the trained tokens of a run spent their lives.

    Args:
        dominant: The stage that takes most of them.
        dominant_environment: Whose, if it is an environment's; else empty.
        dominant_share: Its share, 0 to 1.
        environments: By environment.
        all: All environments as one.
        little: What Little's law says of each queue.
    """

    dominant: str
    dominant_environment: str
    dominant_share: float
    environments: dict[str, LifeFigures]
    all: LifeFigures
    little: tuple[Balance, ...]


def summarize_lives(table: LifeTable | None) -> LifeSummary | None:
    """Return the figures of a run; None if none of its tokens was trained, or lives were not recorded."""
    dominant = None if table is None else dominant_of(table)
    if table is None or dominant is None:
        return None
    life = table.whole
    return LifeSummary(
        dominant=dominant.place,
        dominant_environment=dominant.environment,
        dominant_share=dominant.share,
        environments={name: life_figures(mine, life) for name, mine in sorted(table.environments.items())},
        all=life_figures(life, life),
        little=balances(table.flows, table.wall_s),
    )


def life_figures(mine: Life, life: Life) -> LifeFigures:
    """Return the figures of one environment.

    Args:
        mine: Its lives.
        life: Those of all environments.
    """
    stages = {name: _figures(mine, mine.stages[name]) for name in mine.recorded}
    if TOTAL in mine.stages:
        stages["residual"] = StageFigures(
            share=_ratio(mine.residual_token_s, mine.token_s) or 0.0,
            mean_s=_ratio(mine.residual_token_s, mine.tokens),
            trajectory_mean_s=_ratio(mine.residual_trajectory_s, mine.trajectories),
        )
        stages[TOTAL] = _figures(mine, mine.stages[TOTAL])
    return LifeFigures(
        trajectories=mine.trajectories,
        tokens=mine.tokens,
        share=_ratio(mine.token_s, life.token_s) or 0.0,
        stages=stages,
        clamped=dict(sorted(mine.clamped.items())),
    )


def _figures(life: Life, tally: Tally) -> StageFigures:
    return StageFigures(
        share=_ratio(tally.token_s, life.token_s) or 0.0,
        mean_s=_ratio(tally.token_s, tally.num_tokens),
        p50_s=tally.token_percentile_s(0.5),
        p95_s=tally.token_percentile_s(0.95),
        trajectory_mean_s=_ratio(tally.trajectory_s, tally.num_trajectories),
        trajectory_p50_s=tally.trajectory_percentile_s(0.5),
        trajectory_p95_s=tally.trajectory_percentile_s(0.95),
    )


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
