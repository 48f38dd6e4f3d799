from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from forebay.clock import ManualClock
from forebay.store import StoreSettings, open_store, view_store
from forebay.store.view import PAGE_GROUPS
from tests.unit.store.builders import FIRST, RUN, make_entry, make_spec, make_trajectory, oldest_first


@pytest.fixture
def settings(tmp_path: Path) -> StoreSettings:
    return StoreSettings(path=tmp_path / "store", durability="os")


NUM_GROUPS = 2 * PAGE_GROUPS + 5
NUM_GONE = PAGE_GROUPS + 10


def name(serial: int) -> str:
    return f"g{serial:05d}"


def train_and_forget(settings: StoreSettings) -> None:
    """Train a batch that reaches into the second page, and forget it; in a process of its own."""
    store = open_store(settings, RUN, ManualClock(1000.0))
    for slot in store.claim(NUM_GROUPS, ttl_s=1e6, actor="a", version=FIRST):
        store.put(make_trajectory(slot), slot)
    store.take(incarnation=0, choose=oldest_first(NUM_GONE), timeout_s=0.0)
    store.record(make_entry(1, [name(serial) for serial in range(NUM_GONE)]), incarnation=0)
    store.commit(1, incarnation=0)
    store.close()


def test_groups_come_in_pages_and_what_goes_away_meanwhile_is_not_there(settings: StoreSettings) -> None:
    store = open_store(settings, RUN, ManualClock(1000.0))
    store.rewind(0)
    specs = [make_spec(serial, group_id=name(serial), group_size=1) for serial in range(NUM_GROUPS)]
    store.dispatch(specs, incarnation=0)
    store.close()
    with view_store(settings, RUN) as view:
        groups = view.groups()
        seen = [next(groups).group_id]
        worker = multiprocessing.get_context("spawn").Process(target=train_and_forget, args=(settings,))
        worker.start()
        worker.join()
        assert worker.exitcode == 0
        seen += [group.group_id for group in groups]
        assert seen == [name(i) for i in (*range(PAGE_GROUPS), *range(NUM_GONE, NUM_GROUPS))]
        assert view.find_group(name(0)) is None
        last = view.find_group(name(NUM_GROUPS - 1))
        assert last is not None and last.state == "settled"
        assert (last.num_arrived, last.members[0].actor) == (1, "a")
        assert view.stats().live_by_environment == {"calculator": NUM_GROUPS - NUM_GONE}
        assert view.audit() == ()


def test_live_groups_are_counted_by_environment_until_they_are_recorded(settings: StoreSettings) -> None:
    store = open_store(settings, RUN, ManualClock(1000.0))
    store.rewind(0)
    store.dispatch(
        [make_spec(0, group_size=1), make_spec(1, group_size=1, environment="sums")], incarnation=0
    )
    assert store.stats().live_by_environment == {"calculator": 1, "sums": 1}
    for slot in store.claim(2, ttl_s=1e6, actor="a", version=FIRST):
        store.put(make_trajectory(slot), slot)
    store.take(incarnation=0, choose=oldest_first(1), timeout_s=0.0)
    assert store.stats().live_by_environment == {"calculator": 1, "sums": 1}
    store.record(make_entry(1, ["g0"]), incarnation=0)
    assert store.stats().live_by_environment == {"sums": 1}
    store.truncate_journal(0, incarnation=0)
    assert store.stats().live_by_environment == {"calculator": 1, "sums": 1} and store.audit() == ()
    store.close()
