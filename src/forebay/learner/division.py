"""Division: in how many groups of the store the episodes of a task are dispatched."""

from __future__ import annotations

from typing import NamedTuple

from forebay.batching.settings import BatchingSettings
from forebay.errors import ConfigError
from forebay.objectives.settings import ObjectiveSettings

_PAIR = 2


class Division(NamedTuple):
    """How the episodes of a task are divided into groups of the store, its parts.

    Attributes:
        parts: Groups of the store that a task is dispatched as.
        size: Members of each.
        min_size: Members of each that suffice once its deadline has passed.
        siblings_needed: Parts of the same task that must have finished before one can be trained; 0 if its
            members are compared among themselves.
    """

    parts: int
    size: int
    min_size: int
    siblings_needed: int = 0

    def groups(self, batching: BatchingSettings) -> int:
        """Return the groups of the store that one batch takes."""
        return batching.groups * self.parts


def divide(objective: ObjectiveSettings, batching: BatchingSettings) -> Division:
    """Return how `objective.siblings` divides the episodes of a task.

    Args:
        objective: What a reward is compared with.
        batching: How many episodes a task has.

    Raises:
        ConfigError: The settings contradict one another.

    Example:
        >>> divide(ObjectiveSettings(siblings="pairs"), BatchingSettings(group_size=6))
        Division(parts=3, size=2, min_size=2, siblings_needed=0)
    """
    if objective.siblings == "pairs":
        return _pairs(batching)
    if objective.siblings == "finished":
        _check_finished(objective)
        return Division(batching.group_size, 1, 1, siblings_needed=max(1, batching.min_group_size - 1))
    return Division(1, batching.group_size, batching.min_group_size)


def _pairs(batching: BatchingSettings) -> Division:
    if batching.group_size % _PAIR:
        raise ConfigError(
            'objective.siblings = "pairs" compares the episodes of a task two by two',
            got=f"batching.group_size={batching.group_size}",
            limit="an even number",
            remedy=f"Set batching.group_size to {batching.group_size + 1}.",
        )
    if batching.min_group_size > _PAIR:
        raise ConfigError(
            'objective.siblings = "pairs" settles a pair when both have come',
            got=f"batching.min_group_size={batching.min_group_size}",
            limit=_PAIR,
            remedy="Remove batching.min_group_size.",
        )
    return Division(batching.group_size // _PAIR, _PAIR, batching.min_group_size)


def _check_finished(objective: ObjectiveSettings) -> None:
    """Refuse comparisons that are not the same however many siblings there are."""
    if objective.advantage != "leave_one_out":
        raise ConfigError(
            'objective.siblings = "finished" compares an episode with the mean of the others that finished',
            got=f'objective.advantage = "{objective.advantage}"',
            limit='"leave_one_out"',
            remedy='Set objective.advantage = "leave_one_out", or siblings = "pairs".',
        )
    if objective.normalize_advantages or objective.dynamic_sampling:
        raise ConfigError(
            'objective.siblings = "finished" trains an episode before the spread of its group is known',
            got=f"normalize_advantages = {objective.normalize_advantages}, "
            f"dynamic_sampling = {objective.dynamic_sampling}",
            limit="normalize_advantages = False, dynamic_sampling = 0",
            remedy='Turn them off, or set siblings = "pairs".',
        )
