"""A run on a virtual clock: the real store, dispatcher, feed and rules; episodes and steps only take time."""

from __future__ import annotations

import heapq
import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import xxhash

from forebay.batching.settings import BatchingSettings
from forebay.clock import ManualClock
from forebay.envs.latency import DelayModel, LatencySettings
from forebay.learner.dispatch import Dispatcher
from forebay.learner.division import divide
from forebay.learner.families import Posed
from forebay.learner.feed import Feed, JournaledBatch
from forebay.learner.siblings import FinishedSiblings, decode_families
from forebay.objectives.advantages import GroupAdvantages, Outcome, by_group, leave_one_out
from forebay.objectives.settings import ObjectiveSettings
from forebay.objectives.siblings import among_siblings
from forebay.staleness import StalenessSettings
from forebay.store import GroupSpec, Slot, StoreSettings, TakenGroup, open_store
from forebay.trajectory import (
    ActionSpan,
    PolicyVersion,
    Sampling,
    StepRecord,
    Task,
    Trajectory,
    VersionSpan,
)
from forebay.trajectory import Sequence as Branch

_RUN = "siblings"
_TICK_S = 1.0
_NEVER_S = 1e9


class Load(NamedTuple):
    """What environments and learner are like.

    Attributes:
        turns: Model calls of an episode; generation takes no time beside the environment.
        answers: How long the environment takes for one, of a fast task.
        slow_factor: How much longer it takes for every other task.
        timeout_s: Deadline of an episode.
        step_s: Time of an optimizer step.
        groups: Tasks of a batch.
        group_size: Episodes of a task.
    """

    turns: int = 6
    answers: LatencySettings = LatencySettings(mean_s=4.0, sigma=0.5, straggler_probability=0.05)
    slow_factor: float = 2.0
    timeout_s: float = 120.0
    step_s: float = 8.0
    groups: int = 8
    group_size: int = 4


class Update(NamedTuple):
    """What a packer makes of a batch, as far as the feed looks at it.

    Attributes:
        digest: Of names and advantages.
        advantages: Of each group's members.
        empty: Never.
    """

    digest: str
    advantages: Sequence[GroupAdvantages]
    empty: bool = False


class EventClock(ManualClock):
    """A clock on which things happen while somebody sleeps."""

    def __init__(self) -> None:
        super().__init__(1000.0)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def at(self, delay_s: float, event: Callable[[], None]) -> None:
        """Let something happen later."""
        self._count += 1
        heapq.heappush(self._events, (self.monotonic_s() + delay_s, self._count, event))

    def sleep(self, duration_s: float) -> None:
        """Sleep, and on to the next event at least: until then there is nothing to see."""
        until_s = self.monotonic_s() + duration_s
        if self._events:
            until_s = max(until_s, self._events[0][0])
        while self._events and self._events[0][0] <= until_s:
            time_s, _, event = heapq.heappop(self._events)
            self.advance(max(0.0, time_s - self.monotonic_s()))
            event()
        self.advance(max(0.0, until_s - self.monotonic_s()))


