"""The steps of a learner in its trace: where the paths of trajectories end."""

from __future__ import annotations

from forebay.clock import Clock
from forebay.learner.feed import JournaledBatch
from forebay.telemetry.trace import Tracer
from forebay.trajectory import PolicyVersion


class StepTrace:
    """Records each trained batch, and which trajectories it was made of.

    Args:
        tracer: Where it is recorded.
        clock: Source of time.
    """

    def __init__(self, tracer: Tracer, clock: Clock) -> None:
        self._tracer = tracer
        self._clock = clock

    def add(self, batch: JournaledBatch, version: PolicyVersion, _: object, step_s: float) -> None:
        """Record a batch.

        Args:
            batch: What was trained.
            version: The version that it made.
            step_s: Time of its updates, which have just ended.
        """
        if not self._tracer.enabled:
            return
        now_s = self._clock.monotonic_s()
        ids = (trajectory.trajectory_id for group in batch.groups for trajectory in group.trajectories)
        self._tracer.slice(
            f"train version {version.version}",
            now_s - step_s,
            now_s,
            track="steps",
            members=self._tracer.followed(ids),
            arguments={"groups": len(batch.groups), "staleness": batch.updates[0].stats.staleness_mean},
        )
