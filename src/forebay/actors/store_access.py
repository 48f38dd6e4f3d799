"""Store calls for an event loop: made in threads, and made again while the store cannot take them."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Final, Protocol, TypeVar

from forebay.actors.backoff import Backoff
from forebay.actors.gathering import Gatherer
from forebay.actors.settings import ActorSettings
from forebay.errors import RefusedError, StoreError
from forebay.store.protocol import Receipt, Slot, StoreStats, TaskSource, TrajectorySink
from forebay.store.putting import Outcome, receipt_of
from forebay.telemetry.trace import OFF, Tracer
from forebay.trajectory import PolicyVersion, Trajectory

T = TypeVar("T")
_SHORTEST_TRACED_S: Final = 0.001
# About a mebibyte: others must not wait while it is written.
_LARGE_TOKENS: Final = 1 << 17
_log = logging.getLogger(__name__)


class ActorStore(TaskSource, TrajectorySink, Protocol):
    """What an actor sees of the store."""

    def stats(self) -> StoreStats:
        """Return a snapshot; where the number of episodes follows the learner's demand."""
        ...


class StoreAccess:
    """The store's verbs as coroutines.

    Waits for: the store. Unblocked by: a write, or the next try after a back-off; after `peer_patience_s`
    of failures a `PeerFailedError` ends the wait. Leases have a thread of their own, so that results
    waiting to be written never hold up a heartbeat; so have small results, which are put together, so that
    large ones never hold them up.

    Args:
        store: The store.
        settings: Threads, lease time and patience.
        actor: Name of this process.
        counters: Where `store_errors` are counted.
        tracer: Records calls that take long, and those of members that it follows.
    """

    def __init__(
        self,
        store: ActorStore,
        settings: ActorSettings,
        actor: str,
        counters: Counter[str],
        tracer: Tracer = OFF,
    ) -> None:
        self._store = store
        self._settings = settings
        self._actor = actor
        self._counters = counters
        self._tracer = tracer
        self._leases = ThreadPoolExecutor(1, "leases")
        self._results = ThreadPoolExecutor(settings.put_threads, "results")
        self._gatherer = Gatherer(self._put_many)

    async def claim(
        self, max_slots: int, version: PolicyVersion, environment: str | None = None
    ) -> tuple[Slot, ...]:
        """Lease slots; see `TaskSource.claim`."""
        claim = functools.partial(
            self._store.claim, max_slots, ttl_s=self._settings.lease_ttl_s, actor=self._actor, version=version
        )
        if environment is not None:
            claim = functools.partial(claim, environment=environment)
        return await self._insist(self._leases, claim, "store.claim")

    async def stats(self) -> StoreStats:
        """Return a snapshot of the store."""
        return await self._insist(self._leases, self._store.stats, "store.stats")

    async def renew(self, slots: Sequence[Slot]) -> tuple[Slot, ...]:
        """Renew leases; return the slots that are no longer held."""
        renew = functools.partial(self._store.heartbeat, slots, ttl_s=self._settings.lease_ttl_s)
        return await self._insist(self._leases, renew, "store.heartbeat")

    async def put(self, trajectory: Trajectory, slot: Slot) -> Receipt:
        """Store a result.

        Raises:
            RefusedError: The store will never take it.
        """
        if trajectory.num_tokens <= _LARGE_TOKENS:
            return await self._persist(lambda: self._gatherer.put(trajectory, slot))
        alone = [(trajectory, slot)]
        return await self._insist(self._results, lambda: receipt_of(self._put_many(alone)[0]))

    async def fail(self, slot: Slot, reason: str) -> None:
        """Give up an attempt after an error."""
        fail = functools.partial(self._store.fail, slot, reason=reason)
        await self._insist(self._results, fail, "store.fail")

    async def release(self, slot: Slot) -> None:
        """Give a slot back untried."""
        release = functools.partial(self._store.release_slot, slot)
        await self._insist(self._results, release, "store.release")
        self._counters["released"] += 1

    async def give_back(self, slots: Sequence[Slot]) -> None:
        """Give slots back at the end, trying once: what fails comes back by itself when its lease expires."""
        loop = asyncio.get_running_loop()
        for slot in slots:
            try:
                await loop.run_in_executor(self._results, self._store.release_slot, slot)
                self._counters["released"] += 1
            except StoreError as error:
                self._counters["store_errors"] += 1
                _log.warning("cannot give back %s.%d: %s", slot.group_id, slot.member, error)

    def close(self) -> None:
        """Release the threads."""
        self._leases.shutdown(wait=False)
        self._results.shutdown(wait=False)
        self._gatherer.close()

    def _put_many(self, results: Sequence[tuple[Trajectory, Slot]]) -> Sequence[Outcome]:
        """Store results; runs in a thread, whose slice names those of their members that are followed."""
        members = self._tracer.followed(trajectory.trajectory_id for trajectory, _ in results)
        if not members:
            return self._store.put_many(results)
        return self._traced(lambda: self._store.put_many(results), "store.put", members)

    async def _insist(self, executor: Executor, call: Callable[[], T], name: str | None = None) -> T:
        """Make a call until the store takes it; it is traced if it has a name."""
        if name is not None:
            call = functools.partial(self._traced, call, name)
        loop = asyncio.get_running_loop()
        return await self._persist(lambda: loop.run_in_executor(executor, call))

    async def _persist(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Try until the store takes it."""
        backoff = Backoff.of("store", self._settings, asyncio.get_running_loop().time)
        while True:
            try:
                return await attempt()
            except RefusedError:
                raise
            except StoreError as error:
                self._counters["store_errors"] += 1
                _log.warning("%s", error)
                backoff.failed(error)
            await asyncio.sleep(backoff.left_s)

    def _traced(self, call: Callable[[], T], name: str, members: tuple[str, ...] = ()) -> T:
        began_s = self._tracer.now_s()
        try:
            return call()
        finally:
            ended_s = self._tracer.now_s()
            if members or ended_s - began_s >= _SHORTEST_TRACED_S:
                self._tracer.slice(name, began_s, ended_s, members=members)
