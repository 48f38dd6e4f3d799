"""The bucket ladder: the few shapes of all micro-batches, so that the number of programs is fixed."""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from forebay.batching.packing import Bucket, plan_rows, searched_lengths
from forebay.batching.settings import BatchingSettings
from forebay.batching.work import fewest_slots
from forebay.errors import ConfigError

# Shorter rows, as parts of the longest in this order: halvings give the finest sums, what lies between them
# the fewest micro-batches.
_PARTS: Final = (
    *(1 / 2, 1 / 4, 1 / 8, 3 / 4, 1 / 16, 5 / 8, 7 / 8, 3 / 8),
    *(part / 16 for part in range(15, 1, -2)),
    *(part / 32 for part in range(31, 0, -2)),
)
# Row lengths that are tried: so many from one halving to the next, and so many halvings.
_PER_HALVING: Final = 6
_HALVINGS: Final = 8
_QUANTILES: Final = 12
_MAX_ROUNDS: Final = 2
_FIRST_BATCHES: Final = 4
_SHORTLIST: Final = 6

# For each batch, the lengths of its sequences.
Needs = Sequence[Sequence[int]]


class Candidate(NamedTuple):
    """A ladder, and what the measured batches would take with it."""

    num_slots: int
    num_calls: int
    ladder: tuple[Bucket, ...]


def bucket_lengths(max_length: int, min_length: int) -> tuple[int, ...]:
    """Return row lengths that double from `min_length` and end at exactly `max_length`, ascending.

    The last step is cut, not rounded up: a length of 300 under a maximum of 317 takes 317, not 512.

    Args:
        max_length: Longest row, tokens.
        min_length: Shortest row, tokens.

    Example:
        >>> bucket_lengths(317, 16)
        (16, 32, 64, 128, 256, 317)
    """
    lengths = []
    length = min_length
    while length < max_length:
        lengths.append(length)
        length *= 2
    return (*lengths, max_length)


def bucket_of(length: int, lengths: Sequence[int]) -> int:
    """Return the shortest of the ascending `lengths` that holds `length` tokens.

    Raises:
        ConfigError: None does.

    Example:
        >>> bucket_of(257, bucket_lengths(317, 16))
        317
    """
    index = bisect_left(lengths, length)
    if index == len(lengths):
        raise ConfigError("no bucket holds the sequence", got=f"{length} tokens", limit=lengths[-1])
    return lengths[index]


def build_ladder(
    settings: BatchingSettings, row_multiple: int = 1, length_multiple: int = 1
) -> tuple[Bucket, ...]:
    """Return the shapes of a run: those configured, or parts of the largest.

    The largest micro-batch is halved in rows down to `row_multiple`, so that any number of rows is covered.
    What is left of the budget of programs goes to shorter rows: a half, a quarter, an eighth, three quarters,
    and so on. A batch ends in a few of them, and their sums come close to any length.

    Args:
        settings: Batching settings.
        row_multiple: Rows of every bucket are a multiple of it: the devices that rows are spread over.
        length_multiple: Row lengths are a multiple of it: the parts that tokens are cut into.

    Returns:
        At most `max_programs` buckets, by size descending; at least one has the longest row.

    Raises:
        ConfigError: Rows or their tokens cannot be spread evenly.

    Example:
        >>> build_ladder(BatchingSettings(rows=4, max_length=512, max_programs=5))
        (Bucket(rows=4, length=512), Bucket(rows=2, length=512), Bucket(rows=1, length=512),
         Bucket(rows=1, length=256), Bucket(rows=1, length=128))
    """
    settings = _in_multiples_of(length_multiple, settings)
    ladder = {Bucket(*bucket) for bucket in settings.buckets} or _parts(settings, row_multiple)
    for bucket in ladder:
        if bucket.rows % row_multiple:
            raise ConfigError(
                "the rows of a micro-batch cannot be spread evenly over the devices",
                got=f"{bucket.rows} rows",
                limit=f"a multiple of {row_multiple} (mesh.data x mesh.fsdp x mesh.expert)",
                remedy="Change batching.rows (or batching.buckets), or the mesh.",
            )
        if bucket.length % length_multiple:
            raise ConfigError(
                "the tokens of a row cannot be spread evenly over the devices",
                got=f"{bucket.length} tokens",
                limit=f"a multiple of {length_multiple} (2 x mesh.context, mesh.context x mesh.tensor)",
                remedy="Change batching.max_length, batching.row_length or batching.buckets, or the mesh.",
            )
    return _by_size(ladder)


def _in_multiples_of(length_multiple: int, settings: BatchingSettings) -> BatchingSettings:
    step = math.lcm(length_multiple, settings.min_row_length)
    return settings.model_copy(update={"min_row_length": step})


def _by_size(ladder: Iterable[Bucket]) -> tuple[Bucket, ...]:
    return tuple(sorted(ladder, key=lambda bucket: (bucket.slots, bucket), reverse=True))


def _parts(settings: BatchingSettings, row_multiple: int) -> set[Bucket]:
    ladder = _halved_rows(settings, row_multiple)
    for part in _PARTS:
        bucket = Bucket(ladder[-1].rows, _rounded(settings.packed_length * part, settings))
        if bucket not in ladder:
            ladder.append(bucket)
    return set(ladder[: settings.max_programs])


