"""REINFORCE++: advantages in units of the whole batch's spread, on the host in float64."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from forebay.objectives.advantages import GroupAdvantages


def normalize_over_batch(
    groups: Sequence[GroupAdvantages], *, ddof: int = 1, eps: float = 1e-6
) -> list[GroupAdvantages]:
    """Subtract the batch's mean advantage and divide by its spread: `(A - mean(A)) / (std(A) + eps)`.

    Mean and spread run over the scored members of all groups of the batch, each counting once. A group's own
    spread, which GRPO divides by, rests on a few members and is small where they nearly agree; the batch's
    does not depend on how hard a task happens to be.

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
    values = np.concatenate([np.empty(0), *(group.advantages[group.scored] for group in groups)])
    if not values.size or values.max() == values.min():
        return [
            dataclasses.replace(
                group, advantages=np.zeros_like(group.advantages), zero_spread=bool(group.scored.any())
            )
            for group in groups
        ]
    mean, spread = values.mean(), values.std(ddof=ddof) + eps
    return [
        group
        if group.zero_spread
        else dataclasses.replace(
            group, advantages=np.where(group.scored, (group.advantages - mean) / spread, 0.0)
        )
        for group in groups
    ]
