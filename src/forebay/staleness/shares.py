"""Shares: how several environments divide the stream of groups, and each batch of it, by weight.

The stream is an endless row of positions, and every position belongs to one environment. Batch n consists of
the positions from n * B up to (n + 1) * B, so that what a batch owes each environment follows from its number
alone: it is the same after a restart, and nothing has to be remembered.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping
from typing import Self

import msgspec

from forebay.errors import ConfigError

_MOST_BATCHES_AHEAD = 256


class Shares(msgspec.Struct, frozen=True):
    """Environments and their weights.

    The first environment gets floor(n * share) of the first n positions; the rest is divided the same way.
    With K environments of shares w, the count c of one after n positions therefore obeys |c - n * w| <
    max(1, K - 1): the remainder handed on grows by less than 1 with each environment.

    Args:
        names: The environments.
        weights: What each gets in proportion; positive.

    Raises:
        ConfigError: There is no environment, or a weight is not positive.

    Example:
        >>> shares = Shares(("fast", "slow"), (3.0, 1.0))
        >>> [shares.environment_at(position) for position in range(4)]
        ['slow', 'fast', 'fast', 'fast']
        >>> shares.counts(20)
        {'fast': 15, 'slow': 5}
    """

    names: tuple[str, ...]
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.names or len(self.names) != len(self.weights) or not all(w > 0.0 for w in self.weights):
            raise ConfigError(
                "environments share a stream by positive weights", got=(self.names, self.weights)
            )

    def place(self, position: int) -> tuple[int, int]:
        """Return which environment a position belongs to, as an index, and how many it has before it."""
        left = sum(self.weights)
        for index, weight in enumerate(self.weights[:-1]):
            share = weight / left
            before = int(position * share)
            if int((position + 1) * share) > before:
                return index, before
            position -= before
            left -= weight
        return len(self.weights) - 1, position

    def environment_at(self, position: int) -> str:
        """Return which environment a position belongs to."""
        return self.names[self.place(position)[0]]

    def counts(self, num_positions: int) -> dict[str, int]:
        """Return how many of the first positions each environment has."""
        left = sum(self.weights)
        counts: dict[str, int] = {}
        for name, weight in zip(self.names, self.weights, strict=True):
            last = len(counts) + 1 == len(self.names)
            counts[name] = num_positions if last else int(num_positions * (weight / left))
            num_positions -= counts[name]
            left -= weight
        return counts

    def without(self, names: Collection[str]) -> Shares:
        """Return the shares of the others; all of them if nobody would be left."""
        kept = [(n, w) for n, w in zip(self.names, self.weights, strict=True) if n not in names]
        return Shares(tuple(n for n, _ in kept), tuple(w for _, w in kept)) if kept else self


class BatchShares:
    """What a batch owes each environment, and when its later groups have their turn.

    Args:
        shares: The environments' weights.
        batch: Number of the batch, from 0.
        size: B, groups of a batch.
        limits: The most that environments can be due; what they cannot fill is open to all.

    Example:
        >>> due = BatchShares(Shares(("fast", "slow"), (3.0, 1.0)), batch=0, size=4)
        >>> due.due("fast"), due.due("slow"), due.batches_until("slow", 2)
        (3, 1, 2)
    """

    def __init__(
        self, shares: Shares, batch: int, size: int, limits: Mapping[str, int] | None = None
    ) -> None:
        self._shares, self._batch, self.size = shares, batch, size
        before = shares.counts(batch * size)
        self._after = shares.counts((batch + 1) * size)
        self._limits = dict(limits or {})
        self.whole = {name: self._after[name] - before[name] for name in shares.names}
        self._ahead: dict[str, list[int]] = {name: [] for name in shares.names}

    def limited(self, limits: Mapping[str, int]) -> Self:
        """Return the same batch with other limits."""
        return type(self)(self._shares, self._batch, self.size, limits)

    def due(self, environment: str) -> int:
        """Return how many groups of an environment the batch waits for; one without a weight goes first."""
        whole = self.whole.get(environment, self.size)
        return min(whole, self._limits.get(environment, whole))

    @property
    def num_open(self) -> int:
        """Groups of the batch that any environment may fill."""
        return self.size - sum(map(self.due, self.whole))

    def batches_until(self, environment: str, rank: int) -> int:
        """Return in which batch after the next one a group has its turn.

        Args:
            environment: Its environment.
            rank: How many groups of that environment are before it, this batch's not counted.
        """
        ahead = self._ahead.get(environment)
        if ahead is None:
            return rank // self.size
        while (not ahead or ahead[-1] <= rank) and len(ahead) < _MOST_BATCHES_AHEAD:
            counts = self._shares.counts((self._batch + 2 + len(ahead)) * self.size)
            ahead.append(counts[environment] - self._after[environment])
        return bisect_left(ahead, rank + 1)


def order_of_dispatch(shares: Shares, start: int, stop: int, live: Mapping[str, int]) -> Iterator[str]:
    """Yield the environments of the positions that nobody fills yet, in order.

    Args:
        shares: The environments' weights.
        start: The first position that is not consumed.
        stop: The position after the last one that may be dispatched.
        live: How many groups of each environment are in flight: they fill its first positions. So many less
            than none come first.

    Example:
        >>> list(order_of_dispatch(Shares(("a", "b"), (1.0, 1.0)), 0, 6, {"a": 2}))
        ['b', 'b', 'b', 'a']
    """
    left = dict(live)
    for name in shares.names:
        yield from [name] * -left.get(name, 0)
    for position in range(start, stop):
        name = shares.environment_at(position)
        if left.get(name, 0) > 0:
            left[name] -= 1
        else:
            yield name