def _halved_rows(settings: BatchingSettings, row_multiple: int) -> list[Bucket]:
    """Return the largest bucket, its halves in rows, and the fewest rows that the devices take."""
    rows, ladder = settings.rows, [Bucket(settings.rows, settings.packed_length)]
    while rows % (2 * row_multiple) == 0:
        rows //= 2
        ladder.append(Bucket(rows, settings.packed_length))
    if rows > row_multiple and rows % row_multiple == 0:
        ladder.append(Bucket(row_multiple, settings.packed_length))
    return ladder


def _rounded(length: float, settings: BatchingSettings) -> int:
    """Round a row up to what is allowed."""
    step = settings.min_row_length
    return min(max(-int(-length // step), 1) * step, settings.packed_length)


def sample_batches(
    groups: Sequence[Sequence[int]], groups_per_batch: int, num_batches: int, seed: int
) -> list[list[int]]:
    """Draw batches as a run would make them, from groups that it has made.

    Args:
        groups: For each group, the lengths of its sequences, tokens: members of a group are alike.
        groups_per_batch: Groups of one batch.
        num_batches: Batches to draw, with replacement.
        seed: The same seed draws the same batches.

    Raises:
        ConfigError: There is no group.
    """
    if not groups:
        raise ConfigError("no group to measure lengths on", got=0, limit="1 or more")
    rng = random.Random(seed)
    drawn = [rng.choices(groups, k=groups_per_batch) for _ in range(num_batches)]
    return [[length for group in batch for length in group] for batch in drawn]


def measured_ladder(
    batches: Iterable[Sequence[int]],
    settings: BatchingSettings,
    row_multiple: int = 1,
    length_multiple: int = 1,
) -> tuple[Bucket, ...]:
    """Choose the shapes that waste the fewest slots on measured batches, within the budget of programs.

    The bucket with the longest rows stays. The shape that saves most is added, again and again; then each is
    exchanged for a neighbor that saves more. A shape that saves nothing costs a compilation and is left out.
    Where attention skips what lies in other sequences, the fewest slots are the least computation.

    Args:
        batches: For each measured batch, the lengths of its sequences, tokens.
        settings: Batching settings.
        row_multiple: Rows of every bucket are a multiple of it.
        length_multiple: Row lengths are a multiple of it.

    Returns:
        At most `max_programs` buckets, by size descending; fit for `settings.buckets`.

    Raises:
        ConfigError: A sequence is longer than the longest row, or rows or their tokens cannot be spread
            evenly.
    """
    needs = [tuple(batch) for batch in batches if batch]
    now = build_ladder(settings, row_multiple, length_multiple)
    longest = max(now, key=lambda bucket: (bucket.length, bucket.rows))
    settings = _in_multiples_of(length_multiple, settings).model_copy(
        update={"rows": longest.rows, "row_length": longest.length}
    )
    shapes = _shapes(needs, settings, row_multiple)
    needs = [tuple(searched_lengths(need, longest)) for need in needs]
    best = _score(needs, (longest,))
    for _ in range(_MAX_ROUNDS):
        better = _exchanged(needs, shapes, _grown(needs, shapes, best, settings.max_programs))
        if better >= best:
            break
        best = better
    return _by_size(best.ladder)


def _grown(needs: Needs, shapes: Sequence[Bucket], best: Candidate, max_programs: int) -> Candidate:
    """Add the shape that saves most, while one saves anything and the budget lasts."""
    while len(best.ladder) < max_programs and (new := [s for s in shapes if s not in best.ladder]):
        found = _best_of(needs, [(*best.ladder, shape) for shape in new])
        if found.num_slots >= best.num_slots:
            break
        best = found
    return best


def _exchanged(needs: Needs, shapes: Sequence[Bucket], best: Candidate) -> Candidate:
    """Exchange one shape after another, but the largest, for a neighbor that saves more."""
    for place in range(1, len(best.ladder)):
        at = bisect_left(shapes, best.ladder[place])
        for shape in shapes[max(at - 2, 0) : at + 3]:
            if shape not in best.ladder:
                ladder = (*best.ladder[:place], shape, *best.ladder[place + 1 :])
                best = min(best, _score(needs, ladder))
    return best


def _best_of(needs: Needs, ladders: Sequence[tuple[Bucket, ...]]) -> Candidate:
    """Return the best ladder; all are tried on some batches, those that come first there on all of them."""
    some = needs[: max(len(needs) // 4, _FIRST_BATCHES)]
    shortlist = sorted(_score(some, ladder) for ladder in ladders)[:_SHORTLIST]
    return min(_score(needs, candidate.ladder) for candidate in shortlist)


def _shapes(needs: Needs, settings: BatchingSettings, row_multiple: int) -> list[Bucket]:
    """Return the shapes that are worth trying, ascending."""
    lengths = {
        _rounded(settings.packed_length * 2 ** (-step / _PER_HALVING), settings)
        for step in range(_HALVINGS * _PER_HALVING)
    }
    # A row as long as the longest sequence of a batch, or as a device's part of it, is often the best.
    for wanted in (
        [max(need) for need in needs],
        [fewest_slots(need, row_multiple) // row_multiple for need in needs],
    ):
        ordered = sorted(wanted)
        for part in range(1, _QUANTILES + 1) if ordered else ():
            lengths.add(_rounded(ordered[(len(ordered) - 1) * part // _QUANTILES], settings))
    shapes = {Bucket(row_multiple, length) for length in lengths if length > 1}
    return sorted(shapes | set(_halved_rows(settings, row_multiple)))


def _score(needs: Needs, ladder: tuple[Bucket, ...]) -> Candidate:
    plans = [plan_rows(lengths, ladder)[0] for lengths in needs]
    return Candidate(sum(bucket.slots for plan in plans for bucket in plan), sum(map(len, plans)), ladder)
