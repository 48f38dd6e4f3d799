"""The bucket ladder: the few shapes of all micro-batches, so that the number of programs is fixed."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from forebay.batching.packing import Bucket, cover_rows, pack_rows
from forebay.batching.settings import BatchingSettings
from forebay.errors import ConfigError


class Candidate(NamedTuple):
    """A ladder and the slots that the measured batches would take with it."""

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


def build_ladder(settings: BatchingSettings, row_multiple: int = 1) -> tuple[Bucket, ...]:
    """Return the shapes of a run: those configured, or parts of the largest.

    The largest micro-batch is halved in rows down to `row_multiple`, so that any number of rows is covered.
    What is left of the budget of programs goes to shorter rows, evenly spaced: a batch's last row is as
    likely to be short as long, and then wastes the least.

    Args:
        settings: Batching settings.
        row_multiple: Rows of every bucket are a multiple of it: the devices that rows are spread over.

    Returns:
        At most `max_programs` buckets, by size descending; at least one has the longest row.

    Raises:
        ConfigError: Rows cannot be spread evenly.

    Example:
        >>> build_ladder(BatchingSettings(rows=4, max_length=512, max_programs=5))
        (Bucket(rows=4, length=512), Bucket(rows=2, length=512), Bucket(rows=1, length=512),
         Bucket(rows=1, length=352), Bucket(rows=1, length=176))
    """
    ladder = {Bucket(*bucket) for bucket in settings.buckets} or _parts(settings, row_multiple)
    for bucket in ladder:
        if bucket.rows % row_multiple:
            raise ConfigError(
                "the rows of a micro-batch cannot be spread evenly over the devices",
                got=f"{bucket.rows} rows",
                limit=f"a multiple of {row_multiple} (mesh.data x mesh.fsdp)",
                remedy="Change batching.rows (or batching.buckets), or the mesh.",
            )
    return tuple(sorted(ladder, key=lambda bucket: (bucket.rows * bucket.length, bucket), reverse=True))


def _parts(settings: BatchingSettings, row_multiple: int) -> set[Bucket]:
    rows, ladder = settings.rows, [Bucket(settings.rows, settings.packed_length)]
    while rows % (2 * row_multiple) == 0:
        rows //= 2
        ladder.append(Bucket(rows, settings.packed_length))
    if rows > row_multiple and rows % row_multiple == 0:
        rows = row_multiple
        ladder.append(Bucket(rows, settings.packed_length))
    num_left = max(settings.max_programs - len(ladder), 0)
    step = settings.min_row_length
    for part in range(num_left, 0, -1):
        length = -(-settings.packed_length * part // (num_left + 1) // step) * step
        ladder.append(Bucket(rows, min(length, settings.packed_length)))
    return set(ladder[: settings.max_programs])


def measured_ladder(
    batches: Iterable[Sequence[int]], settings: BatchingSettings, row_multiple: int = 1
) -> tuple[Bucket, ...]:
    """Choose the shapes that waste the fewest slots on measured batches, within the budget of programs.

    The largest bucket is given. Then the shape that saves most is added, again and again; a shape that saves
    nothing costs a compilation and is left out.

    Args:
        batches: For each measured batch, the lengths of its sequences, tokens.
        settings: Batching settings; `buckets` is ignored.
        row_multiple: Rows of every bucket are a multiple of it.

    Returns:
        At most `max_programs` buckets, by size descending; fit for `settings.buckets`.

    Raises:
        ConfigError: A sequence is longer than the longest row, or rows cannot be spread evenly.
    """
    needs = [
        sorted((row.used for row in pack_rows(lengths, settings.packed_length)), reverse=True)
        for lengths in batches
    ]
    row_counts = {settings.rows}
    row_counts |= {row_multiple << shift for shift in range(16) if row_multiple << shift < settings.rows}
    # Eighths between the halvings: finer shapes save less than a hundredth.
    lengths = {settings.packed_length * eighth // 8 for eighth in range(1, 9)}
    lengths |= set(bucket_lengths(settings.packed_length, settings.min_row_length))
    shapes = [Bucket(rows, length) for rows in sorted(row_counts) for length in sorted(lengths) if length > 1]
    best = _score(
        needs, build_ladder(settings.model_copy(update={"buckets": (), "max_programs": 1}), row_multiple)
    )
    while len(best.ladder) < settings.max_programs:
        found = min(_score(needs, (*best.ladder, shape)) for shape in shapes if shape not in best.ladder)
        if found.num_slots >= best.num_slots:
            break
        best = found
    return tuple(sorted(best.ladder, key=lambda bucket: (bucket.rows * bucket.length, bucket), reverse=True))


def _score(needs: Sequence[Sequence[int]], ladder: tuple[Bucket, ...]) -> Candidate:
    covers = [cover_rows(rows, ladder) for rows in needs]
    slots = sum(bucket.rows * bucket.length for cover in covers for bucket in cover)
    return Candidate(slots, sum(map(len, covers)), ladder)
