"""Places for episodes: a fixed number of them, or as many as the controllers allow."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, Protocol

from forebay.actors.board import Board, MemoryBoard, Note, Posted
from forebay.actors.controller import Decision, Demand
from forebay.actors.crew import Crew
from forebay.actors.lanes import Lanes
from forebay.actors.levels import Turn
from forebay.actors.settings import ActorSettings
from forebay.actors.slot_run import LiveSlot, Watcher
from forebay.actors.store_access import StoreAccess
from forebay.clock import Clock
from forebay.errors import ConfigError
from forebay.staleness import Shares
from forebay.store.protocol import Slot, StoreStats
from forebay.telemetry.trace import OFF, Tracer
from forebay.trajectory import PolicyVersion

# Failures are looked at soon, but together.
_SOON_S: Final = 0.05
# A process that has written nothing for so long is gone.
_PATIENCE_S: Final = 5.0
_PATIENCE_LOOKS: Final = 6.0
_log = logging.getLogger(__name__)


class BatchDemand(NamedTuple):
    """What the learner takes at a time.

    Attributes:
        shares: The environments and their weights.
        groups: Groups of a batch, as the store holds them.
        group_size: Episodes of a group.
    """

    shares: Shares
    groups: int
    group_size: int


class Places(Protocol):
    """Who says how many episodes may begin.

    Attributes:
        watcher: Who is to be told what episodes do, if that matters.
    """

    watcher: Watcher | None

    async def run(self) -> None:
        """Do what is to be done beside the episodes, until canceled."""
        ...

    def counters(self) -> dict[str, int]:
        """Return totals by name."""
        ...

    def gauges(self) -> dict[str, float]:
        """Return how many episodes of each environment may run now, if that is not fixed."""
        ...

    def wanted(self, live: Iterable[LiveSlot]) -> list[tuple[str | None, int]]:
        """Return the places to fill now: environment, or None for any, and how many."""
        ...

    def claimed(self, environment: str | None, asked: int, got: int) -> None:
        """Note what a claim brought."""
        ...


class FixedPlaces:
    """So many places, for whatever environment.

    Args:
        number: How many.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self.watcher: Watcher | None = None

    async def run(self) -> None:
        """There is nothing to be done."""

    def counters(self) -> dict[str, int]:
        """Nothing is counted."""
        return {}

    def gauges(self) -> dict[str, float]:
        """Nothing changes."""
        return {}

    def wanted(self, live: Iterable[LiveSlot]) -> list[tuple[str | None, int]]:
        """Return how many places are free; a member that rests has none."""
        free = self._number - sum(not one.resting for one in live)
        return [(None, free)] if free > 0 else []

    def claimed(self, environment: str | None, asked: int, got: int) -> None:
        """Nothing depends on it."""


class Control:
    """As many places as keep the learner fed.

    Consumes: what episodes do, what the store shows, and the notes of other processes. Waits for: the time of
    the next look, or a failure. Unblocked by: either. Produces: decisions, if this process decides for all,
    and a note.

    Args:
        store: Where the learner's demand is seen.
        batches: What the learner takes at a time.
        crew: What is known of the other processes.
        board: Where they see one another's notes.
        period_s: Time between two looks.
        live: The slots that the process holds.
        now_s: Monotonic clock.
        wake: Called after a look: there may be more places.
        tracer: Records decisions and the numbers allowed.
    """

    def __init__(
        self,
        crew: Crew,
        board: Board,
        store: StoreAccess,
        batches: BatchDemand,
        *,
        period_s: float,
        live: Callable[[], Iterable[LiveSlot]],
        now_s: Callable[[], float],
        wake: Callable[[], None],
        tracer: Tracer = OFF,
    ) -> None:
        self._crew, self._board, self.lanes = crew, board, crew.lanes
        self._store, self._batches, self._period_s = store, batches, period_s
        self._board_fails = False
        self._live, self._now_s, self._wake, self._tracer = live, now_s, wake, tracer
        self._failed = asyncio.Event()
        self.watcher: Watcher | None = self

    def wanted(self, live: Iterable[LiveSlot]) -> list[tuple[str | None, int]]:
        """Return the places to fill, by environment."""
        return [(one.environment, one.free) for one in self.lanes.wanted(self._now_s(), _count(live))]

    def claimed(self, environment: str | None, asked: int, got: int) -> None:
        """Note whether the store had as much work as was asked for."""
        if environment is not None:
            self.lanes.claimed(environment, asked, got)

    def turn(self, environment: str, turn: Turn) -> None:
        """Note a turn that has ended."""
        self.lanes.turn(environment, turn)

    def ended(self, environment: str, duration_s: float) -> None:
        """Note an episode that has ended with a result."""
        self.lanes.ended(environment, duration_s)

    def failed(self, environment: str) -> None:
        """Note a reset or step that has failed, and look at it soon."""
        self.lanes.failed(environment)
        self._failed.set()

    async def run(self) -> None:
        """Look and decide until canceled."""
        try:
            while True:
                await self._look()
                self._wake()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._period_s):
                        await self._failed.wait()
                        await asyncio.sleep(_SOON_S)
                self._failed.clear()
        finally:
            with contextlib.suppress(OSError):
                self._board.leave()

    async def _look(self) -> None:
        note = self._crew.look(self._now_s(), _count(self._live()))
        posted = await self._exchange(note)
        if posted is not None and self._crew.meet(posted, self._now_s()):
            decides = "this process decides" if self._crew.decides else "another process decides"
            _log.info("%s how many episodes the %d processes run", decides, self._crew.num_processes)
        if not self._crew.decides:
            return
        demand = demand_of(await self._ask_store(), self._batches)
        now_s = self._now_s()
        for environment, decision in self._crew.decide(now_s, demand):
            self._tell(environment, decision, now_s)
        if self._crew.num_processes > 1:
            await self._exchange(self._crew.note(now_s))

    async def _ask_store(self) -> StoreStats:
        """Return a snapshot; a store that does not answer does not make this process look gone."""
        asked = asyncio.ensure_future(self._store.stats())
        try:
            while not (await asyncio.wait({asked}, timeout=self._period_s))[0]:
                if self._crew.num_processes > 1:
                    await self._exchange(self._crew.note(self._now_s()))
            return asked.result()
        finally:
            asked.cancel()

    async def _exchange(self, note: Note) -> dict[str, Posted] | None:
        """Tell the others, and return what they tell, which can be read where they cannot be told.

        Returns:
            The notes; None if they cannot be read.
        """
        failures: list[OSError] = []

        def exchange() -> dict[str, Posted] | None:
            try:
                self._board.post(note)
            except OSError as error:
                failures.append(error)
            try:
                return self._board.read()
            except OSError as error:
                failures.append(error)
                return None

        posted = await asyncio.to_thread(exchange)
        if failures and not self._board_fails:
            _log.warning("the notes of the actor processes cannot be exchanged: %s", failures[0])
        self._board_fails = bool(failures)
        return posted

    def counters(self) -> dict[str, int]:
        """Return how many decisions there were, by environment and kind."""
        return {f"decisions.{name}": count for name, count in self.lanes.decisions.items()}

    def gauges(self) -> dict[str, float]:
        """Return how many episodes of each environment this process may run now."""
        now_s = self._now_s()
        return {
            f"episodes_allowed.{name}": float(number) for name, number in self.lanes.allowed(now_s).items()
        }

    def _tell(self, environment: str, decision: Decision, now_s: float) -> None:
        _log.info("episodes of %s: %s", environment, decision)
        self._tracer.slice(str(decision), now_s, now_s, track=f"episodes of {environment}")
        self._tracer.counter(f"episodes allowed {environment}", float(decision.after))


