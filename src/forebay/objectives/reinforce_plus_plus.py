"""REINFORCE++: advantages in units of the whole batch's spread, on the host in float64."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from forebay.objectives.advantages import GroupAdvantages

FloatArray = npt.NDArray[np.float64]


def normalize_over_batch(
    groups: Sequence[GroupAdvantages], *, ddof: int = 1, eps: float = 1e-6
) -> list[GroupAdvantages]:
    """Subtract the batch's mean advantage and divide by its spread: `(A - mean(A)) / (std(A) + eps)`.

    Mean and spread run over the scored members of all groups of the batch, each counting once, or over their
    turns where each turn has an advantage of its own. A group's own spread, which GRPO divides by, rests on a
    few members and is small where they nearly agree; the batch's does not depend on how hard a task happens
    to be.

    Args:
        groups: Advantages of every group of the batch, before it is split into minibatches.
        ddof: 0 for the population's standard deviation, 1 for the sample's.
        eps: Added to the standard deviation, in units of reward.

    Returns:
        The same groups. All advantages are exactly 0 if they were equal over the whole batch, and those of a
        group without spread stay exactly 0.

    References:
        Hu et al. 2025, REINFORCE++: Stabilizing Critic-Free Policy Optimization with Global Advantage
        Normalization; after `group_mean` its variant with a baseline, https://arxiv.org/abs/2501.03262.
    """
    values = np.concatenate([np.empty(0), *map(_judged, groups)])
    if not values.size or values.max() == values.min():
        return [
            dataclasses.replace(_mapped(group, np.zeros_like), zero_spread=bool(group.scored.any()))
            for group in groups
        ]
    mean, spread = values.mean(), values.std(ddof=ddof) + eps
    return [
        group if group.zero_spread else _mapped(group, lambda advantages: (advantages - mean) / spread)
        for group in groups
    ]


def normalized(values: FloatArray, *, ddof: int = 1, eps: float = 1e-6) -> FloatArray:
    """Return `(A - mean(A)) / (std(A) + eps)` of the tokens of a batch; exactly 0 if all are equal.

    Args:
        values: [F] float64, the advantage of every token, each counting once.
        ddof: 0 for the population's standard deviation, 1 for the sample's.
        eps: Added to the standard deviation, in units of reward.

    References:
        Schulman et al. 2017, Proximal Policy Optimization Algorithms, as its published code does it
        (`advs = (advs - advs.mean()) / (advs.std() + 1e-8)`), https://arxiv.org/abs/1707.06347.
    """
    if not values.size or values.max() == values.min():
        return np.zeros_like(values)
    result: FloatArray = (values - values.mean()) / (values.std(ddof=ddof) + eps)
    return result


def _judged(group: GroupAdvantages) -> FloatArray:
    """Return the advantages that count once each."""
    if group.turn_advantages is None:
        return group.advantages[group.scored]
    scored = zip(group.turn_advantages, group.scored, strict=True)
    return np.concatenate([np.empty(0), *(turns for turns, counts in scored if counts)])


def _mapped(group: GroupAdvantages, change: Callable[[FloatArray], FloatArray]) -> GroupAdvantages:
    """Change the advantages of the scored members; those of the others stay 0."""
    turns = group.turn_advantages
    if turns is not None:
        scored = zip(turns, group.scored, strict=True)
        turns = tuple(change(own) if counts else own for own, counts in scored)
    return dataclasses.replace(
        group,
        advantages=np.where(group.scored, change(group.advantages), 0.0),
        turn_advantages=turns,
    )
