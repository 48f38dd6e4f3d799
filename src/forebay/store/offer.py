"""What a learner chooses from: read from the store only as far as it looks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

from forebay.staleness import OutstandingGroup


class Offer(Sequence[OutstandingGroup]):
    """Groups in order of dispatch; what was read is kept.

    A choice of the oldest costs the same however many wait behind them. It can be read inside the snapshot
    that it comes from, and no longer.

    Args:
        groups: Reads them.

    Example:
        >>> make = lambda i: OutstandingGroup(
        ...     group_id=f"g{i}", serial=i, environment="e", settled=True, start=None
        ... )
        >>> next(iter(Offer(map(make, range(10**9))))).group_id
        'g0'
    """

    def __init__(self, groups: Iterator[OutstandingGroup]) -> None:
        self._unread = groups
        self._known: list[OutstandingGroup] = []

    def __iter__(self) -> Iterator[OutstandingGroup]:
        at = 0
        while True:
            if at == len(self._known):
                following = next(self._unread, None)
                if following is None:
                    return
                self._known.append(following)
            yield self._known[at]
            at += 1

    def __len__(self) -> int:
        self._known.extend(self._unread)
        return len(self._known)

    @overload
    def __getitem__(self, index: int) -> OutstandingGroup: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[OutstandingGroup]: ...

    def __getitem__(self, index: int | slice) -> OutstandingGroup | Sequence[OutstandingGroup]:
        """Return a group by its place; everything is read for it."""
        self._known.extend(self._unread)
        return self._known[index]
