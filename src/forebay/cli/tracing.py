"""The trace of a process that takes part in a run."""

from __future__ import annotations

import os

from forebay.cli.runs import Run
from forebay.clock import SystemClock
from forebay.telemetry.trace import OFF, SUFFIX, Tracer


def open_tracer(run: Run, role: str) -> Tracer:
    """Return what records this process, as the run's configuration wants it.

    Args:
        run: The run.
        role: What this process is; part of the file's name.
    """
    settings = run.config.telemetry
    if not settings.trace:
        return OFF
    return Tracer(
        run.layout.trace / f"{role}-{os.getpid()}{SUFFIX}",
        role,
        SystemClock(),
        every=settings.trace_every,
        max_bytes=settings.trace_bytes,
    )
