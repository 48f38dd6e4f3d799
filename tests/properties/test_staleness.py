"""The staleness bound under any interleaving of dispatch, start, settle, take, publish and crash.

The model plays store, actors and learner around the pure functions: what is dispatched follows
`dispatch_allowance`, what is taken follows `choose_groups`, and every taken group is checked against the
version of each of its updates.
"""

from __future__ import annotations

import dataclasses
import random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from forebay.staleness import (
    Choice,
    Fork,
    OnStale,
    OutstandingGroup,
    StalenessSettings,
    choose_groups,
    credit_batches,
    dispatch_allowance,
    effective_version,
    staleness_of,
)
from forebay.trajectory import PolicyVersion
from tests.properties.strategies import fork_histories, versions

OPERATIONS = ("dispatch", "start", "settle", "take", "publish")


@dataclasses.dataclass
class Loop:
    """A run whose every moment is chosen by the test."""

    settings: StalenessSettings
    groups_per_batch: int
    steps: int
    updates: int = 1
    ahead: int = 1  # Batches taken beyond the published one.
    incarnation: int = 0
    forks: tuple[Fork, ...] = ()
    published: int = 0
    open: dict[int, OutstandingGroup] = dataclasses.field(default_factory=dict)
    in_flight: list[list[OutstandingGroup]] = dataclasses.field(default_factory=list)
    trained: list[list[OutstandingGroup]] = dataclasses.field(default_factory=list)
    next_serial: int = 0
    num_stale: int = 0

    @property
    def batches_taken(self) -> int:
        return len(self.trained) + len(self.in_flight)

    def version(self, batches: int) -> PolicyVersion:
        return PolicyVersion(self.incarnation, batches * self.updates)

    def dispatch(self) -> bool:
        outstanding = len(self.open) + len(self.in_flight) * self.groups_per_batch
        left = (self.steps - len(self.trained)) * self.groups_per_batch
        allowed = dispatch_allowance(
            self.settings, self.groups_per_batch, outstanding, left, updates_per_batch=self.updates
        )
        for serial in range(self.next_serial, self.next_serial + allowed):
            self.open[serial] = OutstandingGroup(
                group_id=f"g{serial}", serial=serial, environment="e", settled=False, start=None
            )
        self.next_serial += allowed
        return allowed > 0

    def start(self, pick: int, lag_batches: int = 0) -> bool:
        waiting = [g for g in self.open.values() if g.start is None]
        if waiting:
            group = waiting[pick % len(waiting)]
            first = self.forks[-1].version if self.forks else 0
            version = max(first, (len(self.trained) - lag_batches) * self.updates)
            start = PolicyVersion(self.incarnation, version)
            self.open[group.serial] = _replace(group, start=start)
        return bool(waiting)

    def settle(self, pick: int) -> bool:
        running = [g for g in self.open.values() if g.start is not None and not g.settled]
        if running:
            group = running[pick % len(running)]
            self.open[group.serial] = _replace(group, settled=True)
        return bool(running)

    def choose(self) -> Choice:
        return choose_groups(
            self.open.values(),
            self.version(self.batches_taken),
            self.settings,
            self.groups_per_batch,
            self.forks,
            updates_per_batch=self.updates,
        )

    def take(self) -> bool:
        if self.batches_taken == self.steps or len(self.in_flight) > self.ahead:
            return False
        choice = self.choose()
        by_id = {g.group_id: g for g in self.open.values()}
        assert len(choice.take) in (0, self.groups_per_batch)
        assert all(by_id[name].settled for name in (*choice.take, *choice.stale))
        assert not set(choice.take) & set(choice.stale)
        batch = [by_id[name] for name in choice.take]
        for group in batch if self.settings.on_stale != "mask" else []:
            assert group.start is not None
            for update in range(self.updates):
                now = PolicyVersion(self.incarnation, self.batches_taken * self.updates + update)
                assert staleness_of(group.start, now, self.forks) <= self.settings.max_staleness
        for name in (*choice.take, *choice.stale):
            del self.open[by_id[name].serial]
        self.num_stale += len(choice.stale)
        if batch:
            self.in_flight.append(batch)
        return bool(batch or choice.stale)

    def publish(self) -> bool:
        if self.in_flight:
            self.trained.append(self.in_flight.pop(0))
        return bool(self.in_flight)

    def crash(self, keep: int) -> None:
        """Resume from an older checkpoint; what was trained beyond it can be taken again."""
        keep %= len(self.trained) + 1
        lost = [g for batch in self.trained[keep:] + self.in_flight for g in batch]
        self.trained, self.in_flight = self.trained[:keep], []
        self.open |= {g.serial: g for g in lost}
        self.incarnation += 1
        self.forks = (*self.forks, Fork(self.incarnation, keep * self.updates))

    def finish(self) -> None:
        """Let every group settle, and require that the run then ends."""
        for _ in range(10 * (self.steps + len(self.open) + 2)):
            if len(self.trained) == self.steps:
                return
            self.dispatch()
            while self.start(0):
                pass
            while self.settle(0):
                pass
            self.take()
            self.publish()
        raise AssertionError(f"deadlock: {self.choose()} with {sorted(self.open)}")


