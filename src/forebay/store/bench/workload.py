"""The work of the benchmark: groups of trajectories of one size, from many writers to one reader."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Any

import msgspec
import numpy as np

from forebay.staleness import Choice, OutstandingGroup
from forebay.store.bench.processes import Body, Gate, Pace, Sample, Window, work
from forebay.store.opening import open_store
from forebay.store.protocol import Chooser, GroupSpec, JournalEntry, Slot, Store
from forebay.store.putting import receipt_of
from forebay.store.settings import StoreSettings
from forebay.trajectory import ActionSpan, PolicyVersion, Sampling, StepRecord, Task, Trajectory, VersionSpan
from forebay.trajectory import Sequence as Branch

RUN_ID = "bench"
GROUP_SIZE = 8
ORIGIN = PolicyVersion(0, 0)
_LEASE_S = 600.0
_IDLE_S = 0.001
_LONGEST_IDLE_S = 0.008
_NOT_TIMED = -1.0
_HELD_BATCHES = 4
_WAITING_BATCHES = 4
_LARGE_BYTES = 1 << 20
_TOKEN_BYTES = 8  # an int32 token and the float32 logprob of an action


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What one process of a layout is given.

    Args:
        settings: The store's settings, as JSON types.
        payload_bytes: Size of a trajectory.
        in_flight: Puts that a writer makes at once.
        batch_groups: Groups that the reader takes at once.
        puts_per_s: Puts of this writer; 0 for as many as possible.
        number: Which writer it is.
        drains: Whether the reader only removes what arrived, as that of a bare baseline does.
        writers: How many writers there are.
        run_id: The run whose store it is.
    """

    settings: dict[str, Any]
    payload_bytes: int
    in_flight: int
    batch_groups: int
    puts_per_s: float = 0.0
    number: int = 0
    drains: bool = False
    writers: int = 1
    run_id: str = RUN_ID

    @property
    def held_slots(self) -> int:
        """Most members that a writer holds at once."""
        return _HELD_BATCHES * self.in_flight

    @property
    def ahead_groups(self) -> int:
        """Groups that the reader dispatches ahead: what may wait for it, and what the writers hold."""
        return _WAITING_BATCHES * self.batch_groups + -(-self.writers * self.held_slots // GROUP_SIZE)

    @property
    def are_large(self) -> bool:
        """Whether trajectories are so large that an actor puts each by itself."""
        return self.payload_bytes >= _LARGE_BYTES

    def open(self) -> Store:
        """Open the store."""
        return open_store(StoreSettings(**self.settings), self.run_id)


def make_branch(payload_bytes: int) -> Branch:
    """Return a branch whose frame has about `payload_bytes` bytes."""
    num_tokens = max(1, payload_bytes // _TOKEN_BYTES)
    rng = np.random.default_rng(0)
    return Branch(
        tokens=rng.integers(0, 32_000, num_tokens, dtype=np.int32),
        action_spans=(ActionSpan(0, num_tokens, 0),),
        behavior_logprobs=-rng.random(num_tokens, dtype=np.float32),
        version_spans=(VersionSpan(num_tokens, ORIGIN, ORIGIN),),
        sampling=Sampling(),
    )


def make_trajectory(branch: Branch, slot: Slot, put_s: float = 0.0) -> Trajectory:
    """Return the result of a slot; `put_s` is read back where it is taken."""
    return Trajectory(
        trajectory_id=f"{slot.group_id}.{slot.member}",
        run_id=slot.run_id,
        incarnation=slot.incarnation,
        group_id=slot.group_id,
        group_size=slot.group_size,
        member=slot.member,
        attempt=slot.attempt,
        task_id=slot.task.task_id,
        environment=slot.task.environment,
        sequences=(branch,),
        steps=(StepRecord(1.0, "stop", 0.0, 0.1, 0.2),),
        reward=1.0,
        terminated=True,
        truncated=False,
        finish="terminated",
        started_s=0.0,
        finished_s=put_s,
    )


def make_specs(first: int, stop: int, payload_bytes: int, group_size: int = GROUP_SIZE) -> list[GroupSpec]:
    """Return the groups of serials `first` to `stop`."""
    return [
        GroupSpec(
            group_id=f"g{serial:08d}",
            serial=serial,
            task=Task(task_id="t", environment="bench", payload={"question": "17+25*3"}),
            group_size=group_size,
            min_group_size=group_size,
            min_version=ORIGIN,
            deadline_s=_LEASE_S,
            member_bytes=payload_bytes + 4096,
        )
        for serial in range(first, stop)
    ]


def oldest_settled(num_groups: int, *, drains: bool = False) -> Chooser:
    """Choose the oldest settled groups, once there are enough; to take them, or to drain them."""

    def choose(groups: Sequence[OutstandingGroup]) -> Choice:
        found = tuple(islice((group.group_id for group in groups if group.settled), num_groups))
        if len(found) < num_groups:
            return Choice(missing=num_groups - len(found))
        return Choice(stale=found) if drains else Choice(take=found)

    return choose


class Claims:
    """The members that a writer works on, for its threads.

    Args:
        store: Where they are claimed.
        most: Most of them at once: a writer that took more would let the others wait.
    """

    def __init__(self, store: Store, most: int) -> None:
        self._store, self._most = store, most
        self._slots: deque[Slot] = deque()
        self._gate = threading.Lock()

    def take(self, wanted: int) -> list[Slot]:
        """Return up to `wanted` members, an empty list if there are none to claim."""
        with self._gate:
            if len(self._slots) < wanted:
                num_more = self._most - len(self._slots)
                self._slots += self._store.claim(num_more, ttl_s=_LEASE_S, actor="bench", version=ORIGIN)
            return [self._slots.popleft() for _ in range(min(wanted, len(self._slots)))]


def write(job: Job, gate: Gate) -> Sample:
    """Claim members and put trajectories as an actor process does: small ones together, large ones alone."""
    store = job.open()
    branch = make_branch(job.payload_bytes)
    claims = Claims(store, job.held_slots)
    num_threads = job.in_flight if job.are_large else 1
    together = job.in_flight // num_threads

    def putting(thread: int) -> Body:
        interval_s = num_threads / job.puts_per_s if job.puts_per_s else 0.0
        phase = (thread + job.number / 16) / num_threads

        def put(window: Window) -> list[float]:
            pace = Pace(interval_s, window.warm_s + phase * interval_s)
            latencies = []
            idle_s = _IDLE_S
            while time.monotonic() < window.end_s:
                slots = claims.take(together)
                if not slots:
                    time.sleep(idle_s)
                idle_s = _IDLE_S if slots else min(2.0 * idle_s, _LONGEST_IDLE_S)
                while slots:
                    due = pace.wait_for_some(len(slots))
                    batch = [
                        (make_trajectory(branch, slot, due_s), slot)
                        for due_s, slot in zip(due, slots, strict=False)
                    ]
                    slots = slots[len(batch) :]
                    for outcome in store.put_many(batch):
                        receipt_of(outcome)
                    ended_s = time.monotonic()
                    if window.holds(ended_s):
                        latencies += [ended_s - trajectory.finished_s for trajectory, _ in batch]
            return latencies

        return put

    try:
        return work(gate.pass_through(), [putting(thread) for thread in range(num_threads)])
    finally:
        store.close()


def read(job: Job, gate: Gate) -> Sample:
    """Dispatch, take batches, record and commit them, as the learner does."""
    store = job.open()
    incarnation = store.rewind(0).incarnation
    choose = oldest_settled(job.batch_groups, drains=job.drains)

    def take(window: Window) -> list[float]:
        latencies: list[float] = []
        dispatched = step = gone_groups = 0
        while time.monotonic() < window.end_s:
            wanted = gone_groups + job.ahead_groups
            if dispatched < wanted:
                store.dispatch(make_specs(dispatched, wanted, job.payload_bytes), incarnation=incarnation)
                dispatched = wanted
            groups, choice = store.take(incarnation=incarnation, choose=choose, timeout_s=0.1)
            gone_groups += len(groups) + len(choice.stale)
            now_s = time.monotonic()
            if window.holds(now_s):
                latencies += [now_s - t.finished_s for group in groups for t in group.trajectories]
                latencies += [_NOT_TIMED] * (GROUP_SIZE * len(choice.stale))
            if groups:
                step += 1
                store.record(make_entry(step, [g.spec.group_id for g in groups]), incarnation=incarnation)
                store.commit(step, incarnation=incarnation)
        return latencies

    try:
        return work(gate.pass_through(), [take])
    finally:
        store.close()


def make_entry(step: int, group_ids: list[str]) -> JournalEntry:
    """Return the journal entry of a batch."""
    return JournalEntry(
        step=step, now=PolicyVersion(0, step - 1), forks=(), group_ids=tuple(group_ids), digest=f"{step:016x}"
    )
