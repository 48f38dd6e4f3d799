"""Packing: which slot of which micro-batch each sequence takes. Pure functions of lengths.

All micro-batches of a batch lie in one flat run of slots, one after another, row after row.

Legend: P buckets of a ladder, C combinations of them.
"""

from __future__ import annotations

import functools
import itertools
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from forebay.errors import ConfigError

# Sequences that are tried for the rest of a row: more fill it no better, and cost time.
_CANDIDATES: Final = 64
# While a row has room for this many of the longest sequence that is left, that one goes in untried.
_SURELY: Final = 8
# So many of the largest micro-batch are filled by search, whatever lies before in order.
_SEARCHED: Final = 3
# Combinations of buckets that are known for one ladder, and that are tried for one batch.
_MAX_COMBINATIONS: Final = 4000
_MAX_COMBINED: Final = 6
_MAX_TRIES: Final = 24
_TRIES_OF_A_CLASS: Final = 3
# Padding up to this share of the tokens is as good as none, if it saves a micro-batch.
_CLASS: Final = 0.0025


class Bucket(NamedTuple):
    """A compiled batch shape."""

    rows: int
    length: int

    @property
    def slots(self) -> int:
        """Tokens that it has room for."""
        return self.rows * self.length


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
        return sum(bucket.slots for bucket in self.buckets)


class _Left:
    """Sequences that have no place yet, longest first.

    Args:
        indices: Their names.
        shortness: Of each, minus its length: ascending, as bisection wants it.
    """

    def __init__(self, indices: list[int], shortness: list[int]) -> None:
        self.indices = indices
        self.shortness = shortness
        self.num_tokens = -sum(shortness)

    @classmethod
    def of(cls, lengths: Sequence[int], row_length: int) -> _Left:
        """Sort sequences; of equal ones the first stays first."""
        indices = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
        if indices and lengths[indices[0]] > row_length:
            raise ConfigError("a sequence fits no row", got=f"{lengths[indices[0]]} tokens", limit=row_length)
        return cls(indices, [-lengths[i] for i in indices])

    def copy(self) -> _Left:
        """Return the same sequences, to be placed another way."""
        return _Left(self.indices.copy(), self.shortness.copy())

    def take(self, row_length: int) -> Row:
        """Remove and return the sequences of one row: the longest that fits, and the best beside it."""
        chosen: list[int] = []
        free = row_length
        at = bisect_left(self.shortness, -free)
        while at < len(self.shortness) and (not chosen or free + _SURELY * self.shortness[at] > 0):
            chosen.append(at)
            free += self.shortness[at]
            at = max(at + 1, bisect_left(self.shortness, -free))
        places = _sample(at, len(self.shortness))
        chosen += [places[k] for k in _least_slack([-self.shortness[place] for place in places], free)]
        row = Row(tuple(self.indices[k] for k in chosen), -sum(self.shortness[k] for k in chosen))
        for k in reversed(chosen):
            del self.indices[k], self.shortness[k]
        self.num_tokens -= row.used
        return row


