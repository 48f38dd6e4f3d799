"""Fakes for control: a learner that takes batches from a real store, and environments that count."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from forebay.actors.board import MemoryBoard, Note
from forebay.actors.control import BatchDemand
from forebay.actors.pool import ActorPool
from forebay.actors.settings import ActorSettings
from forebay.envs.protocol import Action, Outcome
from forebay.staleness import Choice, OutstandingGroup, Shares
from forebay.store.protocol import JournalEntry
from forebay.store.rules import RuleStore
from forebay.trajectory import PolicyVersion
from tests.unit.actors.support import (
    CHAT,
    LoopClock,
    Scripted,
    ScriptedGenerator,
    calculator_task,
    group,
    kind,
    make_store,
)

GROUPS = 4
GROUP_SIZE = 4


class Crowded:
    """A one-turn environment whose step takes a second, and refuses more than `capacity` at once."""

    def __init__(self, capacity: int = 10_000, step_s: float = 1.0) -> None:
        self.capacity, self.step_s = capacity, step_s
        self.busy = self.most = self.refused = 0

    async def step(self, action: Action) -> Outcome:
        self.busy += 1
        self.most = max(self.most, self.busy)
        try:
            if self.busy > self.capacity:
                self.refused += 1
                raise RuntimeError("429 too many requests")
            await asyncio.sleep(self.step_s)
        finally:
            self.busy -= 1
        return Outcome(reward=1.0, terminated=True)

    def make(self, _: int) -> Any:
        return Scripted(step=self.step)


class Learner:
    """Takes the oldest groups, whatever environment they are of, one batch per `step_s`."""

    def __init__(self, environments: Sequence[str], *, step_s: float, credit: int) -> None:
        self.store: RuleStore = make_store([])
        self.environments, self.step_s, self.credit = tuple(environments), step_s, credit
        self.steps = 0
        self.starved_s = 0.0

    async def run(self) -> None:
        while True:
            self._dispatch()
            began_s = asyncio.get_running_loop().time()
            while not (taken := self._take()):
                await asyncio.sleep(0.1)
            self.starved_s += asyncio.get_running_loop().time() - began_s
            self.steps += 1
            entry = JournalEntry(
                step=self.steps,
                now=PolicyVersion(0, self.steps - 1),
                forks=(),
                group_ids=tuple(taken),
                digest="0",
            )
            self.store.record(entry, incarnation=0)
            await asyncio.sleep(self.step_s)
            self.store.publish(PolicyVersion(0, self.steps), incarnation=0)
            self.store.commit(self.steps, incarnation=0)

    def _dispatch(self) -> None:
        stats = self.store.stats()
        specs = []
        for serial in range(stats.next_serial, stats.next_serial + self.credit * GROUPS - stats.outstanding):
            environment = self.environments[serial % len(self.environments)]
            specs.append(group(serial, calculator_task(environment=environment), size=GROUP_SIZE))
        self.store.dispatch(specs, incarnation=0)

    def _take(self) -> tuple[str, ...]:
        def choose(groups: Sequence[OutstandingGroup]) -> Choice:
            settled = [one.group_id for one in groups if one.settled][:GROUPS]
            return Choice(take=tuple(settled)) if len(settled) == GROUPS else Choice()

        groups, _ = self.store.take(incarnation=0, choose=choose, timeout_s=0.0)
        return tuple(one.spec.group_id for one in groups)


def controlled_pool(
    learner: Learner,
    *environments: tuple[str, Crowded],
    name: str = "a",
    notes: dict[str, tuple[float, Note]] | None = None,
    **settings: Any,
) -> ActorPool:
    names, clock = tuple(one for one, _ in environments), LoopClock()
    return ActorPool(
        store=learner.store,
        generator=ScriptedGenerator(policy=lambda _: "#1"),
        chat=CHAT,
        environments={one: kind(crowded.make, one) for one, crowded in environments},
        settings=ActorSettings(
            **{"episodes_per_process": "auto", "drain_s": 0.0, "max_turn_tokens": 8, **settings}
        ),
        run_seed=7,
        name=name,
        clock=clock,
        batches=BatchDemand(Shares(names, (1.0,) * len(names)), GROUPS, GROUP_SIZE),
        board=MemoryBoard(name, clock.monotonic_s, notes),
    )


async def run_for(duration_s: float, learner: Learner, *pools: ActorPool) -> None:
    """Run a learner and pools for so many virtual seconds."""
    learning = asyncio.create_task(learner.run())
    running = [asyncio.create_task(pool.run()) for pool in pools]
    await asyncio.sleep(duration_s)
    learning.cancel()
    for pool in pools:
        pool.drain()
    await asyncio.gather(*running)
