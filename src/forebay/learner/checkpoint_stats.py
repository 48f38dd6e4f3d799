"""What saving costs: one report per checkpoint, added up between two lines of metrics."""

from __future__ import annotations

import threading
from typing import NamedTuple


class SaveReport(NamedTuple):
    """What one save took.

    Attributes:
        waited_s: How long the loop waited for the save before.
        snapshot_s: How long it waited for the copy to host memory.
        write_s: How long hashing, writing and reading back took, in the background if there is one.
        snapshot_bytes: Host memory that the copy took in this process until it was written.
        written_bytes: Bytes on the disk, of all processes; 0 if the arrays were there already.
    """

    waited_s: float
    snapshot_s: float
    write_s: float
    snapshot_bytes: int
    written_bytes: int


class SaveTotals:
    """Adds up what saves took until somebody asks; safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reports: list[SaveReport] = []

    def add(self, report: SaveReport) -> None:
        """Note one save."""
        with self._lock:
            self._reports.append(report)

    def drain(self) -> dict[str, float]:
        """Return the sums as `checkpoint.NAME` and forget them; nothing if nothing was saved."""
        with self._lock:
            reports, self._reports = self._reports, []
        if not reports:
            return {}
        sums = SaveReport(*map(sum, zip(*reports, strict=True)))
        return {f"checkpoint.{name}": value for name, value in sums._asdict().items()}