def demand_of(snapshot: StoreStats, batches: BatchDemand) -> Mapping[str, Demand]:
    """Return what a snapshot of the store shows of the learner's demand, by environment.

    The learner's hands are empty if fewer groups than a batch are taken, or recorded and not published.

    Args:
        snapshot: The store.
        batches: What the learner takes at a time.
    """
    in_hands = snapshot.outstanding - snapshot.open_groups - snapshot.settled_groups
    total = sum(batches.shares.weights)
    return {
        name: Demand(
            in_hands < batches.groups,
            snapshot.settled_by_environment.get(name, 0) / (weight / total * batches.groups),
            snapshot.counters.get("recorded", 0) // batches.groups,
        )
        for name, weight in zip(batches.shares.names, batches.shares.weights, strict=True)
    }


def make_places(
    settings: ActorSettings,
    batches: BatchDemand | None,
    board: Board | None,
    store: StoreAccess,
    live: Callable[[], Iterable[LiveSlot]],
    name: str,
    clock: Clock,
    wake: Callable[[], None],
    tracer: Tracer,
) -> Places:
    """Return the places that the settings describe; the rest as for `Control`.

    Raises:
        ConfigError: What a batch takes is not known.
    """
    if not settings.controlled:
        return FixedPlaces(settings.most_episodes)
    if batches is None:
        raise ConfigError(
            "episodes in flight cannot follow a demand that is not known",
            got='actors.episodes_per_process="auto"',
            limit="a pool that is told what a batch takes",
            remedy="Set actors.episodes_per_process to a number, or pass `batches`.",
        )
    lanes = Lanes(
        batches.shares,
        batch_episodes=batches.groups * batches.group_size,
        first=settings.first_episodes,
        most=settings.most_episodes,
        processes=settings.processes,
    )
    period_s = settings.control_period_s
    return Control(
        Crew(
            name,
            clock.wall_s(),
            lanes,
            expected=settings.processes,
            patience_s=max(_PATIENCE_S, _PATIENCE_LOOKS * period_s),
        ),
        board or MemoryBoard(name, clock.monotonic_s),
        store,
        batches,
        period_s=period_s,
        live=live,
        now_s=clock.monotonic_s,
        wake=wake,
        tracer=tracer,
    )


async def claim(
    store: StoreAccess, places: Places, wanted: Iterable[tuple[str | None, int]], version: PolicyVersion
) -> list[Slot]:
    """Claim work for places; return the slots."""
    slots: list[Slot] = []
    for environment, free in wanted:
        got = await store.claim(free, version, environment)
        places.claimed(environment, free, len(got))
        slots += got
    return slots


def _count(live: Iterable[LiveSlot]) -> Counter[str]:
    return Counter(one.slot.task.environment for one in live if not one.resting)
