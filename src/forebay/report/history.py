"""The metrics of a run, read in bounded memory: every line's time, and buckets of consecutive lines.

Two passes. The first reads step and times of every line and finds the surviving history: a step that was
trained again replaces itself and all later ones. The second reads whole lines, and adds the surviving ones up
in a fixed number of buckets, so that a page costs the same after a hundred steps and after a million.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from forebay.telemetry.metrics import surviving
from forebay.telemetry.spans import STATES, State

NUM_BUCKETS: Final = 600
RECENT_S: Final = 300.0
_MAX_RECENT_LINES: Final = 4096
_MAX_NAMES: Final = 512
_NUMBERS: Final = frozenset((int, float))


class Stat(NamedTuple):
    """A metric over the lines of a bucket: how many lines have it, its sum, largest and last value."""

    num_lines: int
    total: float
    largest: float
    last: float

    @property
    def mean(self) -> float:
        """Mean over the lines that have it."""
        return self.total / self.num_lines


class Bucket(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive lines of the surviving history, added up.

    Args:
        step: Of the last line.
        time_s: Of the last line, wall clock.
        num_lines: How many.
        stats: By name of the metric; only numbers.
    """

    step: int
    time_s: float
    num_lines: int
    stats: Mapping[str, Stat]

    def mean(self, name: str) -> float | None:
        """Return the mean of a metric; None if no line has it."""
        stat = self.stats.get(name)
        return None if stat is None else stat.mean

    def total(self, name: str) -> float:
        """Return the sum of a metric; 0 if no line has it."""
        stat = self.stats.get(name)
        return 0.0 if stat is None else stat.total

    def largest(self, name: str) -> float | None:
        """Return the largest value of a metric; None if no line has it."""
        stat = self.stats.get(name)
        return None if stat is None else stat.largest

    def last(self, name: str) -> float | None:
        """Return the last value of a metric; None if no line has it."""
        stat = self.stats.get(name)
        return None if stat is None else stat.last


class Interval(NamedTuple):
    """The time of the learner between two lines: when it ended, and the seconds in each state."""

    end_s: float
    seconds: tuple[float, ...]

    @property
    def begin_s(self) -> float:
        """When it began."""
        return self.end_s - sum(self.seconds)


class History(msgspec.Struct, frozen=True, kw_only=True):
    """The metrics of a run.

    Args:
        intervals: Of every line, those of batches that were trained again included; columns `end_s` and one
            per state.
        buckets: The surviving history.
        recent: Its last five minutes, in finer buckets.
        num_steps: Lines that survive.
        num_repeated: Lines that a resume replaced.
        num_unreadable: Lines that are not whole.
        incarnation: Of the last line.
    """

    intervals: tuple[array[float], ...]
    buckets: tuple[Bucket, ...] = ()
    recent: tuple[Bucket, ...] = ()
    num_steps: int = 0
    num_repeated: int = 0
    num_unreadable: int = 0
    incarnation: int = 0

    def each_interval(self) -> Iterator[Interval]:
        """Yield the interval of every line, in order."""
        for end_s, *seconds in zip(*self.intervals, strict=True):
            yield Interval(end_s, tuple(seconds))

    @property
    def names(self) -> frozenset[str]:
        """Every metric that some line has."""
        return frozenset().union(*(bucket.stats.keys() for bucket in self.buckets))

    @property
    def begin_s(self) -> float | None:
        """Wall clock when the learner first waited for a batch; None before the first line."""
        return next(self.each_interval()).begin_s if len(self.intervals[0]) else None

    @property
    def end_s(self) -> float | None:
        """Wall clock of the last line; None before the first one."""
        return self.intervals[0][-1] if len(self.intervals[0]) else None


class _Head(msgspec.Struct, frozen=True, gc=False):
    step: int
    time_s: float
    incarnation: int = 0
    computing: float | None = msgspec.field(default=None, name="time.computing_s")
    starved: float | None = msgspec.field(default=None, name="time.starved_s")
    publishing: float | None = msgspec.field(default=None, name="time.publishing_s")
    compiling: float | None = msgspec.field(default=None, name="time.compiling_s")
    checkpointing: float | None = msgspec.field(default=None, name="time.checkpointing_s")
    packing: float | None = msgspec.field(default=None, name="time.packing_s")
    other: float | None = msgspec.field(default=None, name="time.other_s")


def empty_history() -> History:
    """Return the history of a run that has trained nothing."""
    return History(intervals=tuple(array("d") for _ in range(1 + len(STATES))))


