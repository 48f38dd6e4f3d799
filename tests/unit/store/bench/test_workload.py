"""The work of the benchmark: what is due together, and what a writer may hold."""

from __future__ import annotations

import time

from forebay.store import StoreSettings, open_store
from forebay.store.bench.processes import Pace
from forebay.store.bench.workload import GROUP_SIZE, RUN_ID, Claims, Job, make_specs


def test_what_is_late_is_due_together_and_counts_from_when_it_was_due() -> None:
    first_s = time.monotonic() - 100.0
    pace = Pace(0.25, first_s)
    assert pace.wait_for_some(3) == [first_s, first_s + 0.25, first_s + 0.5]
    assert pace.wait() == first_s + 0.75


def test_without_a_pace_as_many_are_due_as_are_wanted() -> None:
    due_s = Pace(0.0, 0.0).wait_for_some(4)
    assert len(due_s) == 4 and len(set(due_s)) == 1


def test_a_writer_holds_no_more_than_its_share() -> None:
    store = open_store(StoreSettings(engine="memory"), RUN_ID)
    store.rewind(0)
    store.dispatch(make_specs(0, 4, 512), incarnation=0)
    mine, others = Claims(store, 16), Claims(store, 100)
    assert len(mine.take(8)) == 8
    assert store.stats().leased_slots == 16
    assert len(others.take(8)) == 8
    assert store.stats().leased_slots == 4 * GROUP_SIZE
    assert [len(mine.take(8)), len(mine.take(8))] == [8, 0]


def test_the_reader_dispatches_what_writers_hold_and_what_waits_for_it() -> None:
    job = Job(settings={}, payload_bytes=1 << 20, in_flight=8, batch_groups=2, writers=4)
    assert (job.held_slots, job.ahead_groups, job.are_large) == (32, 4 * 2 + 4 * 32 // GROUP_SIZE, True)
