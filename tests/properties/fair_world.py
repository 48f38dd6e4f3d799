"""A run in one thread and in virtual time: real store, dispatcher, feed and rules; actors take their time."""

from __future__ import annotations

import dataclasses
import random
import threading
from collections import Counter
from typing import Any, NamedTuple

import msgspec

from benchmarks.siblings_study.world import EventClock
from forebay.learner.dispatch import Dispatcher
from forebay.learner.fairness import FairShares
from forebay.learner.feed import Feed, JournaledBatch
from forebay.learner.siblings import FinishedSiblings
from forebay.staleness import BatchShares, OnStale, Shares, StalenessSettings
from forebay.store import GroupSpec, Slot, StoreSettings, TakenGroup, open_store
from forebay.trajectory import PolicyVersion, Task
from tests.unit.store.builders import RUN, make_spec, make_trajectory

TICK_S = 0.25
PATIENCE_S = 60.0
DEADLINE_S = 600.0


@dataclasses.dataclass
class Kind:
    """An environment: its weight, how long its episodes take, and how often an attempt fails."""

    name: str
    weight: float
    episode_s: float
    failing: float = 0.0
    spread: float = 0.5


class Update(NamedTuple):
    """What a packer makes of a batch, as far as the feed looks at it."""

    digest: str
    empty: bool = False


class World:
    """A learner, its store, and one actor process with a number of places.

    With `parts`, a task is dispatched as so many groups of one episode, each compared with finished siblings;
    `groups` counts these parts.
    """

    def __init__(
        self,
        kinds: list[Kind],
        *,
        groups: int,
        max_staleness: int = 2,
        on_stale: OnStale = "wait",
        step_s: float = 0.1,
        places: int = 32,
        batches: int = 30,
        updates: int = 1,
        seed: int = 0,
        parts: int = 1,
    ) -> None:
        self.kinds = {kind.name: kind for kind in kinds}
        self.groups, self.step_s, self.num_batches, self.updates = groups, step_s, batches, updates
        self.clock = EventClock()
        self.began_s = self.clock.monotonic_s()
        self.rng = random.Random(seed)
        self.shares = Shares(tuple(self.kinds), tuple(kind.weight for kind in kinds))
        self.store = open_store(StoreSettings(engine="memory"), RUN, self.clock)
        self.store.rewind(0)
        settings = StalenessSettings(max_staleness=max_staleness, on_stale=on_stale)
        self.fairness = FairShares(
            self.shares, groups, patience_s=PATIENCE_S, longest_patience_s=5 * PATIENCE_S, clock=self.clock
        )
        last = batches * updates
        self.dispatcher = Dispatcher(
            self.store, 0, self._make_group, settings, groups, updates, last, self.fairness, parts=parts
        )
        siblings = FinishedSiblings(1, self.store.read_group, (), 2 * groups) if parts > 1 else None
        self.feed = Feed(
            self.store,
            0,
            (),
            self._pack,
            settings,
            groups,
            updates,
            self.dispatcher.repeat,
            self.fairness,
            clock=self.clock,
            siblings=siblings,
        )
        self.places = places
        self.attempts: Counter[str] = Counter()
        self.trained: list[JournaledBatch] = []
        self.taken_s: list[float] = []
        self.clock.at(0.0, self._tick)

    def run(self, until: int | None = None) -> None:
        """Train batches, up to a number of them."""
        while len(self.trained) < (self.num_batches if until is None else until):
            version = len(self.trained) * self.updates
            batch = self.feed.next(version, threading.Event())
            assert batch is not None
            self.taken_s.append(self.clock.monotonic_s())
            self.clock.sleep(self.step_s)
            self.trained.append(batch)
            made = version + self.updates
            self.store.publish(PolicyVersion(0, made), incarnation=0)
            self.store.commit(made, incarnation=0)

    def composition(self, batch: int) -> dict[str, int]:
        """Return how many groups of each environment a batch has."""
        counts = Counter(group.spec.task.environment for group in self.trained[batch].groups)
        return {name: counts[name] for name in self.kinds}

    def due(self, batch: int) -> dict[str, int]:
        """Return how many it owes them."""
        return BatchShares(self.shares, batch, self.groups).whole

    def totals(self) -> Counter[str]:
        """Return the groups trained, by environment."""
        return sum((Counter(self.composition(n)) for n in range(len(self.trained))), Counter())

    def _tick(self) -> None:
        self.dispatcher.top_up()
        self._claim()
        self.clock.at(TICK_S, self._tick)

    def _claim(self) -> None:
        published = self.store.stats().published
        for slot in self.store.claim(self.places, ttl_s=1e6, actor="a", version=published):
            self.places -= 1
            kind = self.kinds[slot.task.environment]
            failing = self.rng.random() < kind.failing
            took_s = kind.episode_s * self.rng.uniform(1.0 - kind.spread, 1.0 + kind.spread)
            self.clock.at(took_s, lambda slot=slot, failing=failing: self._end(slot, failing))

    def _end(self, slot: Slot, failing: bool) -> None:
        self.places += 1
        self.attempts[slot.task.environment] += 1
        if failing:
            self.store.fail(slot, reason="environment")
        else:
            self.store.put(make_trajectory(slot, version=slot.min_version), slot)
        self._claim()

    def _make_group(self, serial: int, posed: Task | str | None, min_version: PolicyVersion) -> GroupSpec:
        name = posed.environment if isinstance(posed, Task) else posed or self.shares.environment_at(serial)
        spec = make_spec(
            serial, environment=name, min_version=min_version, group_size=1, deadline_s=DEADLINE_S
        )
        return msgspec.structs.replace(spec, task=posed) if isinstance(posed, Task) else spec

    def _pack(self, groups: tuple[TakenGroup, ...], now: PolicyVersion, forks: Any, packing: bytes) -> Any:
        digest = " ".join(group.spec.group_id for group in groups)
        return tuple(Update(f"{digest} {update}") for update in range(self.updates))
