"""Metrics as TensorBoard events."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forebay.telemetry.metrics import Value
from forebay.telemetry.sinks.protocol import chart_values

_FLUSH_S = 10


class TensorBoardSink:
    """Writes events with `tensorboardX`.

    Args:
        directory: Where event files go.
        first_step: What TensorBoard has of this step and later ones is replaced.
    """

    def __init__(self, directory: Path, first_step: int) -> None:
        package: Any = importlib.import_module("tensorboardX")
        purge_step = first_step if directory.exists() else None
        # Named after its first step too: two starts within a second must not share a file.
        self._writer = package.SummaryWriter(
            str(directory), purge_step=purge_step, flush_secs=_FLUSH_S, filename_suffix=f".{first_step:08d}"
        )

    def write(self, step: int, time_s: float, values: Mapping[str, Value]) -> None:
        """Write one scalar for each number."""
        for name, value in chart_values(values).items():
            self._writer.add_scalar(name, value, step, walltime=time_s)

    def close(self) -> None:
        """Flush the events and close the file."""
        self._writer.close()
