"""Progress of a run, read from the metrics that its learner writes."""

from __future__ import annotations

import contextlib
from collections import deque
from pathlib import Path

import msgspec

from forebay.telemetry.progress import Progress, ProgressPrinter

_STEPS_KEPT = 3


class _Timed(msgspec.Struct):
    step_s: float | None = None


class Follower:
    """Shows each new line of a metrics file.

    Args:
        path: `metrics.jsonl` of the run; lines that are there already are skipped.
        printer: Where progress is shown.

    Attributes:
        step_s: How long the last few steps took.
        newest_step: The highest step seen; a learner that resumes trains lower ones again. 0 before any.
    """

    def __init__(self, path: Path, printer: ProgressPrinter) -> None:
        self._path = path
        self._printer = printer
        self.step_s: deque[float] = deque(maxlen=_STEPS_KEPT)
        self.newest_step = 0
        self._offset = path.stat().st_size if path.exists() else 0

    def look(self) -> None:
        """Show what was written since the last look."""
        if not self._path.exists():
            return
        if self._path.stat().st_size < self._offset:
            self._offset = 0
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole, _, _ = data.rpartition(b"\n")
        if not whole:
            return
        self._offset += len(whole) + 1
        # A line that a crash cut is not whole even if it has an end: it is no reason to end a run.
        with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
            newest = whole.rpartition(b"\n")[2]
            progress = msgspec.json.decode(newest, type=Progress)
            self._printer.update(progress)
            self.newest_step = max(self.newest_step, progress.step)
            step_s = msgspec.json.decode(newest, type=_Timed).step_s
            if step_s is not None:
                self.step_s.append(step_s)
