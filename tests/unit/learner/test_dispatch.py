from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from forebay.errors import FencedError
from forebay.trajectory import PolicyVersion
from tests.unit.learner.small_run import BATCHING, STALENESS, act, make_dispatcher, make_feed, open_at
from tests.unit.store.builders import make_spec

CREDIT = (STALENESS.max_staleness + 1) * BATCHING.groups


@pytest.fixture
def store():
    store = open_at()
    store.rewind(0)
    return store


def test_it_fills_the_credit_once(store) -> None:
    dispatcher = make_dispatcher(store, 0)
    assert dispatcher.top_up() == CREDIT == 10
    assert dispatcher.top_up() == 0
    assert store.stats().next_serial == CREDIT


def test_credit_comes_back_when_a_version_is_published_not_when_groups_are_taken(store) -> None:
    dispatcher = make_dispatcher(store, 0)
    dispatcher.top_up()
    act(store)
    make_feed(store, 0).next(0, threading.Event())
    assert dispatcher.top_up() == 0
    store.publish(PolicyVersion(0, 1), incarnation=0)
    assert dispatcher.top_up() == BATCHING.groups


@pytest.mark.parametrize("steps", [1, 2])
def test_c84_a_run_shorter_than_the_window_dispatches_just_what_it_can_train(store, steps: int) -> None:
    dispatcher = make_dispatcher(store, 0, last_version=steps)
    assert dispatcher.top_up() == steps * BATCHING.groups
    act(store)
    feed = make_feed(store, 0)
    for version in range(steps):
        feed.next(version, threading.Event())
        store.publish(PolicyVersion(0, version + 1), incarnation=0)
        assert dispatcher.top_up() == 0
    assert store.stats().outstanding == 0


def test_a_task_that_came_too_late_is_posed_again_first(store) -> None:
    dispatcher = make_dispatcher(store, 0)
    dispatcher.top_up()
    act(store)
    groups, _ = store.take(incarnation=0, choose=_first_two, timeout_s=1.0)
    for group in groups:
        store.reject(group.spec.group_id, incarnation=0, reason="stale")
        dispatcher.repeat(group.spec.group_id)
    dispatcher.repeat("never-posed")
    assert dispatcher.top_up() == 2
    tasks = {
        slot.group_id: slot.task.task_id for slot in store.claim(4, ttl_s=9.0, actor="a", version=(0, 0))
    }
    assert tasks == {"g10": "task-0", "g11": "task-1"}


def test_naming_late_groups_disturbs_nobody_who_dispatches(store) -> None:
    """The feed's thread does the one, the dispatcher's the other; a switch between any two instructions."""
    dispatcher = make_dispatcher(store, 0)
    groups = [make_spec(serial) for serial in range(2000)]

    def dispatch() -> None:
        for first in range(0, len(groups), 50):
            dispatcher._remember(groups[first : first + 50])
            for _ in range(30):
                dispatcher._repeated("another")

    def name_late_ones() -> None:
        while not dispatched.done():
            for group in groups:
                dispatcher.repeat(group.group_id)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(2) as pool:
            dispatched = pool.submit(dispatch)
            pool.submit(name_late_ones).result()
            dispatched.result()
    finally:
        sys.setswitchinterval(before)


def test_what_a_full_store_refuses_is_kept_for_later() -> None:
    from forebay.clock import SystemClock
    from forebay.store import StoreSettings, open_store

    store = open_store(StoreSettings(engine="memory", capacity_groups=4), "run-1", SystemClock())
    store.rewind(0)
    dispatcher = make_dispatcher(store, 0)
    assert dispatcher.top_up() == 4
    act(store)
    make_feed(store, 0).next(0, threading.Event())
    assert dispatcher.top_up() == 2
    assert store.stats().next_serial == 6


def test_it_runs_in_the_background_and_its_errors_surface(store) -> None:
    dispatcher = make_dispatcher(store, 0, period_s=0.01)
    started = threading.Event()
    dispatcher.start(started.set)
    assert started.wait(10)
    _until(lambda: store.stats().outstanding == CREDIT)
    store.rewind(0)
    store.publish(PolicyVersion(1, 1), incarnation=1)
    act(store)
    groups, _ = store.take(incarnation=1, choose=_first_two, timeout_s=1.0)
    store.reject(groups[0].spec.group_id, incarnation=1, reason="stale")
    dispatcher.wake()
    with pytest.raises(FencedError):
        _until(lambda: dispatcher.check() is not None)
    dispatcher.stop()


def test_a_restart_grants_no_credit_twice(store) -> None:
    make_dispatcher(store, 0).top_up()
    act(store)
    make_feed(store, 0).next(0, threading.Event())
    store.rewind(0)
    assert make_dispatcher(store, 1).top_up() == 0


def _first_two(groups):
    from forebay.staleness import Choice

    settled = [group.group_id for group in groups if group.settled]
    return Choice(take=tuple(settled[:2]))


def _until(reached, limit_s: float = 30.0) -> None:
    import time

    deadline_s = time.monotonic() + limit_s
    while not reached():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)