class World:
    """A learner, its store, and actors with room for everything that is dispatched.

    Args:
        load: How long everything takes.
        objective: Which siblings wait for one another.
        staleness: The staleness rule.
        batches: Batches of the run.
        seed: Seed of the delays.
        min_group_size: Members that suffice for a group.

    Attributes:
        batches: What was trained.
        taken_s: When each of them was taken.
    """

    def __init__(
        self,
        load: Load,
        objective: ObjectiveSettings,
        staleness: StalenessSettings,
        batches: int,
        seed: int = 0,
        min_group_size: int = 2,
    ) -> None:
        self.load, self.staleness, self.num_batches, self.seed = load, staleness, batches, seed
        batching = BatchingSettings(
            groups=load.groups, group_size=load.group_size, min_group_size=min_group_size
        )
        self.division = divide(objective, batching)
        self.clock = EventClock()
        self.store = open_store(StoreSettings(engine="memory"), _RUN, self.clock)
        self.store.rewind(0)
        groups = self.division.groups(batching)
        self.dispatcher = Dispatcher(
            self.store, 0, self._make_group, staleness, groups, 1, batches, parts=self.division.parts
        )
        siblings = None
        if needed := self.division.siblings_needed:
            most = 2 * staleness.batches_in_flight * load.groups
            siblings = FinishedSiblings(needed, self.store.read_group, (), most)
        self.feed = Feed(
            self.store, 0, (), self.pack, staleness, groups, 1, self.dispatcher.repeat,
            clock=self.clock, siblings=siblings,
        )  # fmt: skip
        self.batches: list[JournaledBatch] = []
        self.taken_s: list[float] = []
        self._published_s = [self.clock.monotonic_s()]
        self.clock.at(0.0, self._tick)

    def run(self) -> None:
        """Train all batches."""
        for version in range(self.num_batches):
            batch = self.feed.next(version, threading.Event())
            assert batch is not None
            self.batches.append(batch)
            self.taken_s.append(self.clock.monotonic_s())
            self.clock.sleep(self.load.step_s)
            self._published_s.append(self.clock.monotonic_s())
            self.store.publish(PolicyVersion(0, version + 1), incarnation=0)
            self.store.commit(version + 1, incarnation=0)
            self._dispatch()

    def pack(self, groups: tuple[TakenGroup, ...], now: PolicyVersion, forks: Any, packing: bytes) -> Any:
        """Compare what was taken, and make a digest of it."""
        estimate = by_group(leave_one_out)
        if self.division.siblings_needed:
            names = [group.spec.group_id for group in groups]
            estimate = among_siblings(estimate, names, list(decode_families(packing).values()))
        outcomes = [[Outcome(t.reward, t.num_action_tokens) for t in group.trajectories] for group in groups]
        advantages = estimate(outcomes)
        digest = xxhash.xxh3_64(" ".join(group.spec.group_id for group in groups).encode())
        for group in advantages:
            digest.update(group.advantages.tobytes())
        return (Update(digest.hexdigest(), advantages),)

    def _tick(self) -> None:
        self._dispatch()
        self.clock.at(_TICK_S, self._tick)

    def _dispatch(self) -> None:
        self.dispatcher.top_up()
        published = self.store.stats().published
        for slot in self.store.claim(1_000_000, ttl_s=_NEVER_S, actor="a", version=published):
            self._begin(slot)

    def _begin(self, slot: Slot) -> None:
        episode = f"{self.seed}:{slot.task.task_id}:{slot.group_id}:{slot.member}"
        delays = DelayModel(self.load.answers, xxhash.xxh3_64_intdigest(episode.encode()))
        factor = self.load.slow_factor if slot.task.payload["slow"] else 1.0
        answers_s = [factor * delays.delay_s(turn) for turn in range(1, self.load.turns + 1)]
        begun_s, starts_s = self.clock.monotonic_s(), [0.0]
        for answer_s in answers_s:
            starts_s.append(starts_s[-1] + answer_s)
        took_s = min(starts_s.pop(), self.load.timeout_s)
        starts_s = [start_s for start_s in starts_s if start_s <= took_s]
        reward = float(xxhash.xxh3_64_intdigest(f"{episode}:reward".encode()) % 2)
        self.clock.at(took_s, lambda: self._end(slot, begun_s, starts_s, took_s, reward))

    def _end(self, slot: Slot, begun_s: float, starts_s: list[float], took_s: float, reward: float) -> None:
        versions = [
            PolicyVersion(0, bisect_right(self._published_s, begun_s + start_s) - 1) for start_s in starts_s
        ]
        self.store.put(_trajectory(slot, versions, took_s >= self.load.timeout_s, took_s, reward), slot)

    def _make_group(self, serial: int, posed: Posed, min_version: PolicyVersion) -> GroupSpec:
        number = serial // self.division.parts
        task = Task(task_id=f"t{number}", environment="tools", payload={"slow": number % 2 == 1})
        return GroupSpec(
            group_id=f"g{serial:08d}",
            serial=serial,
            task=posed if isinstance(posed, Task) else task,
            group_size=self.division.size,
            min_group_size=self.division.min_size,
            min_version=min_version,
            deadline_s=2 * self.load.timeout_s,
            member_bytes=4096,
        )


def _trajectory(
    slot: Slot, versions: Sequence[PolicyVersion], timed_out: bool, took_s: float, reward: float
) -> Trajectory:
    """Return an episode that sampled one token a turn."""
    turns = len(versions)
    branch = Branch(
        tokens=np.zeros(turns + 1, np.int32),
        action_spans=tuple(ActionSpan(turn + 1, turn + 2, turn) for turn in range(turns)),
        behavior_logprobs=np.full(turns, -0.5, np.float32),
        version_spans=tuple(VersionSpan(1, version, version) for version in versions),
        sampling=Sampling(),
    )
    return Trajectory(
        trajectory_id=f"{slot.group_id}.{slot.member}.{slot.attempt}",
        run_id=_RUN,
        incarnation=slot.incarnation,
        group_id=slot.group_id,
        group_size=slot.group_size,
        member=slot.member,
        attempt=slot.attempt,
        task_id=slot.task.task_id,
        environment=slot.task.environment,
        sequences=(branch,),
        steps=tuple(StepRecord(None, "stop", 0.0, 0.0, 1.0) for _ in range(turns)),
        reward=reward,
        terminated=not timed_out,
        truncated=timed_out,
        finish="timeout" if timed_out else "terminated",
        started_s=0.0,
        finished_s=took_s,
    )
