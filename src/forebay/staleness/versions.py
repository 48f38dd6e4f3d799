"""Versions across resumes, and how old a token is.

Versions are ordered by (incarnation, version); a version that an older incarnation made beyond the point
where its successor forked off counts as the fork's version.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from forebay.errors import StalenessError
from forebay.trajectory import PolicyVersion


class Fork(msgspec.Struct, frozen=True, array_like=True):
    """Where an incarnation began: it continues the history from `version`."""

    incarnation: int
    version: int


def effective_version(version: PolicyVersion, forks: Iterable[Fork], incarnation: int) -> int:
    """Return the version number in the surviving history that `version` stands for.

    Args:
        version: Where a token was sampled.
        forks: The start of each incarnation after the first.
        incarnation: The incarnation of the learner that asks.

    Example:
        >>> effective_version(PolicyVersion(0, 40), [Fork(1, 38)], incarnation=1)
        38
    """
    later = [f.version for f in forks if version.incarnation < f.incarnation <= incarnation]
    return min([version.version, *later])


def staleness_of(version: PolicyVersion, now: PolicyVersion, forks: Iterable[Fork] = ()) -> int:
    """Return how many versions before `now` a token was sampled.

    Args:
        version: The version that sampled it.
        now: The version being differentiated.
        forks: The start of each incarnation after the first.

    Returns:
        Staleness in versions, at least 0.

    Raises:
        StalenessError: The token claims an incarnation or a version that the learner has not made.

    Example:
        >>> staleness_of(PolicyVersion(0, 7), PolicyVersion(0, 10))
        3
    """
    lag = now.version - effective_version(version, forks, now.incarnation)
    if version.incarnation > now.incarnation or (version.incarnation == now.incarnation and lag < 0):
        raise StalenessError("sample from the future", got=tuple(version), limit=tuple(now))
    # A token of an older incarnation can lie ahead of a learner that still replays up to the fork.
    return max(lag, 0)


def is_fresh(
    version: PolicyVersion, now: PolicyVersion, max_staleness: int, forks: Iterable[Fork] = ()
) -> bool:
    """Return whether a token may be trained: its staleness is at most `max_staleness` (inclusive)."""
    return staleness_of(version, now, forks) <= max_staleness
