"""Packing: which slot of which micro-batch each sequence takes. Pure functions of lengths.

All micro-batches of a batch lie in one flat run of slots, one after another, row after row.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final, NamedTuple

from forebay.errors import ConfigError

# Sequences that are tried for the rest of a row: more fill it no better, and cost time.
_CANDIDATES: Final = 64


class Bucket(NamedTuple):
    """A compiled batch shape."""

    rows: int
    length: int


class Row(NamedTuple):
    """Sequences that share a row, in order.

    Args:
        sequences: Their indices.
        used: Tokens that they take together.
    """

    sequences: tuple[int, ...]
    used: int


class Packing(NamedTuple):
    """Where every sequence of a batch goes.

    Args:
        buckets: The micro-batches, in order.
        starts: Per sequence, the flat slot of its first token.
        segments: Per sequence, its number within its row, from 1.
    """

    buckets: tuple[Bucket, ...]
    starts: tuple[int, ...]
    segments: tuple[int, ...]

    @property
    def num_slots(self) -> int:
        """Slots of all micro-batches, padding included."""
        return sum(bucket.rows * bucket.length for bucket in self.buckets)


def pack_rows(lengths: Sequence[int], row_length: int) -> list[Row]:
    """Pack sequences into rows: the longest one left, then those that fill its row with the least slack.

    Args:
        lengths: Tokens of each sequence.
        row_length: Tokens that a row holds.

    Returns:
        The rows, in the order in which they were filled. The result depends on nothing but the arguments.

    Raises:
        ConfigError: A sequence fits no row.

    References:
        Gupta and Ho 1999, A new heuristic algorithm for the one-dimensional bin-packing problem (minimum bin
        slack).
    """
    left = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    if left and lengths[left[0]] > row_length:
        raise ConfigError("a sequence fits no row", got=f"{lengths[left[0]]} tokens", limit=row_length)
    shortness = [-lengths[i] for i in left]
    rows = []
    while left:
        free = row_length + shortness[0]
        first = max(1, bisect_left(shortness, -free))
        added = _least_slack([-short for short in shortness[first : first + _CANDIDATES]], free)
        chosen = [0, *(first + k for k in added)]
        rows.append(Row(tuple(left[k] for k in chosen), -sum(shortness[k] for k in chosen)))
        for k in reversed(chosen):
            del left[k], shortness[k]
    return rows


def _least_slack(lengths: Sequence[int], free: int) -> list[int]:
    """Return the places of those `lengths` whose sum comes closest to `free`, preferring long ones."""
    mask = (1 << (free + 1)) - 1
    # Bit n of reach[k] says whether some of the first k lengths add up to n.
    reach = [1]
    for length in lengths:
        reach.append((reach[-1] | reach[-1] << length) & mask)
        if reach[-1] >> free:
            break
    total = reach[-1].bit_length() - 1
    chosen = []
    for k in range(len(reach) - 2, -1, -1):
        if not reach[k] >> total & 1:
            chosen.append(k)
            total -= lengths[k]
    return chosen[::-1]


def cover_rows(needs: Sequence[int], ladder: Sequence[Bucket]) -> list[Bucket]:
    """Choose micro-batches that hold all rows in the fewest slots, and then in the fewest micro-batches.

    Exact for micro-batches that take the rows in order: the cheapest cover of the rows from i on is the best
    first bucket plus the cheapest cover of the rows behind it.

    Args:
        needs: Tokens of each row, descending.
        ladder: The shapes to choose from; of equal choices the first.

    Returns:
        The buckets, in order: each takes the next `bucket.rows` rows.

    Raises:
        ConfigError: No bucket is long enough.
    """
    num_rows = len(needs)
    if num_rows and needs[0] > max(bucket.length for bucket in ladder):
        raise ConfigError("no bucket is long enough for a row", got=needs[0], limit=list(ladder))
    # (slots, micro-batches, first bucket) of the cheapest cover of the rows from i on.
    best: list[tuple[int, int, Bucket]] = [(0, 0, ladder[0])] * (num_rows + 1)
    for i in range(num_rows - 1, -1, -1):
        options = []
        for bucket in ladder:
            if bucket.length >= needs[i]:
                slots, calls, _ = best[min(i + bucket.rows, num_rows)]
                options.append((slots + bucket.rows * bucket.length, calls + 1, bucket))
        best[i] = min(options, key=_cost)
    cover = []
    i = 0
    while i < num_rows:
        cover.append(best[i][2])
        i += best[i][2].rows
    return cover


def _cost(option: tuple[int, int, Bucket]) -> tuple[int, int]:
    return option[:2]


def plan_packing(lengths: Sequence[int], ladder: Sequence[Bucket]) -> Packing:
    """Place every sequence of a batch in a slot of the ladder's micro-batches.

    Sequences are packed into rows of the ladder's longest length; rows are then sorted by what they hold, and
    what is left over takes the smaller buckets.

    Args:
        lengths: Tokens of each sequence; at least 1.
        ladder: The only shapes that may be used.

    Returns:
        The packing; without sequences, no micro-batch.

    Raises:
        ConfigError: A sequence fits no row.
    """
    rows = pack_rows(lengths, max(bucket.length for bucket in ladder))
    rows.sort(key=lambda row: -row.used)
    buckets = cover_rows([row.used for row in rows], ladder)
    starts, segments = [0] * len(lengths), [0] * len(lengths)
    left = iter(rows)
    slot = 0
    for bucket in buckets:
        for _ in range(bucket.rows):
            row = next(left, Row((), 0))
            at = slot
            for segment, index in enumerate(row.sequences, start=1):
                starts[index], segments[index] = at, segment
                at += lengths[index]
            slot += bucket.length
    return Packing(tuple(buckets), tuple(starts), tuple(segments))
