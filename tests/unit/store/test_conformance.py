"""What every engine must do: one suite, each test on each engine."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psutil
import pytest

from forebay.clock import ManualClock
from forebay.errors import FencedError, RefusedError, StoreError
from forebay.staleness import (
    Choice,
    Fork,
    StalenessSettings,
    choose_groups,
    dispatch_allowance,
)
from forebay.store import GroupSpec, Slot, Store, count_lost
from forebay.trajectory import PolicyVersion
from forebay.wire import encode
from tests.unit.store.builders import FIRST, make_entry, make_spec, make_trajectory, oldest_first
from tests.unit.store.conftest import OpenStore


def claim(store: Store, num: int = 100, *, ttl_s: float = 10.0, version: PolicyVersion = FIRST) -> list[Slot]:
    return list(store.claim(num, ttl_s=ttl_s, actor="actor", version=version))


def put_all(store: Store, slots: list[Slot], *, num_tokens: int = 8) -> list[str]:
    """Put from several threads, so that puts share commits."""
    with ThreadPoolExecutor(16) as pool:
        return list(pool.map(lambda s: store.put(make_trajectory(s, num_tokens=num_tokens), s), slots))


def settle(store: Store, *specs: GroupSpec, incarnation: int = 0) -> None:
    """Dispatch groups and put every member."""
    assert store.dispatch(specs, incarnation=incarnation) == len(specs)
    for slot in claim(store):
        assert store.put(make_trajectory(slot), slot) == "accepted"


def take(store: Store, num: int = 1, *, incarnation: int = 0, timeout_s: float = 0.0) -> list[str]:
    taken, _ = store.take(incarnation=incarnation, choose=oldest_first(num), timeout_s=timeout_s)
    return [group.spec.group_id for group in taken]


class TestDispatchAndClaim:
    def test_oldest_group_first_and_whole_groups_before_the_next(self, store: Store) -> None:
        store.dispatch([make_spec(0, group_size=3), make_spec(1)], incarnation=0)
        first, second = claim(store, 2), claim(store, 3)
        assert [(s.group_id, s.member) for s in first] == [("g0", 0), ("g0", 1)]
        assert [(s.group_id, s.member) for s in second] == [("g0", 2), ("g1", 0), ("g1", 1)]
        assert claim(store) == []
        assert store.stats().leased_slots == 5

    def test_an_environment_is_claimed_as_if_it_were_alone(self, store: Store) -> None:
        names = ("slow", "fast", "slow", "fast")
        specs = [make_spec(serial, environment=name) for serial, name in enumerate(names)]
        store.dispatch(specs, incarnation=0)

        def members(environment: str | None, num: int) -> list[tuple[str, int]]:
            slots = store.claim(num, ttl_s=10.0, actor="a", version=FIRST, environment=environment)
            return [(slot.group_id, slot.member) for slot in slots]

        assert members("fast", 3) == [("g1", 0), ("g1", 1), ("g3", 0)]
        assert members("fast", 9) == [("g3", 1)]
        assert members("fast", 9) == members("unknown", 9) == []
        assert members(None, 3) == [("g0", 0), ("g0", 1), ("g2", 0)]
        assert members("slow", 9) == [("g2", 1)]
        assert store.audit() == ()

    def test_slot_carries_the_task_and_its_deadlines(self, store: Store, clock: ManualClock) -> None:
        store.dispatch([make_spec(0, min_version=PolicyVersion(0, 3), deadline_s=60.0)], incarnation=0)
        clock.advance(5.0)
        (slot,) = claim(store, 1, ttl_s=10.0, version=PolicyVersion(0, 2))
        clock.advance(1.0)
        (other,) = claim(store, 1, ttl_s=10.0, version=PolicyVersion(0, 9))
        assert slot.task.payload == {"question": "0 + 1"}
        assert (slot.min_version, other.min_version) == (PolicyVersion(0, 3), PolicyVersion(0, 9))
        assert (slot.lease_expires_s, other.lease_expires_s) == (1015.0, 1016.0)
        assert slot.group_deadline_s == other.group_deadline_s == 1065.0
        assert (slot.attempt, slot.run_id, slot.group_size) == (0, "run-1", 2)

    def test_dispatch_again_is_ignored(self, store: Store) -> None:
        specs = [make_spec(0), make_spec(1)]
        assert store.dispatch(specs, incarnation=0) == 2
        assert store.dispatch([*specs, make_spec(2)], incarnation=0) == 3
        assert store.stats().outstanding == 3
        assert store.stats().counters["dispatched"] == 3
        assert store.stats().next_serial == 3

    def test_dispatch_of_a_forgotten_group_is_ignored(self, store: Store) -> None:
        settle(store, make_spec(0))
        take(store)
        store.reject("g0", incarnation=0, reason="stale")
        assert store.dispatch([make_spec(0)], incarnation=0) == 1
        assert store.stats().outstanding == 0

    def test_a_hole_in_the_stream_is_refused(self, store: Store) -> None:
        with pytest.raises(StoreError, match=r"group g2 would leave a hole .*got serial 2, limit serial 1"):
            store.dispatch([make_spec(0), make_spec(2)], incarnation=0)
        assert store.stats().outstanding == 0

    @pytest.mark.parametrize(
        "wrong",
        [
            {"group_size": 2, "min_group_size": 3},
            {"min_group_size": 0},
            {"member_bytes": 0},
            {"max_attempts": 0},
            {"deadline_s": 0.0},
            {"group_id": "../evil"},
        ],
    )
    def test_a_group_that_cannot_settle_is_refused(self, store: Store, wrong: dict[str, object]) -> None:
        with pytest.raises(StoreError):
            store.dispatch([make_spec(0, **wrong)], incarnation=0)
        assert store.stats().next_serial == 0

    def test_c53_capacity_brakes_and_evicts_nothing(self, opened: OpenStore) -> None:
        store = opened(capacity_groups=1024)
        specs = [make_spec(i, group_size=1) for i in range(1100)]
        assert store.dispatch(specs, incarnation=0) == 1024
        put_all(store, claim(store, 2000))
        assert store.dispatch(specs, incarnation=0) == 1024
        assert store.stats().stored_trajectories == 1024
        store.record(make_entry(1, take(store, 76)), incarnation=0)
        assert store.dispatch(specs, incarnation=0) == 1100
        assert count_lost(store.stats()) == 0
        assert not any(name.startswith(("rejected", "dropped")) for name in store.stats().counters)

    def test_bytes_are_reserved_at_dispatch_and_freed_by_what_arrives(self, opened: OpenStore) -> None:
        store = opened(capacity_bytes=4000)
        specs = [make_spec(i, member_bytes=1000) for i in range(3)]
        assert store.dispatch(specs, incarnation=0) == 2
        assert store.stats().live_bytes == 4000
        slot, other, *_ = claim(store)
        trajectory = make_trajectory(slot)
        store.put(trajectory, slot)
        assert store.stats().live_bytes == 3000 + len(encode(trajectory))
        assert store.dispatch(specs, incarnation=0) == 2
        # The last members of open groups always fit: their bytes were reserved.
        assert store.put(make_trajectory(other), other) == "accepted"
        assert store.dispatch(specs, incarnation=0) == 2

    def test_a_group_larger_than_the_store_is_an_error_with_arithmetic(self, opened: OpenStore) -> None:
        store = opened(capacity_bytes=1500)
        with pytest.raises(
            StoreError, match=r"2 members x 1000 bytes = 2000, limit store.capacity_bytes=1500"
        ):
            store.dispatch([make_spec(0)], incarnation=0)


class TestPut:
    def test_first_result_wins(self, store: Store) -> None:
        store.dispatch([make_spec(0)], incarnation=0)
        slot = claim(store)[0]
        assert store.put(make_trajectory(slot, name="a"), slot) == "accepted"
        assert store.put(make_trajectory(slot, name="a"), slot) == "duplicate"
        assert store.put(make_trajectory(slot, name="b"), slot) == "late"
        counters = store.stats().counters
        assert (counters["accepted"], counters["duplicate"], counters["late"]) == (1, 1, 1)
        assert [t.trajectory_id for t in store.read_group("g0").trajectories] == ["a"]

    def test_what_is_read_back_is_what_was_put(self, store: Store, clock: ManualClock) -> None:
        store.dispatch([make_spec(0, group_size=1)], incarnation=0)
        clock.advance(2.5)
        (slot,) = claim(store)
        put = make_trajectory(slot, num_tokens=5000)
        store.put(put, slot)
        (taken,), _ = store.take(incarnation=0, choose=oldest_first(1), timeout_s=0.0)
        (got,) = taken.trajectories
        np.testing.assert_array_equal(got.sequences[0].tokens, put.sequences[0].tokens)
        assert encode(got) == encode(put)
        assert taken.spec == make_spec(0, group_size=1)
        assert taken.dispatched_s == store.read_group("g0").dispatched_s == 1000.0

    def test_c42_one_result_is_stored_when_a_lease_expired_under_its_actor(
        self, store: Store, clock: ManualClock
    ) -> None:
        store.dispatch([make_spec(0, group_size=1)], incarnation=0)
        (first,) = claim(store, ttl_s=1.0)
        clock.advance(1.0)
        (second,) = claim(store, ttl_s=10.0)
        assert (first.attempt, second.attempt) == (0, 1)
        clock.advance(0.5)
        assert store.put(make_trajectory(first, name="first"), first) == "accepted"
        clock.advance(0.5)
        assert store.put(make_trajectory(second, name="second"), second) == "late"
        (group,), _ = store.take(incarnation=0, choose=oldest_first(1), timeout_s=0.0)
        assert [t.trajectory_id for t in group.trajectories] == ["first"]
        assert store.stats().counters["late"] == 1

    def test_a_late_put_for_a_forgotten_group_is_late(self, store: Store) -> None:
        settle(store, make_spec(0, group_size=1))
        store.record(make_entry(1, take(store)), incarnation=0)
        store.commit(1, incarnation=0)
        slot = Slot(
            group_id="g0",
            member=0,
            attempt=0,
            task=make_spec(0).task,
            group_size=1,
            incarnation=0,
            min_version=FIRST,
            lease_expires_s=0.0,
            group_deadline_s=0.0,
            run_id="run-1",
        )
        assert store.put(make_trajectory(slot), slot) == "late"
        assert store.stats().stored_trajectories == 0

    def test_a_trajectory_of_another_slot_or_run_is_refused(self, store: Store) -> None:
        store.dispatch([make_spec(0), make_spec(1)], incarnation=0)
        slots = claim(store)
        with pytest.raises(RefusedError, match="member differs"):
            store.put(make_trajectory(slots[1]), slots[0])
        with pytest.raises(RefusedError, match="group_id differs"):
            store.put(make_trajectory(slots[2]), slots[0])
        with pytest.raises(RefusedError, match=r"run_id differs \(got run-2, limit run-1\)"):
            store.put(make_trajectory(slots[0], run_id="run-2"), slots[0])
        assert store.stats().counters["rejected.foreign"] == 3
        assert store.stats().stored_trajectories == 0
        assert store.put(make_trajectory(slots[0]), slots[0]) == "accepted"

    def test_a_slot_that_no_group_has_is_refused(self, store: Store) -> None:
        store.dispatch([make_spec(0, group_size=2)], incarnation=0)
        forged = Slot(
            group_id="g0",
            member=2,
            attempt=0,
            task=make_spec(0).task,
            group_size=3,
            incarnation=0,
            min_version=FIRST,
            lease_expires_s=0.0,
            group_deadline_s=0.0,
            run_id="run-1",
        )
        with pytest.raises(RefusedError, match="does not belong to group g0"):
            store.put(make_trajectory(forged), forged)
        assert store.stats().counters["rejected.foreign"] == 1

    def test_larger_than_reserved_is_kept_and_counted(self, store: Store) -> None:
        store.dispatch([make_spec(0, group_size=1, member_bytes=100)], incarnation=0)
        (slot,) = claim(store)
        trajectory = make_trajectory(slot, num_tokens=4000)
        assert store.put(trajectory, slot) == "accepted"
        assert store.stats().counters["oversize"] == 1
        assert store.stats().live_bytes == len(encode(trajectory))

    def test_larger_than_allowed_is_refused_and_counted(self, opened: OpenStore) -> None:
        store = opened(max_trajectory_bytes=4096)
        store.dispatch([make_spec(0)], incarnation=0)
        slot = claim(store)[0]
        with pytest.raises(RefusedError, match=r"too large .*limit store.max_trajectory_bytes=4096"):
            store.put(make_trajectory(slot, num_tokens=4000), slot)
        assert store.stats().counters["rejected.too_large"] == 1

    def test_timeouts_are_counted(self, store: Store) -> None:
        store.dispatch([make_spec(0)], incarnation=0)
        for slot in claim(store):
            store.put(make_trajectory(slot, version=None, finish="timeout"), slot)
        assert store.stats().counters["timeouts"] == 2
        assert take(store) == ["g0"]

    def test_puts_from_many_threads_are_all_there(self, store: Store) -> None:
        store.dispatch([make_spec(i, group_size=4) for i in range(10)], incarnation=0)
        assert put_all(store, claim(store)) == ["accepted"] * 40
        assert take(store, 10) == [f"g{i}" for i in range(10)]


class TestPutMany:
    def test_each_result_has_its_own_outcome_and_harms_no_other(self, opened: OpenStore) -> None:
        store = opened(max_trajectory_bytes=8192)
        store.dispatch([make_spec(0, group_size=4), make_spec(1, group_size=3)], incarnation=0)
        slots = claim(store)
        early = make_trajectory(slots[0], name="early")
        assert store.put(early, slots[0]) == "accepted"
        outcomes = store.put_many(
            [
                (make_trajectory(slots[1]), slots[1]),
                (early, slots[0]),
                (make_trajectory(slots[0], name="another"), slots[0]),
                (make_trajectory(slots[3]), slots[2]),
                (make_trajectory(slots[2], num_tokens=8000), slots[2]),
                (make_trajectory(slots[4]), slots[4]),
                (make_trajectory(slots[2]), slots[2]),
            ]
        )
        receipts = [outcome if isinstance(outcome, str) else type(outcome) for outcome in outcomes]
        assert receipts == [
            *("accepted", "duplicate", "late", RefusedError, RefusedError, "accepted", "accepted")
        ]
        assert "member differs" in str(outcomes[3])
        assert "limit store.max_trajectory_bytes=8192" in str(outcomes[4])
        counters = store.stats().counters
        assert (counters["accepted"], counters["duplicate"], counters["late"]) == (4, 1, 1)
        assert (counters["rejected.foreign"], counters["rejected.too_large"]) == (1, 1)
        assert store.stats().stored_trajectories == 4
        assert store.audit() == ()

    def test_groups_settle_in_one_call(self, store: Store) -> None:
        store.dispatch([make_spec(i, group_size=4) for i in range(3)], incarnation=0)
        slots = claim(store)
        results = [(make_trajectory(slot, name=f"t{i}"), slot) for i, slot in enumerate(slots)]
        assert store.put_many(results[:6]) == ("accepted",) * 6
        assert (store.stats().settled_groups, store.stats().open_groups) == (1, 2)
        assert store.put_many(results) == (*("duplicate",) * 6, *("accepted",) * 6)
        groups, _ = store.take(incarnation=0, choose=oldest_first(3), timeout_s=0.0)
        assert [t.trajectory_id for group in groups for t in group.trajectories] == [
            f"t{i}" for i in range(12)
        ]

    def test_the_first_of_a_member_wins(self, store: Store) -> None:
        store.dispatch([make_spec(0)], incarnation=0)
        slot = claim(store)[0]
        first, second = (make_trajectory(slot, name=name) for name in ("first", "second"))
        assert store.put_many([(first, slot), (second, slot), (first, slot)]) == (
            *("accepted", "late", "duplicate"),
        )

    def test_the_deadline_that_the_first_result_meets_settles_the_group(
        self, store: Store, clock: ManualClock
    ) -> None:
        store.dispatch([make_spec(0, group_size=3, deadline_s=60.0), make_spec(1)], incarnation=0)
        slots = claim(store, ttl_s=1e6)
        clock.advance(61.0)
        results = [(make_trajectory(slot), slot) for slot in slots]
        assert store.put_many(results) == ("accepted", "late", "late", "accepted", "late")
        assert store.stats().counters["members.missing"] == 3
        assert take(store, 2) == ["g0", "g1"]

    def test_nothing_to_put(self, store: Store) -> None:
        assert store.put_many([]) == ()

    def test_large_and_small_ones_go_together(self, store: Store) -> None:
        store.dispatch([make_spec(0, group_size=3, member_bytes=4 << 20)], incarnation=0)
        results = [
            (make_trajectory(slot, num_tokens=num_tokens), slot)
            for slot, num_tokens in zip(claim(store), (8, 400_000, 2000), strict=True)
        ]
        assert store.put_many(results) == ("accepted",) * 3
        ((group,), _) = store.take(incarnation=0, choose=oldest_first(1), timeout_s=0.0)
        assert [trajectory.num_tokens for trajectory in group.trajectories] == [8, 400_000, 2000]


class TestGroupRule:
    def test_every_member_settles_the_group(self, store: Store) -> None:
        store.dispatch([make_spec(0, group_size=2, min_group_size=1)], incarnation=0)
        first, second = claim(store)
        store.put(make_trajectory(first), first)
        assert store.stats().settled_groups == 0
        store.put(make_trajectory(second), second)
        assert store.stats().settled_by_environment == {"calculator": 1}

    def test_the_deadline_settles_what_arrived(self, store: Store, clock: ManualClock) -> None:
        store.dispatch([make_spec(0, group_size=4, min_group_size=2, deadline_s=60.0)], incarnation=0)
        clock.advance(500.0)  # Nobody has claimed it: the deadline has not begun.
        slots = claim(store, ttl_s=1e6)
        for slot in slots[:2]:
            store.put(make_trajectory(slot), slot)
        clock.advance(59.9)
        assert store.settle_expired() == 0
        clock.advance(0.2)
        assert store.settle_expired() == 1
        (group,), _ = store.take(incarnation=0, choose=oldest_first(1), timeout_s=0.0)
        assert [t.member for t in group.trajectories] == [0, 1]
        assert store.put(make_trajectory(slots[3]), slots[3]) == "late"
        assert store.heartbeat(slots, ttl_s=10.0) == tuple(slots)
        assert store.stats().counters["members.missing"] == 2
        assert store.stats().leased_slots == 0

    @pytest.mark.parametrize("group_size", [501, 2345])
    def test_a_group_may_have_thousands_of_members(
        self, store: Store, clock: ManualClock, group_size: int
    ) -> None:
        store.dispatch([make_spec(0, group_size=group_size)], incarnation=0)
        slots = store.claim(2 * group_size, ttl_s=30.0, actor="actor", version=FIRST)
        assert [slot.member for slot in slots] == list(range(group_size))
        assert store.heartbeat(slots, ttl_s=600.0) == ()
        arrived = (0, 499, group_size - 1)
        for member in arrived:
            assert store.put(make_trajectory(slots[member]), slots[member]) == "accepted"
        store.fail(slots[1], reason="environment")
        assert store.audit() == ()
        clock.advance(60.0)
        ((group,), _) = store.take(incarnation=0, choose=oldest_first(1), timeout_s=0.0)
        assert [trajectory.member for trajectory in group.trajectories] == list(arrived)
        stats = store.stats()
        assert stats.counters["members.missing"] == group_size - len(arrived)
        assert stats.stored_trajectories == len(arrived)

    def test_the_deadline_drops_what_is_too_little(self, store: Store, clock: ManualClock) -> None:
        store.dispatch([make_spec(0, group_size=3, min_group_size=2)], incarnation=0)
        slot = claim(store, ttl_s=1e6)[0]
        store.put(make_trajectory(slot), slot)
        clock.advance(60.0)
        stats = store.stats()
        assert (stats.outstanding, stats.live_bytes, stats.stored_trajectories) == (0, 0, 0)
        assert stats.counters["dropped.deadline"] == 1
        assert stats.counters["trajectories.rejected.deadline"] == 1
        assert count_lost(stats) == 0

    def test_c40_errors_are_retried_three_times_then_the_group_is_dropped(self, store: Store) -> None:
        store.dispatch([make_spec(0, group_size=1), make_spec(1, group_size=1)], incarnation=0)
        attempts = []
        for _ in range(3):
            (slot,) = claim(store, 1)
            attempts.append((slot.group_id, slot.attempt))
            store.fail(slot, reason="context")
        assert attempts == [("g0", 0), ("g0", 1), ("g0", 2)]
        assert claim(store, 1)[0].group_id == "g1"
        counters = store.stats().counters
        assert (counters["dropped.failed"], counters["errors.context"], counters["retried"]) == (1, 3, 2)
        assert store.stats().outstanding == 1

    def test_a_failed_member_leaves_a_group_that_suffices(self, store: Store) -> None:
        store.dispatch([make_spec(0, group_size=2, max_attempts=1)], incarnation=0)
        first, second = claim(store)
        store.put(make_trajectory(first), first)
        store.fail(second, reason="crash")
        assert take(store) == ["g0"]
        assert store.put(make_trajectory(second), second) == "late"

    def test_a_stale_failure_is_ignored(self, store: Store, clock: ManualClock) -> None:
        store.dispatch([make_spec(0, group_size=1)], incarnation=0)
        (first,) = claim(store, ttl_s=1.0)
        clock.advance(2.0)
        (second,) = claim(store)
        store.fail(first, reason="crash")
        assert store.heartbeat([second], ttl_s=10.0) == ()
        assert "errors.crash" not in store.stats().counters

    def test_expired_leases_count_as_attempts(self, store: Store, clock: ManualClock) -> None:
        store.dispatch([make_spec(0, group_size=1, max_attempts=2, deadline_s=1e6)], incarnation=0)
        for _ in range(2):
            assert len(claim(store, ttl_s=1.0)) == 1
            clock.advance(1.5)
        assert claim(store) == []
        assert store.stats().counters["expired"] == 2
        assert store.stats().counters["dropped.failed"] == 1

    def test_heartbeats_keep_a_lease(self, store: Store, clock: ManualClock) -> None:
        store.dispatch([make_spec(0, deadline_s=1e6)], incarnation=0)
        slots = claim(store, ttl_s=10.0)
        for _ in range(5):
            clock.advance(9.0)
            assert store.heartbeat(slots[:1], ttl_s=10.0) == ()
        assert store.settle_expired() == 1
        assert store.heartbeat(slots, ttl_s=10.0) == (slots[1],)

    def test_a_released_slot_does_not_count_as_an_attempt(self, store: Store) -> None:
        store.dispatch([make_spec(0, group_size=1, max_attempts=1)], incarnation=0)
        (slot,) = claim(store)
        store.release_slot(slot)
        (again,) = claim(store)
        assert again.attempt == 0
        assert store.put(make_trajectory(again), again) == "accepted"

    def test_reasons_from_outside_cannot_flood_the_counters(self, store: Store) -> None:
        store.dispatch([make_spec(0, group_size=300)], incarnation=0)
        reasons = [f"reason{i}" if i % 2 else "Odd: one" for i in range(300)]
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda slot, why: store.fail(slot, reason=why), claim(store, 300), reasons))
        counters = store.stats().counters
        assert len(counters) <= 260
        assert sum(count for name, count in counters.items() if name.startswith("errors.")) == 300


class TestTake:
    def test_takes_in_order_and_only_once(self, store: Store) -> None:
        settle(store, make_spec(0), make_spec(1), make_spec(2))
        assert take(store, 2) == ["g0", "g1"]
        assert take(store, 2) == []
        assert take(store, 1) == ["g2"]

    def test_waits_until_its_deadline(self, store: Store, clock: ManualClock) -> None:
        store.dispatch([make_spec(0)], incarnation=0)
        taken, choice = store.take(incarnation=0, choose=oldest_first(1), timeout_s=7.0)
        assert taken == ()
        assert choice.missing == 1
        assert clock.wall_s() == pytest.approx(1007.0)

    def test_the_wait_ends_when_a_deadline_settles_a_group(self, store: Store, clock: ManualClock) -> None:
        store.dispatch([make_spec(0, group_size=2, deadline_s=5.0)], incarnation=0)
        slot = claim(store, ttl_s=1e6)[0]
        store.put(make_trajectory(slot), slot)
        assert take(store, timeout_s=100.0) == ["g0"]
        assert clock.wall_s() == pytest.approx(1005.0, abs=0.03)

    def test_the_wait_ends_when_a_group_is_dropped(self, store: Store, clock: ManualClock) -> None:
        store.dispatch([make_spec(0, deadline_s=5.0)], incarnation=0)
        claim(store, ttl_s=1e6)
        assert take(store, timeout_s=100.0) == []
        assert clock.wall_s() == pytest.approx(1005.0, abs=0.03)
        assert store.stats().outstanding == 0

    def test_choose_sees_what_the_staleness_rule_needs(self, store: Store) -> None:
        store.dispatch([make_spec(0), make_spec(1), make_spec(2, environment="web")], incarnation=0)
        store.put(make_trajectory(slot := claim(store, 1, version=PolicyVersion(0, 5))[0]), slot)
        claim(store, 1, version=PolicyVersion(0, 7))
        claim(store, 1, version=PolicyVersion(0, 6))
        seen = []
        store.take(incarnation=0, choose=lambda groups: (seen.extend(groups), Choice())[1], timeout_s=0.0)
        assert [(g.group_id, g.serial, g.environment) for g in seen] == [
            ("g0", 0, "calculator"),
            ("g1", 1, "calculator"),
            ("g2", 2, "web"),
        ]
        # An arrived member counts with its oldest token, a running one with the version it was claimed for.
        assert [g.start for g in seen] == [PolicyVersion(0, 0), PolicyVersion(0, 6), None]
        assert [g.num_bytes > 0 for g in seen] == [True, True, True]

    def test_stale_groups_are_rejected_in_the_same_breath(self, store: Store) -> None:
        settle(store, make_spec(0), make_spec(1))
        taken, choice = store.take(
            incarnation=0,
            choose=lambda groups: Choice(take=("g1",), stale=("g0",)),
            timeout_s=0.0,
        )
        assert [group.spec.group_id for group in taken] == ["g1"]
        assert choice.stale == ("g0",)
        stats = store.stats()
        assert (stats.counters["rejected.stale"], stats.counters["trajectories.rejected.stale"]) == (1, 2)
        assert stats.outstanding == 1

    def test_only_stale_groups_end_the_wait_at_once(self, store: Store, clock: ManualClock) -> None:
        settle(store, make_spec(0))
        choices = iter([Choice(stale=("g0",)), Choice(missing=1)])
        taken, choice = store.take(incarnation=0, choose=lambda groups: next(choices), timeout_s=50.0)
        assert (taken, choice.stale, clock.wall_s()) == ((), ("g0",), 1000.0)

    def test_works_with_the_staleness_rules(self, store: Store) -> None:
        settle(store, *(make_spec(i, group_size=1) for i in range(4)))
        rule = StalenessSettings(max_staleness=1, on_stale="drop")

        def choose_at(version: int) -> list[str]:
            taken, _ = store.take(
                incarnation=0,
                choose=lambda groups: choose_groups(groups, PolicyVersion(0, version), rule, 2),
                timeout_s=0.0,
            )
            return [group.spec.group_id for group in taken]

        assert choose_at(1) == ["g0", "g1"]
        assert choose_at(2) == []
        assert store.stats().counters["rejected.stale"] == 2

    def test_release_puts_back(self, store: Store) -> None:
        settle(store, make_spec(0))
        take(store)
        store.release("g0", incarnation=0)
        store.release("g0", incarnation=0)
        assert take(store) == ["g0"]

    def test_reject_frees_the_space_and_dispatches_the_replacement(self, store: Store) -> None:
        settle(store, make_spec(0), make_spec(1))
        take(store)
        replacement = make_spec(2, group_id="g0-again")
        store.reject("g0", incarnation=0, reason="no_signal", replacement=replacement)
        store.reject("g0", incarnation=0, reason="no_signal", replacement=replacement)
        stats = store.stats()
        assert (stats.outstanding, stats.next_serial) == (2, 3)
        assert stats.counters["rejected.no_signal"] == 1
        assert stats.counters["trajectories.rejected.no_signal"] == 2
        assert {slot.group_id for slot in claim(store)} == {"g0-again"}

    def test_only_taken_groups_can_be_rejected(self, store: Store) -> None:
        settle(store, make_spec(0))
        with pytest.raises(StoreError, match=r"not in the learner's hands \(got settled, limit taken\)"):
            store.reject("g0", incarnation=0, reason="stale")


class TestJournal:
    def test_recorded_groups_are_outstanding_until_published(self, store: Store) -> None:
        settle(store, make_spec(0), make_spec(1))
        store.record(make_entry(1, take(store)), incarnation=0)
        stats = store.stats()
        assert (stats.outstanding, stats.journal_steps) == (2, (1, 1))
        assert stats.counters["trajectories.recorded"] == 2
        store.publish(PolicyVersion(0, 1), incarnation=0)
        store.publish(PolicyVersion(0, 1), incarnation=0)
        store.publish(PolicyVersion(0, 0), incarnation=0)
        assert store.stats().outstanding == 1
        assert store.stats().published == PolicyVersion(0, 1)

    def test_one_publish_covers_the_steps_before_it(self, store: Store) -> None:
        settle(store, *(make_spec(i) for i in range(3)))
        for step in (1, 2, 3):
            store.record(make_entry(step, take(store)), incarnation=0)
        store.publish(PolicyVersion(0, 2), incarnation=0)
        assert store.stats().outstanding == 1

    def test_recording_moves_bytes_from_live_to_retained(self, store: Store) -> None:
        settle(store, make_spec(0))
        live = store.stats().live_bytes
        assert live > 0
        store.record(make_entry(1, take(store)), incarnation=0)
        assert (store.stats().live_bytes, store.stats().retained_bytes) == (0, live)
        store.commit(1, incarnation=0)
        stats = store.stats()
        assert (stats.retained_bytes, stats.stored_trajectories, stats.journal_steps) == (0, 0, None)
        assert stats.counters["trajectories.committed"] == 2

    def test_recording_twice_is_once(self, store: Store) -> None:
        settle(store, make_spec(0), make_spec(1))
        entry = make_entry(1, take(store))
        store.record(entry, incarnation=0)
        store.record(entry, incarnation=0)
        assert store.stats().counters["recorded"] == 1
        with pytest.raises(StoreError, match="step 1 is in the journal with another batch"):
            store.record(make_entry(1, take(store)), incarnation=0)
        assert store.stats().counters["recorded"] == 1

    def test_a_batch_holds_taken_groups_once_each(self, store: Store) -> None:
        settle(store, make_spec(0), make_spec(1))
        with pytest.raises(StoreError, match=r"not in the learner's hands \(got settled"):
            store.record(make_entry(1, ["g0"]), incarnation=0)
        take(store)
        for groups in ([], ["g0", "g0"], ["g0", "g1"], ["g0", "unknown"]):
            with pytest.raises(StoreError):
                store.record(make_entry(1, groups), incarnation=0)
        assert store.stats().journal_steps is None

    def test_retained_bytes_have_a_limit_with_arithmetic(self, opened: OpenStore) -> None:
        store = opened(retained_capacity_bytes=800)
        settle(store, make_spec(0))
        entry = make_entry(1, take(store))
        with pytest.raises(
            StoreError, match=r"0 retained \+ \d+ = \d+, limit store.retained_capacity_bytes=800"
        ):
            store.record(entry, incarnation=0)
        assert store.stats().retained_bytes == 0

    def test_commit_forgets_up_to_a_step(self, store: Store) -> None:
        settle(store, *(make_spec(i) for i in range(3)))
        for step in (1, 2, 3):
            store.record(make_entry(step, take(store)), incarnation=0)
        store.commit(2, incarnation=0)
        stats = store.stats()
        assert (stats.journal_steps, stats.stored_trajectories, stats.outstanding) == ((3, 3), 2, 1)
        with pytest.raises(StoreError, match="holds no such group"):
            store.read_group("g0")
        with pytest.raises(StoreError, match=r"already forgotten \(got step 1, limit step >= 2\)"):
            store.rewind(1)


class TestRewind:
    def test_the_first_learner_has_no_fork(self, store: Store) -> None:
        rewound = store.rewind(0)
        assert (rewound.incarnation, rewound.journal) == (0, ())
        assert store.stats().forks == ()
        assert store.rewind(0).incarnation == 1
        assert store.stats().forks == (Fork(1, 0),)

    def test_hands_back_the_journal_after_the_step(self, store: Store) -> None:
        store.rewind(0)
        settle(store, *(make_spec(i) for i in range(4)))
        entries = [make_entry(step, take(store)) for step in (1, 2, 3) if step]
        for entry in entries:
            store.record(entry, incarnation=0)
        store.publish(PolicyVersion(0, 2), incarnation=0)
        take(store)
        rewound = store.rewind(1)
        assert rewound.incarnation == 1
        assert rewound.journal == tuple(entries[1:])
        stats = store.stats()
        assert stats.forks == (Fork(1, 1),)
        assert stats.published == PolicyVersion(1, 1)
        # Two entries to be replayed and the group that was in the old learner's hands.
        assert stats.outstanding == 3
        assert stats.settled_groups == 1
        assert [t.member for t in store.read_group("g1").trajectories] == [0, 1]

    def test_replay_is_idempotent_ordered_and_exact(self, store: Store) -> None:
        store.rewind(0)
        settle(store, *(make_spec(i) for i in range(3)))
        entries = [make_entry(step, take(store)) for step in (1, 2)]
        for entry in entries:
            store.record(entry, incarnation=0)
        store.rewind(0)
        taken = take(store, incarnation=1)
        with pytest.raises(StoreError, match=r"still holds steps to be replayed .*steps after 0 up to 2"):
            store.record(make_entry(3, taken, incarnation=1), incarnation=1)
        with pytest.raises(StoreError, match=r"replay out of order \(got step 2, limit step 1\)"):
            store.record(entries[1], incarnation=1)
        with pytest.raises(StoreError, match="with another batch"):
            store.record(make_entry(1, ["g0"], digest="other"), incarnation=1)
        with pytest.raises(StoreError, match="waits for its replay"):
            store.commit(1, incarnation=1)
        for entry in entries:
            store.record(entry, incarnation=1)
            store.publish(PolicyVersion(1, entry.step), incarnation=1)
        store.record(make_entry(3, taken, incarnation=1), incarnation=1)
        stats = store.stats()
        assert stats.outstanding == 1
        assert stats.counters["recorded"] == 3
        assert stats.counters["trajectories.recorded"] == 6
        assert stats.counters["replayed"] == 2

    def test_older_learners_are_fenced_and_actors_are_not(self, store: Store) -> None:
        store.rewind(0)
        store.dispatch([make_spec(0), make_spec(1)], incarnation=0)
        slots = claim(store)
        for slot in slots[:2]:
            store.put(make_trajectory(slot), slot)
        take(store)
        store.rewind(0)
        for verb in (
            lambda: store.dispatch([make_spec(2)], incarnation=0),
            lambda: store.record(make_entry(1, ["g0"]), incarnation=0),
            lambda: store.release("g0", incarnation=0),
            lambda: store.reject("g0", incarnation=0, reason="stale"),
            lambda: store.publish(PolicyVersion(0, 1), incarnation=0),
            lambda: store.commit(0, incarnation=0),
            lambda: store.advance_fork(0, incarnation=0),
            lambda: store.truncate_journal(0, incarnation=0),
            lambda: take(store),
        ):
            with pytest.raises(FencedError, match=r"newer learner .*incarnation 0, limit incarnation 1"):
                verb()
        assert [store.put(make_trajectory(slot), slot) for slot in slots[2:]] == ["accepted"] * 2
        assert take(store, 2, incarnation=1) == ["g0", "g1"]

    def test_a_learner_that_never_began_is_refused(self, store: Store) -> None:
        with pytest.raises(StoreError, match="never began"):
            store.dispatch([make_spec(0)], incarnation=1)

    def test_open_groups_get_their_whole_deadline_again(self, store: Store, clock: ManualClock) -> None:
        store.rewind(0)
        store.dispatch([make_spec(0, deadline_s=60.0, min_group_size=2)], incarnation=0)
        slots = claim(store, ttl_s=1e6)
        clock.advance(3600.0)
        store.rewind(0)
        clock.advance(59.0)
        for slot in slots:
            assert store.put(make_trajectory(slot), slot) == "accepted"
        assert take(store, incarnation=1) == ["g0"]

    def test_truncated_entries_are_takeable_again(self, store: Store) -> None:
        store.rewind(0)
        settle(store, *(make_spec(i) for i in range(2)))
        for step in (1, 2):
            store.record(make_entry(step, take(store)), incarnation=0)
        live = store.stats().retained_bytes // 2
        store.rewind(0)
        store.truncate_journal(1, incarnation=1)
        stats = store.stats()
        assert (stats.journal_steps, stats.live_bytes, stats.retained_bytes) == ((1, 1), live, live)
        assert (stats.counters["trajectories.recorded"], stats.counters["trajectories.unrecorded"]) == (2, 2)
        assert take(store, incarnation=1) == ["g1"]
        store.record(make_entry(1, ["g0"]), incarnation=1)
        store.record(make_entry(2, ["g1"], incarnation=1, digest="anew"), incarnation=1)
        assert store.stats().counters["trajectories.recorded"] == 4

    def test_c35_the_fork_moves_forward_only_over_what_was_remade(self, store: Store) -> None:
        store.rewind(0)
        settle(store, *(make_spec(i) for i in range(3)))
        entries = [make_entry(step, take(store)) for step in (1, 2)]
        for entry in entries:
            store.record(entry, incarnation=0)
        store.rewind(0)
        with pytest.raises(StoreError, match=r"cannot pass what was re-made \(got 1, limit 0\)"):
            store.advance_fork(1, incarnation=1)
        store.record(entries[0], incarnation=1)
        store.advance_fork(1, incarnation=1)
        assert store.stats().forks == (Fork(1, 1),)
        store.advance_fork(0, incarnation=1)
        assert store.stats().forks == (Fork(1, 1),)

    def test_c32_credit_after_recovery_comes_from_the_state(self, store: Store) -> None:
        rule, groups_per_batch = StalenessSettings(max_staleness=4), 32
        # A checkpoint of version 100 meets a new store: the credit is 5 batches, not 105.
        store.rewind(100)
        assert dispatch_allowance(rule, groups_per_batch, store.stats().outstanding) == 160
        specs = [make_spec(i, group_size=1) for i in range(160)]
        assert store.dispatch(specs, incarnation=0) == 160
        assert dispatch_allowance(rule, groups_per_batch, store.stats().outstanding) == 0
        store.rewind(100)
        assert dispatch_allowance(rule, groups_per_batch, store.stats().outstanding) == 0

    def test_a_new_store_takes_a_checkpoint_from_elsewhere(self, store: Store) -> None:
        assert store.rewind(40).incarnation == 0
        assert store.stats().published == PolicyVersion(0, 40)
        settle(store, make_spec(0))
        store.record(make_entry(41, take(store)), incarnation=0)
        assert store.stats().outstanding == 1


class TestInspection:
    def test_stats_of_a_new_store(self, store: Store) -> None:
        stats = store.stats()
        assert (stats.run_id, stats.incarnation, stats.published) == ("run-1", 0, PolicyVersion(0, 0))
        assert (stats.outstanding, stats.next_serial, stats.oldest_s) == (0, 0, 0.0)
        assert (stats.journal_steps, stats.counters, stats.settled_by_environment) == (None, {}, {})

    def test_age_of_the_oldest_group(self, store: Store, clock: ManualClock) -> None:
        store.dispatch([make_spec(0)], incarnation=0)
        clock.advance(12.0)
        store.dispatch([make_spec(1)], incarnation=0)
        assert store.stats().oldest_s == 12.0

    def test_scan_shows_every_group_in_order(self, store: Store) -> None:
        settle(store, make_spec(0), make_spec(1))
        store.dispatch([make_spec(2)], incarnation=0)
        store.record(make_entry(1, take(store)), incarnation=0)
        take(store)
        assert [(g.group_id, g.settled) for g in store.scan()] == [("g0", True), ("g1", True), ("g2", False)]

    def test_c52_live_entries_are_those_not_committed(self, store: Store) -> None:
        for step in range(1, 31):
            settle(store, make_spec(step - 1, group_size=4))
            store.record(make_entry(step, take(store)), incarnation=0)
            store.commit(step - 2, incarnation=0)
        stats = store.stats()
        assert (stats.stored_trajectories, stats.journal_steps) == (8, (29, 30))
        assert len(list(store.scan())) == 2
        assert stats.counters["trajectories.accepted"] == 120
        assert count_lost(stats) == 0


def test_an_operation_that_fails_changes_nothing_and_harms_no_neighbor(store: Store) -> None:
    """Good and refused calls race into the same commits."""
    store.dispatch([make_spec(i, group_size=1) for i in range(40)], incarnation=0)
    slots = claim(store)
    errors: list[str] = []

    def refused() -> None:
        for _ in range(40):
            try:
                store.record(make_entry(1, ["g0", "unknown"]), incarnation=0)
            except StoreError as error:
                errors.append(str(error))

    def accepted() -> None:
        for slot in slots:
            store.put(make_trajectory(slot), slot)

    threads = [threading.Thread(target=refused), threading.Thread(target=accepted)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) == 40
    assert store.stats().settled_groups == 40
    assert store.stats().journal_steps is None


def test_c52_memory_is_bounded(opened: OpenStore) -> None:
    """Resident memory does not grow with what was consumed: 3,000 trajectories of 10 KB."""
    store = opened()
    process = psutil.Process()
    resident: list[int] = []
    for step in range(1, 61):
        store.dispatch([make_spec(step - 1, group_size=50, member_bytes=16_000)], incarnation=0)
        put_all(store, claim(store), num_tokens=1700)
        store.record(make_entry(step, take(store)), incarnation=0)
        store.publish(PolicyVersion(0, step), incarnation=0)
        store.commit(step - 1, incarnation=0)
        resident.append(process.memory_info().rss)
    assert resident[-1] - resident[5] < 20_000_000
    assert store.stats().stored_trajectories == 50
