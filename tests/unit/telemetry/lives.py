"""Lives by hand: a trajectory whose every stamp is known."""

from __future__ import annotations

import msgspec

from forebay.telemetry.residence import BatchStamps, GroupStamps, Lived, StepStamps
from forebay.trajectory import StepRecord, Trajectory
from tests.unit.report.runs import make_trajectory

# Dispatched at 1000, settled at 1040, taken at 1046; the monotonic clock is 900 behind.
GROUP = GroupStamps(dispatched_s=1000.0, settled_s=1040.0)
BATCH = BatchStamps(taken_wall_s=1046.0, taken_s=146.0, recorded_s=146.5)
STEP = StepStamps(ended_wall_s=1052.5, ended_s=152.5, step_s=4.0)


def trajectory(**changes: object) -> Trajectory:
    """Return an episode claimed at 1003, reset at 1003.5, that ended at 1030."""
    steps = (StepRecord(1.0, "stop", 1.0, 2.0, 8.0), StepRecord(1.0, "stop", 0.5, 1.5, 10.0))
    fields = {
        "steps": steps, "started_s": 1003.5, "finished_s": 1030.0, "admission_s": 0.5, "reset_s": 3.0,
    }  # fmt: skip
    return msgspec.structs.replace(make_trajectory(), **(fields | changes))


def lived(total_s: float = 10.0, clamped: tuple[str, ...] = (), **seconds: float) -> Lived:
    """Return a life of some stages."""
    return Lived(seconds=seconds, total_s=total_s, clamped=clamped)