def _replace(group: OutstandingGroup, **changes: object) -> OutstandingGroup:
    fields = {name: getattr(group, name) for name in group.__struct_fields__}
    return OutstandingGroup(**(fields | changes))  # type: ignore[arg-type]


@st.composite
def loops(draw: st.DrawFn, on_stale: OnStale) -> Loop:
    updates = draw(st.sampled_from([1, 1, 1, 2, 3]))
    return Loop(
        settings=StalenessSettings(max_staleness=updates - 1 + draw(st.integers(0, 5)), on_stale=on_stale),
        groups_per_batch=draw(st.integers(1, 3)),
        steps=draw(st.integers(1, 12)),
        updates=updates,
        ahead=draw(st.integers(0, 2)),
    )


@st.composite
def interleavings(draw: st.DrawFn, *more: str) -> list[tuple[str, int]]:
    """Draw up to 400 moves; how often each comes varies, and so does which group an actor turns to.

    The moves come from a seed: lists drawn one element at a time stay too short to reach old versions.
    """
    rng = random.Random(draw(st.integers(0, 2**32)))
    weights = [draw(st.integers(1, 6)) for _ in OPERATIONS] + [1 for _ in more]
    # 0 turns to the oldest group, -1 to the newest: then the oldest become stragglers.
    picks = draw(st.sampled_from([(0,), (-1,), (0, 1, 2, 3, 4, 5), (-1, -2, -1, 0)]))
    names = rng.choices((*OPERATIONS, *more), weights, k=draw(st.integers(0, 400)))
    return [(name, rng.choice(picks)) for name in names]


def play(loop: Loop, operations: list[tuple[str, int]], lag_batches: int = 0) -> None:
    for name, pick in operations:
        match name:
            case "start":
                loop.start(pick, lag_batches * (pick % 2))
            case "settle":
                loop.settle(pick)
            case "crash":
                loop.crash(pick)
            case _:
                getattr(loop, name)()


@settings(max_examples=300)
@given(loops("wait"), interleavings())
def test_wait_trains_everything_and_nothing_beyond_the_bound(
    loop: Loop, operations: list[tuple[str, int]]
) -> None:
    play(loop, operations)
    loop.finish()
    assert loop.num_stale == 0
    serials = [g.serial for batch in loop.trained for g in batch]
    assert sorted(serials) == list(range(loop.steps * loop.groups_per_batch)) == list(range(loop.next_serial))


@pytest.mark.parametrize("on_stale", ["wait", "drop", "mask"])
@given(st.data(), interleavings(), st.integers(0, 8))
def test_the_bound_holds_and_the_run_ends_with_generators_that_lag(
    on_stale: OnStale, data: st.DataObject, operations: list[tuple[str, int]], lag_batches: int
) -> None:
    loop = data.draw(loops(on_stale))
    play(loop, operations, lag_batches)
    loop.finish()
    serials = [g.serial for batch in loop.trained for g in batch]
    assert len(serials) == len(set(serials)) == loop.steps * loop.groups_per_batch
    assert len(serials) + loop.num_stale + len(loop.open) == loop.next_serial


@pytest.mark.parametrize("on_stale", ["wait", "drop", "mask"])
@given(st.data(), interleavings("crash"))
def test_c35_the_bound_holds_and_the_run_ends_across_crashes(
    on_stale: OnStale, data: st.DataObject, operations: list[tuple[str, int]]
) -> None:
    loop = data.draw(loops(on_stale))
    play(loop, operations)
    loop.finish()
    assert len(loop.trained) == loop.steps


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("on_stale", ["wait", "drop", "mask"])
def test_c84_a_run_shorter_than_the_window_ends(steps: int, on_stale: OnStale) -> None:
    loop = Loop(StalenessSettings(max_staleness=4, on_stale=on_stale), groups_per_batch=2, steps=steps)
    loop.finish()
    assert loop.next_serial == 2 * steps
    assert loop.num_stale == 0


@given(loops("wait"), interleavings())
def test_the_credit_is_never_exceeded(loop: Loop, operations: list[tuple[str, int]]) -> None:
    limit = credit_batches(loop.settings, loop.updates) * loop.groups_per_batch
    for operation in operations:
        play(loop, [operation])
        assert len(loop.open) + len(loop.in_flight) * loop.groups_per_batch <= limit


@given(versions, versions, fork_histories())
def test_effective_versions_keep_the_order(
    left: PolicyVersion, right: PolicyVersion, forks: tuple[Fork, ...]
) -> None:
    """What is older by (incarnation, version) is at least as old by number."""
    begins = {0: 0} | {fork.incarnation: fork.version for fork in forks}
    older, newer = sorted((left, right))
    assume(newer.incarnation in begins and newer.version >= begins[newer.incarnation])
    assert effective_version(older, forks, len(forks)) <= effective_version(newer, forks, len(forks))
