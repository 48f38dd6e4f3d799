"""Where a process may be told to die: a hook for tests that kill it between two steps of its work.

Without `FOREBAY_CRASH_PLAN` nothing happens. With it, the variable names a file of one line, `POINT STEP`:
the process that reaches that point at that step or a later one removes the file and ends by SIGKILL, as if
the kernel had killed it there. Whoever wrote the file sees that it is gone.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Final, Literal, get_args

PLAN_VARIABLE: Final = "FOREBAY_CRASH_PLAN"

Point = Literal[
    "rewound",
    "replayed",
    "taken",
    "packed",
    "recorded",
    "stepped",
    "measured",
    "weights_writing",
    "weights_written",
    "weights_visible",
    "published",
    "checkpoint_writing",
    "checkpoint_written",
    "checkpoint_installed",
    "checkpointed",
    "committed",
]
POINTS: Final[tuple[Point, ...]] = get_args(Point)


def fault_point(point: Point, step: int) -> None:
    """Die here if the plan says so.

    Args:
        point: Between which two things this is.
        step: The policy version that is being worked on.
    """
    plan = os.environ.get(PLAN_VARIABLE)
    if plan:
        _follow(Path(plan), point, step)


def _follow(plan: Path, point: Point, step: int) -> None:
    try:
        wanted, _, first = plan.read_text().partition(" ")
    except FileNotFoundError:
        return
    if wanted == point and step >= int(first):
        plan.unlink(missing_ok=True)
        os.kill(os.getpid(), signal.SIGKILL)