def read_history(paths: Iterable[Path]) -> History:
    """Read metrics files, the older one first; files that are missing are skipped.

    Raises:
        OSError: A file cannot be read.
    """
    files = [path for path in paths if path.is_file()]
    intervals = empty_history().intervals
    steps, readable, incarnation = array("q"), bytearray(), 0
    for head in _heads(files):
        readable.append(head is not None)
        if head is None:
            continue
        steps.append(head.step)
        incarnation = head.incarnation
        intervals[0].append(head.time_s)
        for column, state in zip(intervals[1:], STATES, strict=True):
            column.append(getattr(head, state) or 0.0)
    survives = surviving(steps)
    num_steps = sum(survives)
    recent_from = _recent_from(intervals[0])
    num_recent = sum(survives[recent_from:])
    whole = _Bucketer(-(-num_steps // NUM_BUCKETS))
    recent = _Bucketer(-(-num_recent // NUM_BUCKETS))
    for index, line in enumerate(_lines(files, readable)):
        if survives[index] and "time_s" in line:
            whole.add(line)
            if index >= recent_from:
                recent.add(line)
    return History(
        intervals=intervals,
        buckets=whole.finish(),
        recent=recent.finish(),
        num_steps=num_steps,
        num_repeated=len(steps) - num_steps,
        num_unreadable=readable.count(0),
        incarnation=incarnation,
    )


def weighted_mean(buckets: Iterable[Bucket], name: str, weight: str) -> float | None:
    """Return the mean of a metric over buckets, each weighing as much as it has of another metric."""
    total = weights = 0.0
    for bucket in buckets:
        value, by = bucket.mean(name), bucket.total(weight)
        if value is not None:
            total += value * by
            weights += by
    return total / weights if weights > 0 else None


def mean_of(buckets: Iterable[Bucket], name: str) -> float | None:
    """Return the mean of a metric over the lines of all buckets."""
    stats = [bucket.stats[name] for bucket in buckets if name in bucket.stats]
    count = sum(stat.num_lines for stat in stats)
    return sum(stat.total for stat in stats) / count if count else None


def totals_under(buckets: Iterable[Bucket], prefix: str) -> dict[str, float]:
    """Return the sums of all metrics whose name begins with a prefix, by the rest of their name."""
    totals: dict[str, float] = {}
    for bucket in buckets:
        for name, stat in bucket.stats.items():
            if name.startswith(prefix):
                rest = name[len(prefix) :]
                totals[rest] = totals.get(rest, 0.0) + stat.total
    return totals


def state_seconds(buckets: Iterable[Bucket]) -> dict[State, float]:
    """Return the learner's seconds in each state."""
    kept = tuple(buckets)
    return {state: sum(bucket.total(f"time.{state}_s") for bucket in kept) for state in STATES}


class _Bucketer:
    def __init__(self, lines_per_bucket: int) -> None:
        self._lines_per_bucket = lines_per_bucket
        self._pending: list[Mapping[str, Any]] = []
        self._buckets: list[Bucket] = []

    def add(self, line: Mapping[str, Any]) -> None:
        self._pending.append(line)
        if len(self._pending) >= self._lines_per_bucket:
            self._close()

    def finish(self) -> tuple[Bucket, ...]:
        if self._pending:
            self._close()
        return tuple(self._buckets)

    def _close(self) -> None:
        columns: dict[str, list[float]] = {}
        # Neighbors nearly always have the same names, and then their values are columns at once.
        for names, lines in itertools.groupby(self._pending, key=tuple):
            for name, values in zip(names, zip(*(line.values() for line in lines), strict=True), strict=True):
                numbers = _numbers(values)
                if numbers and (name in columns or len(columns) < _MAX_NAMES):
                    columns.setdefault(name, []).extend(numbers)
        last = self._pending[-1]
        self._buckets.append(
            Bucket(
                step=last["step"],
                time_s=last["time_s"],
                num_lines=len(self._pending),
                stats={name: Stat(len(v), float(sum(v)), max(v), v[-1]) for name, v in columns.items()},
            )
        )
        self._pending = []


def _numbers(values: tuple[Any, ...]) -> tuple[float, ...]:
    """Return the numbers among some values; a flag is none."""
    if _NUMBERS.issuperset(map(type, values)):
        return values
    return tuple(value for value in values if type(value) in _NUMBERS)


def _heads(files: Iterable[Path]) -> Iterator[_Head | None]:
    decoder = msgspec.json.Decoder(_Head)
    for line in _raw_lines(files):
        try:
            yield decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            yield None


def _lines(files: Iterable[Path], readable: bytearray) -> Iterator[dict[str, Any]]:
    """Yield the lines that have a head; what was appended since is left for the next report."""
    decoder = msgspec.json.Decoder(dict[str, Any])
    for is_readable, line in zip(readable, _raw_lines(files), strict=False):
        if is_readable:
            try:
                yield decoder.decode(line)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                yield {}


def _raw_lines(files: Iterable[Path]) -> Iterator[bytes]:
    for path in files:
        with path.open("rb") as file:
            yield from file


def _recent_from(times_s: array[float]) -> int:
    """Return the index of the first line of the last five minutes, at most the newest lines."""
    if not len(times_s):
        return 0
    index = max(0, len(times_s) - _MAX_RECENT_LINES)
    while index < len(times_s) - 1 and times_s[index] < times_s[-1] - RECENT_S:
        index += 1
    return index