def _sample(first: int, stop: int) -> Sequence[int]:
    """Return the places to choose from: the first of them, and as many spread over the rest."""
    rest = stop - first - _CANDIDATES // 2
    if rest <= _CANDIDATES // 2:
        return range(first, stop)
    spread = (first + _CANDIDATES // 2 + 2 * k * rest // _CANDIDATES for k in range(_CANDIDATES // 2))
    return [*range(first, first + _CANDIDATES // 2), *spread]


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
    left = _Left.of(lengths, row_length)
    rows = []
    while left.indices:
        rows.append(left.take(row_length))
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
                options.append((slots + bucket.slots, calls + 1, bucket))
        best[i] = min(options, key=_cost)
    cover = []
    i = 0
    while i < num_rows:
        cover.append(best[i][2])
        i += best[i][2].rows
    return cover


def _cost(option: tuple[int, int, Bucket]) -> tuple[int, int]:
    return option[:2]


class _Choices(NamedTuple):
    """What a ladder can be combined to, beside any number of its main bucket.

    Args:
        ladder: The shapes, longest rows first.
        main: Place of the bucket with the most slots.
        counts: [C, P] int64, how often each bucket is used.
    """

    ladder: tuple[Bucket, ...]
    main: int
    counts: npt.NDArray[np.int64]


def _choices(ladder: Sequence[Bucket]) -> _Choices:
    by_length = tuple(sorted(set(ladder), key=lambda bucket: (bucket.length, bucket.rows), reverse=True))
    main = max(range(len(by_length)), key=lambda p: (by_length[p].slots, by_length[p].length))
    return _Choices(by_length, main, _combinations(len(by_length), main))


@functools.lru_cache(maxsize=64)
def _combinations(num_buckets: int, main: int) -> npt.NDArray[np.int64]:
    """Combine all buckets but one: single ones, pairs, triples, as many as there may be."""
    others = [place for place in range(num_buckets) if place != main]
    combinations: list[tuple[int, ...]] = [()]
    for size in range(1, _MAX_COMBINED + 1):
        more = list(itertools.combinations_with_replacement(others, size))
        if len(combinations) + len(more) > _MAX_COMBINATIONS:
            break
        combinations += more
    counts = np.zeros((len(combinations), num_buckets), np.int64)
    for row, places in enumerate(combinations):
        np.add.at(counts[row], list(places), 1)
    counts.flags.writeable = False
    return counts


def _candidates(choices: _Choices, left: _Left, known: Sequence[Bucket]) -> Iterator[list[Bucket]]:
    """Yield sets of buckets that may hold what is left better than `known` buckets do, best first.

    They are ordered by classes of padding, within a class by the number of micro-batches, then by slots.
    """
    tokens, ladder = left.num_tokens, choices.ladder
    slots = np.array([bucket.slots for bucket in ladder])
    counts = choices.counts.copy()
    counts[:, choices.main] = np.maximum(0, -((counts @ slots - tokens) // slots[choices.main]))
    total, calls = counts @ slots, counts.sum(axis=1)
    possible = total >= tokens
    lengths = -np.array(left.shortness)
    for bucket in ladder:
        # What fits only longer rows needs that much room in them.
        longer = np.array([other.slots if other.length > bucket.length else 0 for other in ladder])
        possible &= counts @ longer >= lengths[lengths > bucket.length].sum()
    counts, total, calls = counts[possible], total[possible], calls[possible]
    padding_class = _padding_class(total, tokens)
    order = np.lexsort((total, calls, padding_class))
    padding_class = padding_class[order]
    rank = np.arange(len(order)) - np.searchsorted(padding_class, padding_class)
    known_slots = sum(bucket.slots for bucket in known)
    known_cost = (_padding_class(np.array(known_slots), tokens), len(known), known_slots)
    for place in order[rank < _TRIES_OF_A_CLASS][:_MAX_TRIES]:
        if (_padding_class(total[place], tokens), calls[place], total[place]) >= known_cost:
            return
        yield [bucket for bucket, count in zip(ladder, counts[place], strict=True) for _ in range(count)]


def _padding_class(slots: npt.NDArray[np.int64], tokens: int) -> npt.NDArray[np.int64]:
    """Return 0 for hardly any padding; classes get wider, as the padding does."""
    return np.floor(np.sqrt((slots - tokens) / (_CLASS * tokens))).astype(np.int64)


def _fill(buckets: Sequence[Bucket], left: _Left) -> list[Row]:
    """Take sequences for every row of some buckets, in order."""
    return [left.take(bucket.length) for bucket in buckets for _ in range(bucket.rows)]


def _pack_rest(choices: _Choices, left: _Left) -> tuple[list[Bucket], list[Row]]:
    """Return micro-batches for all that is left, and their rows."""
    rows = []
    again = left.copy()
    while again.indices:
        rows.append(again.take(choices.ladder[0].length))
    rows.sort(key=lambda row: -row.used)
    buckets = cover_rows([row.used for row in rows], choices.ladder)
    for candidate in _candidates(choices, left, buckets):
        again = left.copy()
        filled = _fill(candidate, again)
        if not again.indices:
            return candidate, filled
    return buckets, rows


def plan_rows(lengths: Sequence[int], ladder: Sequence[Bucket]) -> tuple[list[Bucket], list[Row]]:
    """Choose the micro-batches of a batch, and which sequences share a row.

    Most of a large batch goes into the largest micro-batch, again and again, each row filled with the least
    slack. For the rest, sets of buckets with just enough slots are tried, the least padding first, until one
    takes all sequences. If none does, rows of the longest length are covered by `cover_rows`.

    Args:
        lengths: Tokens of each sequence; at least 1.
        ladder: The only shapes that may be used.

    Returns:
        The micro-batches, and the rows in their order: each micro-batch takes the next `bucket.rows` of them,
        as far as there are any. The result depends on nothing but the arguments.

    Raises:
        ConfigError: A sequence fits no row.
    """
    choices = _choices(ladder)
    left = _Left.of(lengths, choices.ladder[0].length)
    main = choices.ladder[choices.main]
    # Where longer rows exist than those of the largest micro-batch, nothing is sure before the search.
    rows = _sure_rows(left, main) if main.length == choices.ladder[0].length else []
    buckets = [main] * (len(rows) // main.rows)
    if left.indices:
        more, filled = _pack_rest(choices, left)
        buckets += more
        rows += filled
    return buckets, rows


def searched_lengths(lengths: Sequence[int], largest: Bucket) -> list[int]:
    """Return the lengths that are left for smaller buckets, whatever these are.

    Args:
        lengths: Tokens of each sequence of a batch.
        largest: The bucket with the most slots and the longest rows.

    Raises:
        ConfigError: A sequence fits no row.
    """
    left = _Left.of(lengths, largest.length)
    _sure_rows(left, largest)
    return [-short for short in left.shortness]


def _sure_rows(left: _Left, main: Bucket) -> list[Row]:
    """Take the rows of all micro-batches that need no search."""
    rows: list[Row] = []
    while left.num_tokens > _SEARCHED * main.slots:
        rows += _fill([main], left)
    return rows


def plan_packing(lengths: Sequence[int], ladder: Sequence[Bucket]) -> Packing:
    """Place every sequence of a batch in a slot of the ladder's micro-batches, as `plan_rows` chooses.

    Args:
        lengths: Tokens of each sequence; at least 1.
        ladder: The only shapes that may be used.

    Returns:
        The packing; without sequences, no micro-batch.

    Raises:
        ConfigError: A sequence fits no row.
    """
    buckets, rows = plan_rows(lengths, ladder)
    return place_rows(lengths, buckets, rows)


def place_rows(lengths: Sequence[int], buckets: Sequence[Bucket], rows: Sequence[Row]) -> Packing:
    """Count slots: every row of every bucket takes the next of the `rows`, as far as there are any.

    Args:
        lengths: Tokens of each sequence.
        buckets: The micro-batches, in order.
        rows: Which sequences share a row; none holds more than the row that it takes.
    """
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
