"""The store as a state machine: any sequence of calls, on each engine, against a model."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from forebay.clock import ManualClock
from forebay.store import GroupSpec, Slot, StoreSettings, count_lost, open_store
from forebay.trajectory import PolicyVersion, Trajectory
from forebay.wire import encode
from tests.redis_server import EVERYSEC, empty_server, needs_redis
from tests.unit.store.builders import RUN, make_entry, make_spec, make_trajectory, oldest_first
from tests.unit.store.model import StoreModel

CAPACITY_GROUPS = 6
CAPACITY_BYTES = 16_000

versions = st.integers(0, 3).map(lambda version: PolicyVersion(0, version))


class StoreMachine(RuleBasedStateMachine):
    """Calls the store and the model alike; what they answer and what they hold must be the same."""

    engine: dict[str, Any]

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="forebay-store-"))
        self.clock = ManualClock(start_s=1000.0)
        self.settings = StoreSettings(
            capacity_groups=CAPACITY_GROUPS,
            capacity_bytes=CAPACITY_BYTES,
            path=self.directory / "store",
            **self.engine,
            **({"url": empty_server(*EVERYSEC).url} if self.engine["engine"] == "redis" else {}),
        )
        self.store = open_store(self.settings, RUN, self.clock)
        self.model = StoreModel(CAPACITY_GROUPS, CAPACITY_BYTES, now_s=1000.0)
        self.slots: list[Slot] = []
        self.puts: list[tuple[Trajectory, Slot]] = []
        self.num_names = 0

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.directory)

    # Actors

    @precondition(lambda self: self.model.claimable())
    @rule(num=st.integers(1, 5), ttl_s=st.sampled_from([1.0, 5.0, 50.0]), version=versions)
    def claim(self, num: int, ttl_s: float, version: PolicyVersion) -> None:
        slots = self.store.claim(num, ttl_s=ttl_s, actor="actor", version=version)
        self.slots += slots
        expected = self.model.claim(num, ttl_s, version)
        assert [(slot.group_id, slot.member, slot.attempt) for slot in slots] == expected

    @precondition(lambda self: self.slots)
    @rule(data=st.data(), ttl_s=st.sampled_from([5.0, 20.0]))
    def heartbeat(self, data: st.DataObject, ttl_s: float) -> None:
        slots = data.draw(st.lists(st.sampled_from(self.slots[-6:]), max_size=3, unique_by=id))
        lost = self.store.heartbeat(slots, ttl_s=ttl_s)
        held = [self.model.heartbeat(slot, ttl_s) for slot in slots]
        assert sorted(map(id, lost)) == sorted(
            id(slot) for slot, is_held in zip(slots, held, strict=True) if not is_held
        )

    @precondition(lambda self: self.slots)
    @rule(data=st.data(), version=st.none() | versions, num_tokens=st.sampled_from([2, 8, 200]))
    def put(self, data: st.DataObject, version: PolicyVersion | None, num_tokens: int) -> None:
        # Most puts are of recent slots: these are the ones that can be accepted.
        slot = data.draw(st.sampled_from(self.slots[-6:] if data.draw(st.booleans()) else self.slots))
        self.num_names += 1
        trajectory = make_trajectory(slot, name=f"t{self.num_names}", version=version, num_tokens=num_tokens)
        self.puts.append((trajectory, slot))
        self._put(trajectory, slot)

    @precondition(lambda self: self.model.claimable())
    @rule(num=st.integers(1, 6), version=versions)
    def claim_and_put(self, num: int, version: PolicyVersion) -> None:
        already = len(self.slots)
        self.claim(num, 50.0, version)
        results = []
        for slot in self.slots[already:]:
            self.num_names += 1
            results.append((make_trajectory(slot, name=f"t{self.num_names}", version=version), slot))
        self.puts += results
        self._put_many(results)

    @precondition(lambda self: self.puts)
    @rule(data=st.data())
    def put_again(self, data: st.DataObject) -> None:
        self._put_many(data.draw(st.lists(st.sampled_from(self.puts), min_size=1, max_size=3)))

    def _put(self, trajectory: Trajectory, slot: Slot) -> None:
        assert self.store.put(trajectory, slot) == self._expected(trajectory, slot)

    def _put_many(self, results: list[tuple[Trajectory, Slot]]) -> None:
        """Put together: the outcomes must be those of puts one after another."""
        outcomes = self.store.put_many(results)
        assert list(outcomes) == [self._expected(*result) for result in results]

    def _expected(self, trajectory: Trajectory, slot: Slot) -> str:
        name, version = trajectory.trajectory_id, trajectory.oldest_version
        return self.model.put(slot, name, len(encode(trajectory)), version)

    @precondition(lambda self: self.slots)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(self.slots[-6:]))
        self.store.fail(slot, reason="crash")
        self.model.fail(slot)

    @precondition(lambda self: self.slots)
    @rule(data=st.data())
    def release_slot(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(self.slots[-6:]))
        self.store.release_slot(slot)
        self.model.release_slot(slot)

    @rule(duration_s=st.sampled_from([1.0, 5.0, 10.0, 40.0]))
    def wait(self, duration_s: float) -> None:
        self.clock.advance(duration_s)
        self.model.now_s += duration_s

    # The learner

    def _specs(self, first: int, count: int, data: st.DataObject) -> list[GroupSpec]:
        return [
            make_spec(
                first + i,
                group_size=(size := data.draw(st.integers(1, 3))),
                min_group_size=data.draw(st.integers(1, size)),
                deadline_s=data.draw(st.sampled_from([10.0, 40.0])),
                member_bytes=data.draw(st.sampled_from([500, 2000])),
                max_attempts=data.draw(st.integers(1, 2)),
                min_version=data.draw(versions),
            )
            for i in range(count)
        ]

    @rule(data=st.data(), count=st.integers(1, 3), back=st.integers(0, 1))
    def dispatch(self, data: st.DataObject, count: int, back: int) -> None:
        specs = self._specs(max(0, self.model.next_serial - back), count, data)
        done = self.store.dispatch(specs, incarnation=self.model.incarnation)
        assert done == self.model.dispatch(specs)

    @precondition(lambda self: self.model.settled())
    @rule(num=st.integers(1, 2))
    def take(self, num: int) -> None:
        taken, _ = self.store.take(
            incarnation=self.model.incarnation, choose=oldest_first(num), timeout_s=0.0
        )
        self.model.expire()
        settled = self.model.settled()
        expected = settled[:num] if len(settled) >= num else []
        assert [group.spec.group_id for group in taken] == expected
        for group in taken:
            names = [member.name for member in self.model.groups[group.spec.group_id].of("arrived")]
            assert [trajectory.trajectory_id for trajectory in group.trajectories] == names
        self.model.set_state(expected, "taken")

    @precondition(lambda self: self.model.taken())
    @rule(data=st.data(), replace=st.booleans())
    def reject(self, data: st.DataObject, replace: bool) -> None:
        group_id = data.draw(st.sampled_from(self.model.taken()))
        replacement = self._specs(self.model.next_serial, 1, data)[0] if replace else None
        incarnation = self.model.incarnation
        self.store.reject(group_id, incarnation=incarnation, reason="stale", replacement=replacement)
        self.model.reject(group_id, "stale", replacement)

    @precondition(lambda self: self.model.taken())
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        group_id = data.draw(st.sampled_from(self.model.taken()))
        self.store.release(group_id, incarnation=self.model.incarnation)
        self.model.set_state([group_id], "settled")

    @precondition(lambda self: self.model.taken() and self.model.replayed == self.model.last_step)
    @rule(twice=st.booleans())
    def record(self, twice: bool) -> None:
        step, group_ids = self.model.last_step + 1, tuple(self.model.taken())
        entry = make_entry(step, group_ids, incarnation=self.model.incarnation)
        for _ in range(1 + twice):
            self.store.record(entry, incarnation=self.model.incarnation)
        self.model.record(step, group_ids)

    @precondition(lambda self: self.model.settled())
    @rule(num=st.integers(1, 2))
    def step(self, num: int) -> None:
        self.take(num)
        if self.model.taken() and self.model.replayed == self.model.last_step:
            self.record(twice=False)
            self.publish(back=0)

    @precondition(lambda self: self.model.replayed < self.model.last_step)
    @rule()
    def replay(self) -> None:
        step = min(s for s in self.model.journal if s > self.model.replayed)
        incarnation = self.model.incarnation
        for group_id in self.model.journal[step]:
            names = [member.name for member in self.model.groups[group_id].of("arrived")]
            stored = self.store.read_group(group_id).trajectories
            assert [trajectory.trajectory_id for trajectory in stored] == names
        self.store.record(make_entry(step, self.model.journal[step]), incarnation=incarnation)
        self.model.replayed = step

    @rule(back=st.integers(0, 1))
    def publish(self, back: int) -> None:
        version = max(0, self.model.replayed - back)
        incarnation = self.model.incarnation
        self.store.publish(PolicyVersion(incarnation, version), incarnation=incarnation)
        self.model.published = max(self.model.published, version)

    @rule(back=st.integers(0, 3))
    def commit(self, back: int) -> None:
        step = max(0, self.model.replayed - back)
        self.store.commit(step, incarnation=self.model.incarnation)
        self.model.commit(step)

    @rule(back=st.integers(0, 4))
    def rewind(self, back: int) -> None:
        step = max(self.model.committed, self.model.last_step - back)
        rewound = self.store.rewind(step)
        assert [entry.step for entry in rewound.journal] == self.model.rewind(step)
        assert rewound.incarnation == self.model.incarnation

    @precondition(lambda self: self.model.begun)
    @rule(back=st.integers(0, 2))
    def truncate(self, back: int) -> None:
        step = max(self.model.committed, self.model.last_step - back)
        self.store.truncate_journal(step, incarnation=self.model.incarnation)
        self.model.truncate(step)

    @rule()
    def crash_and_reopen(self) -> None:
        if self.settings.engine != "memory":
            self.store.close()
            self.store = open_store(self.settings, RUN, self.clock)

    # What must hold at any time

    @invariant()
    def same_totals(self) -> None:
        stats = self.store.stats()
        self.model.expire()
        assert {name: getattr(stats, name) for name in self.model.totals()} == self.model.totals()
        assert [(g.group_id, g.settled, g.start) for g in self.store.scan()] == [
            (group.spec.group_id, group.state != "open", group.start)
            for group in sorted(self.model.groups.values(), key=lambda group: group.spec.serial)
        ]

    @invariant()
    def nothing_lost_nothing_twice(self) -> None:
        stats = self.store.stats()
        self.model.expire()
        assert self.store.audit() == ()
        assert count_lost(stats) == 0
        where = Counter(self.model.trained + self.model.stored() + list(self.model.rejected))
        assert where == Counter(self.model.acknowledged)
        rejected = Counter(self.model.rejected.values())
        for reason, count in rejected.items():
            assert stats.counters[f"trajectories.rejected.{reason}"] == count
        assert stats.counters.get("trajectories.committed", 0) == len(self.model.trained)


@pytest.mark.timeout(600)  # Only a failure takes that long: it is shrunk first.
@pytest.mark.parametrize(
    ("engine", "max_examples"),
    [
        ({"engine": "memory"}, 150),
        ({"engine": "lmdb", "durability": "os"}, 60),
        ({"engine": "lmdb", "durability": "os", "side_file_bytes": 0}, 20),
        pytest.param({"engine": "redis", "durability": "os"}, 20, marks=needs_redis),
    ],
    ids=["memory", "lmdb", "lmdb-side-files", "redis"],
)
def test_store_equals_its_model(engine: dict[str, Any], max_examples: int) -> None:
    machine = type("Machine", (StoreMachine,), {"engine": engine})
    run_state_machine_as_test(
        machine, settings=hypothesis_settings(max_examples=max_examples, stateful_step_count=50)
    )
