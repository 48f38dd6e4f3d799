"""The actor pool: hundreds of episodes in one event loop, between the store and the generator."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping

from forebay.actors.board import Board
from forebay.actors.boundary import FaultBoundary
from forebay.actors.control import BatchDemand, claim, make_places
from forebay.actors.episode import EpisodeRunner
from forebay.actors.generator_health import GeneratorHealth
from forebay.actors.looks import look_now_and_then
from forebay.actors.rests import Rests
from forebay.actors.settings import ActorSettings
from forebay.actors.slot_run import LiveSlot, SlotRunner
from forebay.actors.stats import StatsQueue
from forebay.actors.store_access import ActorStore, StoreAccess
from forebay.chat import Chat
from forebay.clock import Clock
from forebay.envs.registry import EnvironmentKind
from forebay.errors import ConfigError
from forebay.generation.protocol import Generator, GeneratorInfo
from forebay.store.protocol import Slot
from forebay.telemetry.trace import OFF, Tracer

_SHORTEST_TRACED_S = 0.01


class ActorPool:
    """Claims slots, runs their episodes, puts the results.

    Consumes: slots of the store. Waits for: a free place, new work, a generator that is well, the store.
    Unblocked by: the end of an episode (each has a deadline), `poll_max_s`, the back-off, a write.
    Produces: trajectories, failures with a reason, and slots given back.

    An episode keeps its place until its result is written, so that a store that brakes brakes the pool. After
    a failure the member rests, its lease kept and its place free.

    Args:
        store: Where work comes from and results go.
        generator: What continues prompts.
        chat: Tokenizer and template.
        environments: Environments by name.
        settings: Sizes and deadlines.
        run_seed: Seed of the run; every model call derives its own.
        name: Name of this process, different at every start of it.
        clock: Wall clock, comparable with the store's; deadlines run on the event loop's clock.
        max_kv_staleness: KV older than this is computed again in a follow-up turn; None to keep it.
        tracer: Records what episodes do.
        batches: What the learner takes at a time; needed where the number of episodes follows it.
        board: Where the processes of a run that follow it see one another; None for one that is alone.

    Attributes:
        counters: Totals by name.
        episodes: Statistics of finished episodes, for whoever drains them.
    """

    def __init__(
        self,
        *,
        store: ActorStore,
        generator: Generator,
        chat: Chat,
        environments: Mapping[str, EnvironmentKind],
        settings: ActorSettings,
        run_seed: int,
        name: str,
        clock: Clock,
        max_kv_staleness: int | None = None,
        tracer: Tracer = OFF,
        batches: BatchDemand | None = None,
        board: Board | None = None,
    ) -> None:
        self.counters: Counter[str] = Counter()
        self.episodes = StatsQueue(settings.stats_queue)
        self._store = StoreAccess(store, settings, name, self.counters, tracer)
        self._generator = generator
        self._chat = chat
        self._environments = environments
        self._settings = settings
        self._run_seed = run_seed
        self._name = name
        self._clock = clock
        self._max_kv_staleness = max_kv_staleness
        self._tracer = tracer
        self._traced = functools.partial(_traced, tracer, clock)
        self._boundary = FaultBoundary(settings.cancel_grace_s)
        self._live: dict[asyncio.Task[None], LiveSlot] = {}
        self._unfinished: list[Slot] = []
        self._num_started = 0
        self._draining, self._stopping, self._wake = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._places = make_places(
            settings, batches, board, self._store, self._live.values, name, clock, self._wake.set, tracer
        )

    async def run(self) -> None:
        """Work until drained.

        Raises:
            ConfigError: Tokenizer and model do not fit.
            PeerFailedError: Store or generator failed for longer than `peer_patience_s`.
        """
        self._health = GeneratorHealth(
            self._generator, self._settings, self.counters, asyncio.get_running_loop().time
        )
        try:
            while not self._draining.is_set():
                if (info := await self._health.look()) is not None:
                    await self._work(self._make_runner(info))
                    break
                await self._pause(self._health.pause_s)
        finally:
            self._store.close()

    def drain(self) -> None:
        """Claim no more and end when the running episodes have; called again, end at once."""
        if self._draining.is_set():
            self._stopping.set()
        self._draining.set()
        self._wake.set()

    def stats(self) -> dict[str, int]:
        """Return the counters, and how many episodes are alive now."""
        return {
            **self.counters,
            **self._places.counters(),
            "live": len(self._live),
            "resting": sum(live.resting for live in self._live.values()),
            "abandoned": self._boundary.num_abandoned,
            "stats_lost": self.episodes.num_lost,
        }

    def gauges(self) -> dict[str, float]:
        """Return how many episodes of each environment may run now, if that is not fixed."""
        return self._places.gauges()

    async def _work(self, runner: EpisodeRunner) -> None:
        self._slots = SlotRunner(
            runner,
            self._store,
            self._health,
            Rests(self._settings, self._clock.monotonic_s, random.Random(f"{self._run_seed}:{self._name}")),
            self._rest,
            run_seed=self._run_seed,
            put_margin_s=self._settings.put_margin_s,
            counters=self.counters,
            episodes=self.episodes,
            tracer=self._tracer,
            watcher=self._places.watcher,
        )
        try:
            async with asyncio.TaskGroup() as tasks:
                keeping = _keep_leases(self._live, self._store, self._settings.heartbeat_s, self.counters)
                looking = look_now_and_then(self._live.values, self.counters, random.Random(self._name))
                aside = (keeping, "heartbeat"), (self._places.run(), "control"), (looking, "looks")
                running = [tasks.create_task(work, name=name) for work, name in aside]
                await self._claim_until_drained(tasks)
                await _finish(self._live, self._woken, self._stopping, self._settings.drain_s)
                for task in running:
                    task.cancel()
        except BaseExceptionGroup as group:
            raise _first_cause(group) from group
        finally:
            await self._store.give_back(self._unfinished)
            await runner.close()

    async def _claim_until_drained(self, tasks: asyncio.TaskGroup) -> None:
        idle_s = self._settings.poll_s
        while not self._draining.is_set():
            wanted = self._places.wanted(self._live.values())
            if not wanted:
                await self._traced("a free place", self._woken())
                continue
            if await self._health.look() is None:
                await self._traced("the generator", self._pause(self._health.pause_s))
                continue
            slots = await claim(self._store, self._places, wanted, self._health.seen)
            self.counters["claimed"] += len(slots)
            for slot in slots:
                self._start(slot, tasks)
            if slots:
                idle_s = self._settings.poll_s
            else:
                await self._traced("work", self._pause(idle_s))
                idle_s = min(2.0 * idle_s, self._settings.poll_max_s)

    def _start(self, slot: Slot, tasks: asyncio.TaskGroup) -> None:
        self._num_started += 1
        live = LiveSlot(slot, self._clock.wall_s(), f"{self._name}.{self._num_started}")
        task = tasks.create_task(self._slots.run(live), name=f"episode {live.episode_id}")
        self._live[task] = live
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        live = self._live.pop(task)
        if task.cancelled() and not live.lost:
            self._unfinished.append(live.slot)
        self._wake.set()

    async def _woken(self) -> None:
        self._wake.clear()
        await self._wake.wait()

    async def _rest(self, duration_s: float) -> None:
        """Let a member rest, its place being free."""
        self._wake.set()
        await self._pause(duration_s)

    async def _pause(self, duration_s: float) -> None:
        """Wait, but not once drained."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(duration_s):
                await self._draining.wait()

    def _make_runner(self, info: GeneratorInfo) -> EpisodeRunner:
        _check_vocabulary(self._chat, info)
        return EpisodeRunner(
            generator=self._generator,
            info=info,
            chat=self._chat,
            environments=self._environments,
            sampling=self._settings.sampling,
            max_turn_tokens=self._settings.max_turn_tokens,
            clock=self._clock,
            boundary=self._boundary,
            max_kv_staleness=self._max_kv_staleness,
        )


