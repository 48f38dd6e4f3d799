from __future__ import annotations

import threading

import pytest

from forebay.batching.prefetch import Prefetcher
from forebay.clock import ManualClock, SystemClock
from forebay.errors import FencedError, NoProgressError, WeightsError
from forebay.learner.publishing import Publisher
from forebay.learner.source import WatchedSource
from forebay.telemetry.watchdog import Watchdog
from forebay.trajectory import PolicyVersion
from tests.unit.learner.small_run import act, make_dispatcher, make_feed, open_at


class Steps(ManualClock):
    """A clock that goes on by a fixed time whenever it is read."""

    def __init__(self, step_s: float) -> None:
        super().__init__()
        self._step_s = step_s

    def monotonic_s(self) -> float:
        self.advance(self._step_s)
        return super().monotonic_s()


class Parts:
    """A source over a real store, and everything around it."""

    def __init__(self, clock=None, *, limit_s: float = 30.0, last: int = 10) -> None:
        clock = clock or SystemClock()
        self.store = open_at()
        self.store.rewind(0)
        self.dispatcher = make_dispatcher(self.store, 0)
        self.feed = make_feed(self.store, 0)
        self.publisher = Publisher(self.publish)
        self.failure: Exception | None = None
        self.stopped = threading.Event()
        prefetcher = Prefetcher(self.feed.next, first=0, last=last, depth=1, clock=SystemClock())
        self.source = WatchedSource(
            prefetcher, self.feed, Watchdog(clock, limit_s=limit_s), self.dispatcher, self.publisher,
            self.store.stats, self.stopped.is_set, clock,
        )  # fmt: skip
        prefetcher.start()

    def publish(self, version, params) -> None:
        if self.failure is not None:
            raise self.failure

    def close(self) -> None:
        self.source.stop()
        self.dispatcher.stop()
        self.publisher.close()


@pytest.fixture
def parts():
    parts = Parts()
    yield parts
    parts.close()


def test_batches_come_in_order(parts) -> None:
    assert parts.source.training_s == 0.0
    parts.dispatcher.top_up()
    act(parts.store)
    batches = [parts.source.next() for _ in range(3)]
    assert [batch.entry.step for batch in batches if batch] == [1, 2, 3]
    assert parts.source.training_s > 0.0


def test_a_stop_ends_the_wait(parts) -> None:
    threading.Timer(0.3, parts.stopped.set).start()
    assert parts.source.next() is None


def test_the_end_of_the_dispatcher_ends_the_wait(parts) -> None:
    parts.store.rewind(0)  # another learner has taken over
    parts.dispatcher.start()
    with pytest.raises(FencedError):
        parts.source.next()


def test_the_end_of_the_publisher_ends_the_wait(parts) -> None:
    parts.failure = WeightsError("the disk is full")
    parts.publisher.submit(PolicyVersion(0, 1), None)
    with pytest.raises(WeightsError, match="disk is full"):
        parts.source.next()


def test_c39_nothing_moves_ends_the_run_and_names_what_is_missing() -> None:
    """All actors are dead: groups are dispatched, none is worked on, and no batch will come."""
    parts = Parts(Steps(8.0), limit_s=60.0)
    parts.dispatcher.top_up()
    with pytest.raises(NoProgressError) as caught:
        parts.source.next()
    message = str(caught.value)
    assert "nothing moved" in message
    assert "60.0 s" in message
    assert "learner waits for 2 more settled groups (0 settled, 10 open, 0 episodes running)" in message
    assert "actor pool works on 0 episodes; 0 trajectories arrived so far" in message
    assert caught.value.exit_code == 3
    parts.close()


def test_c39_actors_that_fall_silent_are_named_before_the_run_ends(caplog) -> None:
    parts = Parts(Steps(8.0), limit_s=100.0)
    parts.dispatcher.top_up()
    parts.store.claim(3, ttl_s=60.0, actor="a", version=PolicyVersion(0, 0))
    with pytest.raises(NoProgressError):
        parts.source.next()
    silent = [record.message for record in caplog.records if "silent" in record.message]
    assert len(silent) == 1
    assert silent[0].endswith("it works on 3 episodes; 0 trajectories arrived so far (owner: actors)")
    parts.close()
