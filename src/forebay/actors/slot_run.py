"""One slot from claim to verdict: the episode runs, and the store learns how it went."""

from __future__ import annotations

import functools
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Protocol

from forebay.actors.episode import Assignment, EpisodeRunner
from forebay.actors.generator_health import GeneratorHealth
from forebay.actors.levels import Turn
from forebay.actors.rests import Rests
from forebay.actors.stats import Ending, EpisodeLog, EpisodeStats, StatsQueue
from forebay.actors.store_access import StoreAccess
from forebay.errors import (
    EnvironmentFailure,
    ForebayError,
    GenerationError,
    ModelError,
    RecordError,
    RefusedError,
)
from forebay.generation.protocol import BadRequestError
from forebay.store.protocol import Slot
from forebay.telemetry.trace import OFF, Tracer, member_name
from forebay.trajectory import Trajectory

_log = logging.getLogger(__name__)


class LiveSlot:
    """A slot whose episode runs.

    Args:
        slot: The slot.
        claimed_s: Wall clock at the claim.
        run_name: Tells this run of the slot from any other, earlier or elsewhere.

    Attributes:
        lost: The lease is gone; nobody waits for the result.
        putting: The result is on its way; the store will judge it.
        resting: The attempt has failed; its member rests, and its place is free.
        member: The member whose path the episode belongs to.
        log: What the episode has done so far.
        trajectory: Its result, once there is one.
        ended_s: Wall clock at the end of a failed attempt, before the rest.
    """

    def __init__(self, slot: Slot, claimed_s: float, run_name: str) -> None:
        self.slot = slot
        self.claimed_s = claimed_s
        self.trajectory_id = f"{slot.group_id}.{slot.member}.{slot.attempt}"
        self.episode_id = f"{self.trajectory_id}.{run_name}"
        self.lost = False
        self.putting = False
        self.resting = False
        self.ended_s: float | None = None
        self.member = member_name(slot.group_id, slot.member)
        self.log = EpisodeLog()
        self.trajectory: Trajectory | None = None

    def assignment(self, run_seed: int) -> Assignment:
        """Return what the episode is run for."""
        slot = self.slot
        return Assignment(
            trajectory_id=self.trajectory_id,
            episode_id=self.episode_id,
            run_id=slot.run_id,
            incarnation=slot.incarnation,
            group_id=slot.group_id,
            group_size=slot.group_size,
            member=slot.member,
            attempt=slot.attempt,
            min_version=slot.min_version,
            seed=run_seed,
            asked_s=self.claimed_s,
        )


class Watcher(Protocol):
    """Who decides by what episodes do how many there are."""

    def turn(self, environment: str, turn: Turn) -> None:
        """Note a turn that has ended."""
        ...

    def failed(self, environment: str) -> None:
        """Note a reset or step that has failed."""
        ...

    def ended(self, environment: str, duration_s: float) -> None:
        """Note an episode that has ended with a result."""
        ...


