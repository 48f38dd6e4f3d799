"""Controlled places: the real pool and a real store in virtual time, with a learner that takes batches."""

from __future__ import annotations

import asyncio

import pytest

from forebay.actors.board import Note
from forebay.actors.control import BatchDemand, demand_of
from forebay.actors.controller import Demand
from forebay.errors import ConfigError
from forebay.staleness import Shares
from forebay.trajectory import PolicyVersion
from tests.unit.actors.controlled import GROUPS, Crowded, Learner, controlled_pool, run_for
from tests.unit.actors.support import group, make_pool, make_store, run_virtual
from tests.unit.store.builders import make_trajectory


def allowed(pool: object, environment: str = "tool") -> float:
    return pool.gauges()[f"episodes_allowed.{environment}"]  # type: ignore[attr-defined]


def test_episodes_rise_until_the_learner_no_longer_starves() -> None:
    async def main() -> None:
        # Each step of 0.25 s takes 16 episodes of 1.05 s: about 67 at once are needed.
        learner, tool = Learner(["tool"], step_s=0.25, credit=24), Crowded()
        pool = controlled_pool(learner, ("tool", tool))
        await run_for(25.0, learner, pool)
        assert tool.most > 64
        assert learner.steps > 0.6 * 25.0 / 0.25
        assert pool.stats()["decisions.tool.more"] >= 2

    run_virtual(main())


def test_an_environment_that_refuses_is_not_asked_for_more_than_it_serves() -> None:
    async def main() -> None:
        learner, tool = Learner(["tool"], step_s=0.1, credit=24), Crowded(capacity=24)
        pool = controlled_pool(learner, ("tool", tool))
        await run_for(50.0, learner, pool)
        stats = learner.store.stats().counters
        assert 18 <= allowed(pool) <= 27
        assert stats["accepted"] > 0.7 * 24 * 50.0 / 1.05
        assert tool.refused < 0.05 * stats["accepted"]
        assert stats.get("dropped.failed", 0) == 0

    run_virtual(main())


def test_a_refusing_environment_takes_no_places_from_another() -> None:
    async def main() -> None:
        learner = Learner(["small", "large"], step_s=0.5, credit=24)
        small, large = Crowded(capacity=6, step_s=0.2), Crowded(step_s=3.0)
        pool = controlled_pool(learner, ("small", small), ("large", large))
        await run_for(40.0, learner, pool)
        assert allowed(pool, "small") <= 7
        assert large.most > 32
        assert small.refused < 40

    run_virtual(main())


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_several_processes_come_to_the_same_sum(processes: int) -> None:
    async def main() -> None:
        learner, tool = Learner(["tool"], step_s=0.1, credit=24), Crowded(capacity=24)
        notes: dict[str, tuple[float, Note]] = {}
        pools = [
            controlled_pool(learner, ("tool", tool), name=f"a{i}", processes=processes, notes=notes)
            for i in range(processes)
        ]
        await run_for(50.0, learner, *pools)
        assert 17 <= sum(map(allowed, pools)) <= 28
        accepted = learner.store.stats().counters["accepted"]
        assert accepted > 0.65 * 24 * 50.0 / 1.05
        assert tool.refused < 0.1 * accepted

    run_virtual(main())


def test_a_fixed_number_stays_fixed_and_asks_nobody() -> None:
    async def main() -> None:
        store = make_store([group(0)])
        pool = make_pool(store, None, episodes_per_process=5)
        assert pool.gauges() == {}
        assert not any(name.startswith("decisions") for name in pool.stats())

    run_virtual(main())


def test_auto_without_a_demand_is_refused() -> None:
    async def main() -> None:
        with pytest.raises(ConfigError, match=r"demand that is not known.*episodes_per_process to a number"):
            make_pool(make_store([]), None, episodes_per_process="auto")

    run_virtual(main())


def test_the_store_shows_what_the_learner_has_in_its_hands() -> None:
    async def main() -> None:
        learner = Learner(["tool"], step_s=1.0, credit=3)
        batches = BatchDemand(Shares(("tool", "other"), (3.0, 1.0)), GROUPS, 4)
        await run_for(0.5, learner)
        store = learner.store
        before = demand_of(store.stats(), batches)["tool"]
        assert before == Demand(starved=True, batches=0.0, steps=0)
        slots = store.claim(4, ttl_s=99.0, actor="x", version=PolicyVersion(0, 0))
        for slot in slots:
            store.put(make_trajectory(slot, run_id=slot.run_id), slot)
        assert demand_of(store.stats(), batches)["tool"].batches == pytest.approx(1 / 3)
        await asyncio.sleep(0)

    run_virtual(main())