async def _finish(
    running: Mapping[asyncio.Task[None], LiveSlot],
    woken: Callable[[], Awaitable[None]],
    stopping: asyncio.Event,
    drain_s: float,
) -> None:
    """Let running episodes finish for a while, then cancel the rest."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(drain_s):
            while running and not stopping.is_set():
                await woken()
    rest = set(running)
    for task in rest:
        task.cancel()
    if rest:
        await asyncio.wait(rest)


def _check_vocabulary(chat: Chat, info: GeneratorInfo) -> None:
    if chat.vocabulary > info.vocabulary:
        raise ConfigError(
            "the tokenizer has ids that the model does not know",
            got=f"{chat.vocabulary} ids",
            limit=f"vocabulary {info.vocabulary}",
            remedy="Use the tokenizer that belongs to the model.",
        )


async def _keep_leases(
    running: Mapping[asyncio.Task[None], LiveSlot],
    store: StoreAccess,
    period_s: float,
    counters: Counter[str],
) -> None:
    """Renew the leases of running episodes, and end those whose lease is gone."""
    while True:
        await asyncio.sleep(period_s)
        live = {_key(live.slot): (task, live) for task, live in running.items()}
        if not live:
            continue
        for slot in await store.renew([entry.slot for _, entry in live.values()]):
            task, entry = live[_key(slot)]
            # The slot is settled or somebody else's. A result on its way is the store's to judge.
            if not entry.putting and not task.done():
                entry.lost = True
                counters["leases_lost"] += 1
                task.cancel()


async def _traced(tracer: Tracer, clock: Clock, cause: str, waiting: Awaitable[None]) -> None:
    """Wait, and record that under the name of its cause."""
    began_s = clock.monotonic_s()
    await waiting
    ended_s = clock.monotonic_s()
    if ended_s - began_s >= _SHORTEST_TRACED_S:
        tracer.slice(f"waits for {cause}", began_s, ended_s, track="claiming")


def _key(slot: Slot) -> tuple[str, int, int]:
    return slot.group_id, slot.member, slot.attempt


def _first_cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    first = group.exceptions[0]
    return _first_cause(first) if isinstance(first, BaseExceptionGroup) else first