class SlotRunner:
    """Runs slots and tells the store what came of them.

    A result is put, a timeout too; an error fails the attempt with a reason, after a rest that grows while
    the environment keeps failing; a generator that is not there gives the slot back untried.

    Args:
        runner: Runs the episodes.
        store: Learns how they went.
        health: Learns how the generator did.
        rests: Knows how long a member rests after a failure.
        rest: Waits for so many seconds, or until the pool is drained; the episode's place is free meanwhile.
        run_seed: Seed of the run.
        put_margin_s: An episode ends this long before its group's deadline.
        counters: Where outcomes are counted.
        episodes: Where ended episodes are reported.
        tracer: Records the episodes of the members that it follows.
        watcher: Told how episodes go, if anybody decides by it how many there are.
    """

    def __init__(
        self,
        runner: EpisodeRunner,
        store: StoreAccess,
        health: GeneratorHealth,
        rests: Rests,
        rest: Callable[[float], Awaitable[None]],
        *,
        run_seed: int,
        put_margin_s: float,
        counters: Counter[str],
        episodes: StatsQueue,
        tracer: Tracer = OFF,
        watcher: Watcher | None = None,
    ) -> None:
        self._watcher = watcher
        self._runner = runner
        self._store = store
        self._health = health
        self._rests = rests
        self._rest = rest
        self._run_seed = run_seed
        self._put_margin_s = put_margin_s
        self._counters = counters
        self._episodes = episodes
        self._tracer = tracer

    async def run(self, live: LiveSlot) -> None:
        """Run one slot.

        Consumes: a slot. Waits for: the episode, then the store. Unblocked by: the episode's deadlines, a
        write. Produces: one verb of the store.
        """
        ending: Ending = "cancelled"
        live.log.traced = self._tracer.follows(live.member)
        if self._watcher is not None:
            live.log.on_turn = functools.partial(self._watcher.turn, live.slot.task.environment)
        now_s = self._now_s()
        claimed_s = now_s - max(0.0, self._runner.clock.wall_s() - live.claimed_s)
        live.log.span("claim", claimed_s, now_s)
        try:
            ending = await self._run(live)
        finally:
            self._episodes.offer(self._stats(live, ending))
            if live.log.traced:
                self._trace(live, ending, claimed_s)

    async def _run(self, live: LiveSlot) -> Ending:
        slot = live.slot
        timeout_s = slot.group_deadline_s - self._put_margin_s - self._runner.clock.wall_s()
        try:
            trajectory = await self._runner.run(
                slot.task, live.assignment(self._run_seed), timeout_s=timeout_s, log=live.log
            )
        except EnvironmentFailure as error:
            return await self._fail(live, "environment", error)
        except RecordError as error:
            self._counters[f"rejected.{error.reason}"] += 1
            return await self._fail(live, error.reason, error)
        except ModelError as error:
            return await self._fail(live, "chat", error)
        except BadRequestError as error:
            return await self._fail(live, "generator", error)
        except GenerationError as error:
            self._health.failed(error)
            await self._store.release(slot)
            return "released"
        self._health.succeeded()
        self._rests.succeeded(slot.task.environment)
        return await self._deliver(live, trajectory)

    async def _deliver(self, live: LiveSlot, trajectory: Trajectory) -> Ending:
        self._counters[f"finished.{trajectory.finish}"] += 1
        self._counters["branches"] += int(trajectory.metrics["branches"])
        if trajectory.finish == "context" and not trajectory.steps:
            # The task does not fit the context: no attempt will, and an empty member teaches nothing.
            return await self._fail(live, "context", RefusedError("no room for its prompt"))
        live.trajectory = trajectory
        if self._watcher is not None:
            duration_s = trajectory.finished_s - trajectory.started_s
            self._watcher.ended(trajectory.environment, duration_s)
        live.putting, live.log.doing = True, "put"
        ending: Ending
        began_s = self._now_s()
        try:
            ending = await self._store.put(trajectory, live.slot)
        except RefusedError as error:
            ending = "refused"
            await self._fail(live, "refused", error)
        live.log.span("put", began_s, self._now_s())
        self._counters[f"receipts.{ending}"] += 1
        return ending

    async def _fail(self, live: LiveSlot, reason: str, error: ForebayError) -> Ending:
        """Let the member rest under its lease, then say that the attempt has failed."""
        environment = live.slot.task.environment
        if reason == "environment" and self._watcher is not None:
            self._watcher.failed(environment)
        rest_s = self._rests.failed(environment, error)
        self._counters[f"failed.{reason}"] += 1
        self._counters[f"failures.{environment}.{reason}"] += 1
        self._counters[f"rests.{environment}"] += 1
        _log.warning("%s failed (%s), rests for %.1f s: %s", live.trajectory_id, reason, rest_s, error)
        live.ended_s, live.putting, live.resting = self._runner.clock.wall_s(), False, True
        began_s = self._now_s()
        await self._rest(rest_s)
        live.log.span("rest", began_s, self._now_s())
        await self._store.fail(live.slot, reason)
        return "failed"

    def _stats(self, live: LiveSlot, ending: Ending) -> EpisodeStats:
        if live.trajectory is not None:
            return EpisodeStats.of(live.trajectory, ending)
        ended_s = self._runner.clock.wall_s() if live.ended_s is None else live.ended_s
        duration_s = max(0.0, ended_s - live.claimed_s)
        return EpisodeStats.without_result(live.slot.task.environment, ending, live.log, duration_s)

    def _now_s(self) -> float:
        return self._runner.clock.monotonic_s()

    def _trace(self, live: LiveSlot, ending: Ending, began_s: float) -> None:
        """Record an episode on a lane of its own: the whole of it, and inside it what it did."""
        ended_s = self._now_s()
        lane = self._tracer.lane("episode", began_s, ended_s)
        arguments = {
            "trajectory": live.trajectory_id,
            "environment": live.slot.task.environment,
            "ending": ending,
        }
        self._tracer.slice(f"episode {live.trajectory_id}", began_s, ended_s, track=lane, arguments=arguments)
        for name, span_began_s, span_ended_s in live.log.spans:
            self._tracer.slice(name, span_began_s, span_ended_s, track=lane, members=(live.member,))
