"""Clip bounds that an update's own tokens decide: which rule, by the settings.

Legend: F trained tokens of one update.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from forebay.objectives.bapo import BalanceRange, FloatArray, balanced_bounds
from forebay.objectives.m2po import second_moment_bound
from forebay.objectives.ratios import LOG_RATIO_LIMIT_NATS
from forebay.objectives.settings import ObjectiveSettings

# (log-ratios [F] in nats, advantages [F]) -> the bounds of the ratio, below and above 1.
ClipRule = Callable[[FloatArray, FloatArray], tuple[float, float]]


def build_clip_rule(settings: ObjectiveSettings) -> ClipRule | None:
    """Return the function that finds the bounds of an update; None where they are fixed.

    Args:
        settings: The objective's; only those of the clip matter.
    """
    if settings.clip_rule == "second_moment":
        return lambda log_ratios, advantages: _second_moment(settings, log_ratios, advantages)
    if settings.clip_rule == "balance":
        return lambda log_ratios, advantages: _balance(settings, log_ratios, advantages)
    return None


def _second_moment(
    settings: ObjectiveSettings, log_ratios: FloatArray, advantages: FloatArray
) -> tuple[float, float]:
    bound = second_moment_bound(log_ratios, advantages, limit=settings.second_moment_limit)
    bound = min(bound, LOG_RATIO_LIMIT_NATS)
    return (
        min(math.exp(-bound), 1.0 - settings.clip_low),
        max(math.exp(bound), 1.0 + settings.clip_high),
    )


def _balance(
    settings: ObjectiveSettings, log_ratios: FloatArray, advantages: FloatArray
) -> tuple[float, float]:
    within = BalanceRange(
        low=1.0 - settings.clip_low,
        low_end=1.0 - settings.balance_clip_low,
        high=1.0 + settings.clip_high,
        high_end=1.0 + settings.balance_clip_high,
        step=settings.balance_step,
    )
    return balanced_bounds(np.exp(log_ratios), advantages, within=within, target=settings.balance_target)
