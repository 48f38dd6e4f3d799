"""What keeps a learner from its next batch, by how many groups there are of each kind."""

from __future__ import annotations

from typing import Literal

WaitCause = Literal["episodes", "actors", "credit", "urgent", "packing"]


def cause_of_wait(*, is_urgent: bool, num_missing: int, num_running: int, num_unsettled: int) -> WaitCause:
    """Return what a learner waits for: the episodes of enough groups, actors with room, or credit.

    Args:
        is_urgent: Whether the rule makes it wait for one running group.
        num_missing: Settled groups lacking for a batch; 0 if the batch is there and only has to be packed.
        num_running: Groups that have begun and have not settled.
        num_unsettled: Groups that have not settled, begun or not.

    Example:
        >>> cause_of_wait(is_urgent=False, num_missing=3, num_running=1, num_unsettled=4)
        'actors'
    """
    if is_urgent:
        return "urgent"
    if not num_missing:
        return "packing"
    if num_running >= num_missing:
        return "episodes"
    return "actors" if num_unsettled >= num_missing else "credit"
