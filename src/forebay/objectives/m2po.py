"""M2PO: clip bounds wide enough for stale data, as long as the squared log-ratios stay small on average.

Legend: F trained tokens of one update.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


def second_moment_bound(log_ratios: FloatArray, advantages: FloatArray, *, limit: float) -> float:
    """Return how far from 0 a log-ratio may be: tau with `sum_i min(l_i^2, tau^2) = limit n`.

    Only the n tokens count that a clip could stop: likelier already and to be made likelier still (A > 0,
    l > 0), or the reverse. Few outliers then narrow the bound for themselves, not for the many that have
    hardly moved, which a fixed bound cuts as soon as the whole batch is old.

    Args:
        log_ratios: [F] nats, `log(current / behavior)`.
        advantages: [F] float64.
        limit: Mean of the squared log-ratios, nats squared; the authors use 0.04.

    Returns:
        tau, nats; infinite where the mean is within the limit anyway.

    References:
        Zheng et al. 2025, Prosperity before Collapse: How Far Can Off-Policy RL Reach with Stale Data on
        LLMs?, https://arxiv.org/abs/2510.01161, as in the authors' code (`kpo_clip_harmful_tokens` of
        Infini-AI-Lab/M2PO), which returns the largest log-ratio that is not above tau: the same tokens are
        stopped. AReaL's port leaves out the largest of all tokens, whatever their advantage, until the mean
        of the rest is within the limit.

    Example:
        >>> round(second_moment_bound(np.array([0.1, 0.2, 3.0, -9.0]), np.ones(4), limit=0.03), 6)
        0.2
    """
    pushed = ((advantages > 0) & (log_ratios > 0)) | ((advantages < 0) & (log_ratios < 0))
    squares = np.sort(log_ratios[pushed] ** 2)
    budget = limit * squares.size
    if squares.sum() <= budget:
        return math.inf
    # With the k smallest whole and the others cut to the same height.
    below = np.concatenate(([0.0], np.cumsum(squares)[:-1]))
    rest = squares.size - np.arange(squares.size)
    first_cut = int(np.argmax(below + rest * squares > budget))
    return math.sqrt((budget - below[first_cut]) / rest[first_cut])
