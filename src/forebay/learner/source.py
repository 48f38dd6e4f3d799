"""The learner's wait for the next batch, with a watchdog over everybody who could be why none comes."""

from __future__ import annotations

import logging
from collections.abc import Callable

from forebay.batching.prefetch import Prefetcher
from forebay.clock import Clock
from forebay.learner.dispatch import Dispatcher
from forebay.learner.feed import Feed, JournaledBatch
from forebay.learner.publishing import Publisher
from forebay.store.protocol import StoreStats
from forebay.telemetry.causes import CauseTotals
from forebay.telemetry.trace import OFF, Tracer
from forebay.telemetry.watchdog import Watchdog

logger = logging.getLogger(__name__)

_LOOK_S = 0.25


class WatchedSource:
    """Batches from a prefetcher, with every wait named.

    Consumes: prefetched batches. Waits for: the next one. Unblocked by: the feed, a stop, or the watchdog.
    Produces: batches.

    Args:
        prefetcher: Makes batches ahead.
        feed: Where it takes them from; knows what it waits for.
        watchdog: Ends the run when nothing moves.
        dispatcher: Its errors surface here.
        publisher: Its errors surface here.
        store_stats: Reads the store, for the cause of a wait.
        stopped: Whether the run is to stop; raises what has failed elsewhere.
        clock: Source of time.
        waits: Where the time spent here is added up by what the feed was waiting for.
        tracer: Records each wait by its main cause.
    """

    def __init__(
        self,
        prefetcher: Prefetcher[JournaledBatch | None],
        feed: Feed,
        watchdog: Watchdog,
        dispatcher: Dispatcher,
        publisher: Publisher,
        store_stats: Callable[[], StoreStats],
        stopped: Callable[[], bool],
        clock: Clock,
        waits: CauseTotals | None = None,
        tracer: Tracer = OFF,
    ) -> None:
        self._prefetcher = prefetcher
        self._feed = feed
        self._watchdog = watchdog
        self._dispatcher = dispatcher
        self._publisher = publisher
        self._store_stats = store_stats
        self._stopped = stopped
        self._clock = clock
        self._waits = waits or CauseTotals()
        self._tracer = tracer
        self._first_s: float | None = None
        self._accepted = -1
        watchdog.register("learner", owner="learner", progress=True)
        watchdog.register("actor pool", owner="actors", silent_after_s=30.0)

    @property
    def training_s(self) -> float:
        """Time since the first batch came; 0 before it."""
        return 0.0 if self._first_s is None else self._clock.monotonic_s() - self._first_s

    def next(self) -> JournaledBatch | None:
        """Return the next batch; None when the run is to stop.

        Raises:
            NoProgressError: None came for longer than the limit; names what every party did last.
            ForebayError: What ended the feed, the dispatcher or the publisher.
        """
        self._watchdog.beat("learner", "asked for the next batch")
        began_s, before = self._clock.monotonic_s(), self._feed.causes.read()
        try:
            return self._wait()
        finally:
            passed = self._waits.add_since(before, self._feed.causes.read())
            cause = max(passed, key=passed.__getitem__, default="handover")
            self._tracer.slice(f"waits for {cause}", began_s, self._clock.monotonic_s())

    def _wait(self) -> JournaledBatch | None:
        while not self._stopped():
            got = self._prefetcher.get(_LOOK_S)
            if got is not None:
                self._first_s = self._clock.monotonic_s() if self._first_s is None else self._first_s
                return got.item
            self._dispatcher.check()
            self._publisher.check()
            self._look()
        return None

    def stop(self) -> None:
        """End the background thread."""
        self._prefetcher.stop()

    def _look(self) -> None:
        stats = self._store_stats()
        accepted = stats.counters.get("trajectories.accepted", 0)
        doing = f"works on {stats.leased_slots} episodes; {accepted} trajectories arrived so far"
        if accepted != self._accepted:
            self._accepted = accepted
            self._watchdog.beat("actor pool", doing)
        self._watchdog.beat(
            "learner",
            f"waits for {self._feed.waits_for} ({stats.settled_groups} settled, {stats.open_groups} open, "
            f"{stats.leased_slots} episodes running)",
            moved=False,
        )
        for sentence in self._watchdog.check():
            logger.warning("%s", sentence)
