"""Where a token spent its life: the stages of its trajectory's way, from dispatch to the end of its step.

Stages are differences on one clock wherever two stamps of the same process exist. Three of them join wall
clocks of two processes: `admission` (store and actor), `group` (two actors) and `buffer` (actor and learner);
between hosts they are wrong by the skew of their clocks. A stage that would be negative is 0 and is counted
as `clamped`; what that takes from, or adds to, the sum is the residual.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, get_args

import msgspec

from forebay.trajectory import Trajectory

Stage = Literal[
    "admission",
    "retries",
    "reset",
    "generator_queue",
    "generating",
    "environment",
    "other",
    "group",
    "buffer",
    "packing",
    "handover",
    "training",
]
STAGES: Final[tuple[Stage, ...]] = get_args(Stage)
# What an episode does from its claim to its end.
EPISODE_STAGES: Final[tuple[Stage, ...]] = ("reset", "generator_queue", "generating", "environment", "other")
# Nobody waits so long: a stamp that says so is damaged.
MAX_STAGE_S: Final = 1e8
# Differences of stamps that are equal but for rounding of wall clocks in float64.
_ROUNDING_S: Final = 1e-5
TOTAL: Final = "total"


class BatchStamps(NamedTuple):
    """When the learner had a batch in hand.

    Attributes:
        taken_wall_s: Wall clock when its groups were taken.
        taken_s: The monotonic clock at that moment.
        recorded_s: The monotonic clock when it was packed and in the journal.
    """

    taken_wall_s: float
    taken_s: float
    recorded_s: float


class StepStamps(NamedTuple):
    """When a batch was trained.

    Attributes:
        ended_wall_s: Wall clock at the end of its step.
        ended_s: The monotonic clock at that moment; the same clock as that of the batch's stamps.
        step_s: Time of the step.
    """

    ended_wall_s: float
    ended_s: float
    step_s: float


class GroupStamps(NamedTuple):
    """When a group was under way.

    Attributes:
        dispatched_s: Wall clock at its dispatch; None if that is not known.
        settled_s: Wall clock at the end of the last of its episodes that left a trajectory.
    """

    dispatched_s: float | None
    settled_s: float


class Lived(msgspec.Struct, frozen=True, kw_only=True):
    """The life of one trajectory.

    Args:
        seconds: By stage; a stage that was not recorded is missing.
        total_s: From the dispatch of its group, or its claim if that is not known, to the end of its step,
            by wall clocks.
        clamped: Stages that would have been negative, or absurdly long, and were cut.
    """

    seconds: Mapping[Stage, float]
    total_s: float
    clamped: tuple[str, ...] = ()

    @property
    def residual_s(self) -> float:
        """What the stages leave unexplained; negative if they explain too much."""
        return self.total_s - math.fsum(self.seconds.values())


def live_through(trajectory: Trajectory, group: GroupStamps, batch: BatchStamps, step: StepStamps) -> Lived:
    """Return the life of a trajectory that was trained.

    Args:
        trajectory: With the stamps of its actor.
        group: Those of its group.
        batch: Those of its batch.
        step: Those of its step.

    Example:
        See `tests/unit/telemetry/test_residence.py` for a life by hand.
    """
    claimed_s = trajectory.started_s - trajectory.admission_s
    began_s = claimed_s if group.dispatched_s is None else group.dispatched_s
    retried_s = claimed_s - began_s if trajectory.attempt else 0.0
    spans: dict[Stage, float] = {"admission": trajectory.started_s - began_s - retried_s}
    if trajectory.attempt:
        spans["retries"] = retried_s
    spans |= _episode(trajectory)
    spans["group"] = group.settled_s - trajectory.finished_s
    spans["buffer"] = batch.taken_wall_s - group.settled_s
    spans["packing"] = batch.recorded_s - batch.taken_s
    spans["handover"] = step.ended_s - step.step_s - batch.recorded_s
    spans["training"] = step.step_s
    return _checked(spans, step.ended_wall_s - began_s)


def _episode(trajectory: Trajectory) -> dict[Stage, float]:
    """Return what an episode did; frames of older versions have no reset, which is part of `other` then."""
    waited_s = generated_s = answered_s = 0.0
    for step in trajectory.steps:
        waited_s += step.generator_wait_s
        generated_s += step.generate_s
        answered_s += step.environment_s
    reset_s = trajectory.reset_s
    inside_s = waited_s + generated_s + answered_s + (reset_s or 0.0)
    spans: dict[Stage, float] = {
        "generator_queue": waited_s,
        "generating": generated_s,
        "environment": answered_s,
        "other": trajectory.finished_s - trajectory.started_s - inside_s,
    }
    return spans if reset_s is None else {"reset": reset_s, **spans}


def _checked(spans: dict[Stage, float], total_s: float) -> Lived:
    """Return a life within its bounds, with the names of what had to be cut."""
    if min(spans.values()) >= 0.0 and 0.0 <= total_s <= MAX_STAGE_S >= max(spans.values()):
        return Lived(seconds=spans, total_s=total_s)
    bounded = {stage: _bounded(seconds) for stage, seconds in spans.items()}
    clamped: list[str] = [stage for stage, seconds in spans.items() if _is_cut(seconds)]
    if _is_cut(total_s):
        clamped.append(TOTAL)
    return Lived(seconds=bounded, total_s=_bounded(total_s), clamped=tuple(clamped))


def _bounded(seconds: float) -> float:
    # What is not a number, such as the difference of two absurd stamps, is not above 0 either.
    return min(seconds, MAX_STAGE_S) if seconds > 0.0 else 0.0


def _is_cut(seconds: float) -> bool:
    return not abs(_bounded(seconds) - seconds) <= _ROUNDING_S
