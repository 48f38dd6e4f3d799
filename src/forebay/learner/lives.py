"""The lives of trained trajectories: added up by environment, a line per batch; without JAX."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from forebay.batching.prefetch import Prefetcher
from forebay.clock import Clock
from forebay.learner.batch_values import TrainedTrajectory
from forebay.learner.feed import JournaledBatch
from forebay.store.protocol import StoreStats, TakenGroup
from forebay.telemetry.life_log import LifeLog, LifeTable, read_lives
from forebay.telemetry.life_table import Life, Weighed, tabulate
from forebay.telemetry.little import Flow
from forebay.telemetry.residence import BatchStamps, GroupStamps, StepStamps, live_through
from forebay.telemetry.spans import TimeStrip

# What the training thread does inside a step.
_IN_STEP = frozenset(("computing", "packing", "compiling"))


class Lives:
    """Records where the tokens of each batch spent their lives.

    Args:
        log: Where the line of each batch goes; None for nowhere.
        clock: That of the feed and the step.
    """

    def __init__(self, log: LifeLog | None, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._since_s = clock.monotonic_s()
        self._seen: Callable[[], Mapping[str, Flow]] = dict

    def watch(self, seen: Callable[[], Mapping[str, Flow]]) -> None:
        """Take what was seen inside the queues from `seen`, which forgets it, from now on."""
        self._seen = seen
        self.restart()

    def restart(self) -> None:
        """Let the time of the next line begin now."""
        self._since_s = self._clock.monotonic_s()
        self._seen()

    def read(self) -> LifeTable | None:
        """Return the lives of the whole run, of every process that led it; None if there are none."""
        return None if self._log is None else read_lives(self._log.path)

    def add(
        self, batch: JournaledBatch, step: int, trained: Sequence[TrainedTrajectory], step_s: float
    ) -> dict[str, float]:
        """Account for a batch whose step has just ended.

        A batch that a resume trains from the journal has no stamps and leaves no line: its trajectories have
        lived already, or waited while nobody trained.

        Args:
            batch: What was trained.
            step: The version that it made.
            trained: Its trajectories, with their trained tokens.
            step_s: Time of its step.

        Returns:
            Mean seconds of a trained token in each stage, as `life.STAGE_s`, and `life.residual_s`; nothing
            if no token was trained.
        """
        if batch.stamps is None:
            return {}
        end = StepStamps(self._clock.wall_s(), self._clock.monotonic_s(), step_s)
        table = tabulate(_lived(batch.groups, trained, batch.stamps, end))
        if self._log is not None:
            flows = _flows(batch.groups, batch.stamps, end)
            for queue, flow in self._seen().items():
                flows.setdefault(queue, Flow()).merge(flow)
            self._log.write(step, end.ended_s - self._since_s, table, flows)
            self._since_s = end.ended_s
        return life_values(table.values())


def life_values(lives: Collection[Life]) -> dict[str, float]:
    """Return the mean seconds of a trained token in each stage, by the name of the metric.

    Args:
        lives: Of each environment.
    """
    tokens = sum(life.tokens for life in lives)
    if not tokens:
        return {}
    spent_s: defaultdict[str, float] = defaultdict(float)
    for life in lives:
        for stage in life.recorded:
            spent_s[f"life.{stage}_s"] += life.stages[stage].token_s
        spent_s["life.residual_s"] += life.residual_token_s
    return {name: seconds / tokens for name, seconds in spent_s.items()}


def look_inside(
    stats: Callable[[], StoreStats], prefetcher: Prefetcher[JournaledBatch | None], strip: TimeStrip
) -> Callable[[], dict[str, float]]:
    """Return what counts what is inside each queue at the moment it is called.

    Args:
        stats: Reads the store: the groups that are under way, settled, or in the learner's hands, and the
            episodes that an actor works on.
        prefetcher: Holds batches that are ready.
        strip: Says whether a step runs.
    """

    def look() -> dict[str, float]:
        seen = stats()
        live = sum(seen.live_by_environment.values())
        return {
            "store": live,
            "episodes": seen.leased_slots,
            "buffer": seen.settled_groups,
            "packing": float(live > seen.open_groups + seen.settled_groups),
            "handover": prefetcher.num_ready,
            "training": float(strip.state in _IN_STEP),
        }

    return look


def _lived(
    groups: Sequence[TakenGroup],
    trained: Sequence[TrainedTrajectory],
    batch: BatchStamps,
    end: StepStamps,
) -> Iterator[Weighed]:
    fresh_tokens = {trajectory.trajectory_id: count for trajectory, count in trained}
    for group in groups:
        stamps = GroupStamps(group.dispatched_s, _settled_s(group))
        for trajectory in group.trajectories:
            lived = live_through(trajectory, stamps, batch, end)
            yield Weighed(trajectory.environment, lived, fresh_tokens[trajectory.trajectory_id])


def _settled_s(group: TakenGroup) -> float:
    return max((trajectory.finished_s for trajectory in group.trajectories), default=math.nan)


def _flows(groups: Sequence[TakenGroup], batch: BatchStamps, end: StepStamps) -> dict[str, Flow]:
    """Return what passed through each queue with a batch: groups, episodes, or the batch as one."""
    packing_s = max(0.0, batch.recorded_s - batch.taken_s)
    recorded_wall_s = batch.taken_wall_s + packing_s
    members = [trajectory for group in groups for trajectory in group.trajectories]
    dispatched = [group.dispatched_s for group in groups if group.dispatched_s is not None]
    in_store_s = sum(max(0.0, recorded_wall_s - dispatched_s) for dispatched_s in dispatched)
    running_s = sum(max(0.0, t.admission_s + t.finished_s - t.started_s) for t in members)
    buffered_s = sum(max(0.0, batch.taken_wall_s - _settled_s(group)) for group in groups)
    handover_s = max(0.0, end.ended_s - end.step_s - batch.recorded_s)
    return {
        "store": Flow(len(dispatched), in_store_s),
        "episodes": Flow(len(members), running_s),
        "buffer": Flow(len(groups), buffered_s),
        "packing": Flow(1, packing_s),
        "handover": Flow(1, handover_s),
        "training": Flow(1, end.step_s),
    }
