"""BAPO: clip bounds that move until what is to be learned outweighs what is to be unlearned.

Legend: F trained tokens of one update.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


class BalanceRange(NamedTuple):
    """Where the bounds of a ratio begin and how far they may move.

    Attributes:
        low: Of a ratio whose advantage is negative, at first.
        low_end: The highest that it may become.
        high: Of a ratio whose advantage is positive, at first.
        high_end: The highest that it may become.
        step: By which either moves at a time.
    """

    low: float
    low_end: float
    high: float
    high_end: float
    step: float


def balanced_bounds(
    ratios: FloatArray, advantages: FloatArray, *, within: BalanceRange, target: float
) -> tuple[float, float]:
    """Raise the lower bound, then the upper one, until good tokens contribute `target` times what bad do.

    Good tokens (A > 0) contribute `sum min(r, high) A`, bad ones `sum max(r, low) |A|`. A higher lower bound
    stops more bad tokens, a higher upper one fewer good ones. As a stopped token counts as much as one at its
    bound, the first never meets the target: a batch out of balance has its lower bound at the end before the
    upper one moves. Where the target cannot be met, both end as high as they may.

    Args:
        ratios: [F], `current / behavior`.
        advantages: [F] float64.
        within: Where the bounds begin and end.
        target: Contribution of good tokens over that of bad ones.

    Returns:
        The bound below which a bad token's ratio stops it, and that above which a good token's does.

    References:
        Xi et al. 2025, BAPO: Stabilizing Off-Policy Reinforcement Learning for LLMs via Balanced Policy
        Optimization with Adaptive Clipping, https://arxiv.org/abs/2510.18927, as in the authors' code
        (`recipe/bapo/policy_loss.py` of WooooDyy/BAPO) with the ranges of its configuration.
    """
    good, bad = advantages > 0, advantages < 0

    def balanced(low: float, high: float) -> bool:
        gained = float(np.sum(np.minimum(ratios[good], high) * advantages[good]))
        lost = float(np.sum(np.maximum(ratios[bad], low) * -advantages[bad]))
        return gained >= target * lost

    low, high = within.low, within.high
    while low < within.low_end and not balanced(low, high):
        low = min(low + within.step, within.low_end)
    while high < within.high_end and not balanced(low, high):
        high = min(high + within.step, within.high_end)
    return low, high
