"""`metrics.jsonl`: one JSON object per line, whole lines only, bounded in size."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from forebay.clock import Clock

Value = float | int | str | bool | None
_MAX_LINE_BYTES = 2**20


class MetricsWriter:
    """Appends records; each line reaches the file in one write, so that kill -9 tears none.

    A number that is not finite becomes null, which every JSON reader takes, and is counted. At
    `max_bytes` the file becomes `NAME.1` (replacing the one before) and a new one begins.

    Args:
        path: The file; continued if it exists.
        clock: Dates the records.
        max_bytes: Largest size of the file.

    Attributes:
        num_nonfinite: Numbers that were not finite, so far.
        written_s: Wall clock of the newest record.
    """

    def __init__(self, path: Path, clock: Clock, *, max_bytes: int = 256 * 2**20) -> None:
        self.path = path
        self._clock = clock
        self._max_bytes = max_bytes
        self.num_nonfinite = 0
        self.written_s = 0.0
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab", buffering=0)
        self._end_torn_line()

    def __enter__(self) -> MetricsWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, step: int, values: Mapping[str, object]) -> None:
        """Append one record.

        Args:
            step: Optimizer step that the values belong to.
            values: By name; `step` and `time_s` are taken. Numbers and text, or what JSON makes of a record.

        Raises:
            ValueError: A name is taken, or the line exceeds 1 MiB.
            OSError: The disk is full, or fails.
        """
        taken = {"step", "time_s"} & values.keys()
        if taken:
            raise ValueError(f"metric names are taken: {', '.join(sorted(taken))}")
        finite = {name: self._finite(value) for name, value in values.items()}
        self.written_s = self._clock.wall_s()
        line = msgspec.json.encode({"step": step, "time_s": self.written_s} | finite) + b"\n"
        if len(line) > _MAX_LINE_BYTES:
            raise ValueError(f"a record must fit in {_MAX_LINE_BYTES} bytes (got {len(line)})")
        if os.fstat(self._file.fileno()).st_size + len(line) > self._max_bytes:
            self._rotate()
        rest = memoryview(line)
        while rest:  # a disk that becomes full takes a part of it, and refuses the rest
            rest = rest[self._file.write(rest) :]

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _finite(self, value: object) -> object:
        if isinstance(value, float) and not math.isfinite(value):
            self.num_nonfinite += 1
            return None
        return value

    def _rotate(self) -> None:
        self._file.close()
        self.path.replace(self.path.with_name(f"{self.path.name}.1"))
        self._file = self.path.open("ab", buffering=0)

    def _end_torn_line(self) -> None:
        """Close a line that a full disk or a power failure cut, so that it spoils no other."""
        size = os.fstat(self._file.fileno()).st_size
        if size:
            with self.path.open("rb") as file:
                file.seek(size - 1)
                if file.read(1) != b"\n":
                    self._file.write(b"\n")


def read_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a metrics file in order; lines that are not whole are skipped."""
    with path.open("rb") as file:
        for line in file:
            try:
                yield msgspec.json.decode(line, type=dict[str, Any])
            except (msgspec.MsgspecError, UnicodeDecodeError):
                continue


def surviving(steps: Sequence[int]) -> bytearray:
    """Return a flag for each record: whether it belongs to the history that survived.

    A step that is written again replaces itself and all later ones before it.

    Args:
        steps: Of each record, in the order in which they were written.

    Example:
        >>> list(surviving([1, 2, 3, 2]))
        [1, 0, 0, 1]
    """
    flags = bytearray(len(steps))
    kept: list[int] = []
    for index, step in enumerate(steps):
        while kept and steps[kept[-1]] >= step:
            flags[kept.pop()] = 0
        kept.append(index)
        flags[index] = 1
    return flags
