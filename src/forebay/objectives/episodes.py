"""Backward recursions over the tokens of many episodes at once, on the host in float64.

Every array of tokens holds those of one episode after another. Environment tokens are not in it: after the
last token of a turn comes the first one of the next.
Legend: N episodes, F tokens of all of them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from forebay.errors import RecordError

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.integer[Any]]


class TokenCredit(NamedTuple):
    """What a critic makes of the tokens of some episodes.

    Attributes:
        advantages: [F] float64, how much better the episode went on from each token than expected.
        targets: [F] float64, what the value of the state before each token should have been.
    """

    advantages: FloatArray
    targets: FloatArray


def discounted_sums(terms: FloatArray, factors: FloatArray, lengths: IntArray) -> FloatArray:
    """Solve `x_t = terms_t + factors_t x_(t+1)` in every episode, x being 0 beyond its last token.

    Args:
        terms: [F] float64.
        factors: [F] float64; not looked at at an episode's last token.
        lengths: [N] tokens of each episode, at least 1.

    Returns:
        [F] float64. Each episode's numbers are the same bits whatever else is in the batch.

    Raises:
        RecordError: The arrays do not belong together.
    """
    check_tokens(lengths, terms=terms, factors=factors)
    sums = terms.copy()
    by_length = np.argsort(-lengths, kind="stable")
    last = np.cumsum(lengths)[by_length] - 1
    descending = lengths[by_length]
    longest = int(lengths.max(initial=0))
    # How many episodes have a token that many places before their last one.
    num_reached = np.searchsorted(-descending, -np.arange(longest), "left")
    for back in range(1, longest):
        at = last[: num_reached[back]] - back
        sums[at] += factors[at] * sums[at + 1]
    return sums


def following(values: FloatArray, last: FloatArray, lengths: IntArray) -> FloatArray:
    """Return for each token what the next one of its episode has.

    Args:
        values: [F] float64.
        last: [N] float64, what an episode's last token gets.
        lengths: [N] tokens of each episode, at least 1.

    Returns:
        [F] float64.

    Raises:
        RecordError: The arrays do not belong together.
    """
    check_tokens(lengths, values=values)
    if last.shape != lengths.shape:
        raise RecordError("shape_mismatch", "one value per episode", got=last.shape, limit=lengths.shape)
    result = np.append(values[1:], 0.0)[: len(values)]
    result[np.cumsum(lengths) - 1] = last
    return result


def check_tokens(lengths: IntArray, **per_token: npt.NDArray[Any]) -> None:
    """Refuse arrays that do not hold one value for each token of some episodes.

    Args:
        lengths: [N] tokens of each episode.
        **per_token: The arrays by name.

    Raises:
        RecordError: An episode is empty, or a shape is not `[sum(lengths)]`.
    """
    if len(lengths) and lengths.min() < 1:
        raise RecordError("empty_episode", "an episode without tokens has no credit to give", limit=1)
    for name, array in per_token.items():
        if array.shape != (int(lengths.sum()),):
            raise RecordError(
                "shape_mismatch",
                f"{name} must hold one value per token",
                got=list(array.shape),
                limit=[int(lengths.sum())],
            )
