from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from forebay.batching.prefetch import Prefetcher
from forebay.clock import ManualClock, SystemClock
from forebay.errors import NoProgressError, StoreError

HANG_S = 100.0


class Source:
    """Makes strings for versions, and stops where it is told to until it is told to go on."""

    def __init__(self, gate: Callable[[int], bool] = lambda version: False) -> None:
        self.made: list[int] = []
        self.reached = threading.Semaphore(0)
        self.go = threading.Event()
        self._gate = gate

    def __call__(self, version: int, stopping: threading.Event) -> str:
        self.made.append(version)
        self.reached.release()
        while self._gate(version) and not self.go.wait(0.01) and not stopping.is_set():
            pass
        return f"batch {version}"

    def wait_until_made(self, count: int) -> None:
        for _ in range(count):
            assert self.reached.acquire(timeout=HANG_S)


def prefetcher(source: Source, depth: int, last: int = 10, stride: int = 1) -> Prefetcher[str]:
    return Prefetcher(source, first=3, last=last, stride=stride, depth=depth, clock=SystemClock())


def test_items_come_in_order_each_for_the_version_that_is_differentiated() -> None:
    ahead = prefetcher(Source(), depth=2, last=9, stride=2)
    ahead.start()
    got = [ahead.get(HANG_S) for _ in range(3)]
    assert [(item.version, item.item) for item in got if item] == [
        (3, "batch 3"),
        (5, "batch 5"),
        (7, "batch 7"),
    ]
    with pytest.raises(NoProgressError):
        ahead.get(HANG_S)
    ahead.stop()


@pytest.mark.parametrize("depth", [1, 3])
def test_no_more_than_depth_is_made_ahead(depth: int) -> None:
    source = Source()
    ahead = prefetcher(source, depth)
    ahead.start()
    source.wait_until_made(depth)
    assert not source.reached.acquire(timeout=0.05)
    assert source.made == list(range(3, 3 + depth))
    assert ahead.state == "full"
    assert ahead.get(HANG_S) is not None
    source.wait_until_made(1)
    assert source.made == list(range(3, 4 + depth))
    ahead.stop()


def test_depth_0_makes_nothing_before_it_is_asked() -> None:
    source = Source()
    ahead = prefetcher(source, depth=0)
    ahead.start()
    assert not source.reached.acquire(timeout=0.05)
    item = ahead.get(HANG_S)
    assert item is not None
    assert (item.version, source.made) == (3, [3])
    ahead.stop()


def test_a_timeout_is_no_item_and_the_wait_goes_on() -> None:
    source = Source(gate=lambda version: version == 3)
    ahead = prefetcher(source, depth=1)
    ahead.start()
    source.wait_until_made(1)
    assert ahead.get(0.0) is None
    assert ahead.state == "producing"
    source.go.set()
    item = ahead.get(HANG_S)
    assert item is not None
    assert item.version == 3
    ahead.stop()


def test_what_ended_the_producer_reaches_the_consumer_after_what_it_made() -> None:
    def produce(version: int, stopping: threading.Event) -> str:
        if version == 4:
            raise StoreError("the disk is full")
        return "fine"

    ahead = Prefetcher(produce, first=3, last=9, depth=4, clock=SystemClock())
    ahead.start()
    first = ahead.get(HANG_S)
    assert first is not None
    assert first.item == "fine"
    for _ in range(2):
        with pytest.raises(StoreError, match="the disk is full"):
            ahead.get(HANG_S)
    assert ahead.state == "ended"
    ahead.stop()


def test_stop_ends_a_producer_that_waits_for_groups_and_one_that_waits_for_the_consumer() -> None:
    stuck = Source(gate=lambda version: True)
    waiting = prefetcher(stuck, depth=1)
    waiting.start()
    stuck.wait_until_made(1)
    waiting.stop(HANG_S)
    full = prefetcher(Source(), depth=1)
    full.start()
    full.stop(HANG_S)
    for ahead in (waiting, full):
        assert (ahead.state, ahead.num_ready) == ("ended", 0)
        with pytest.raises(NoProgressError):
            ahead.get(HANG_S)


def test_a_producer_that_ignores_stop_is_named() -> None:
    release = threading.Event()

    def produce(version: int, stopping: threading.Event) -> str:
        release.wait(HANG_S)
        return ""

    ahead = Prefetcher(produce, first=0, last=1, clock=SystemClock())
    ahead.start()
    with pytest.raises(NoProgressError, match="does not stop"):
        ahead.stop(timeout_s=0.05)
    release.set()
    ahead.stop(HANG_S)


def test_starvation_is_the_time_spent_in_get() -> None:
    clock = ManualClock()

    def produce(version: int, stopping: threading.Event) -> int:
        clock.advance(2.0)
        return version

    ahead = Prefetcher(produce, first=0, last=2, depth=0, clock=clock)
    ahead.start()
    waits = [item.waited_s for item in (ahead.get(HANG_S), ahead.get(HANG_S)) if item]
    assert waits == [2.0, 2.0]
    assert ahead.starved_s == 4.0
    ahead.stop()


def test_the_new_thread_begins_with_on_start() -> None:
    names: list[str] = []
    ahead = prefetcher(Source(), depth=1)
    ahead.start(lambda: names.append(threading.current_thread().name))
    assert ahead.get(HANG_S) is not None
    ahead.stop()
    assert len(names) == 1
    assert names[0].startswith("prefetch")


def test_get_before_start_is_refused() -> None:
    with pytest.raises(NoProgressError):
        prefetcher(Source(), depth=1).get(HANG_S)
