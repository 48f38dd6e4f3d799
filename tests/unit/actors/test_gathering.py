"""Results that end while a call of the store is under way go together in the next one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from forebay.actors.gathering import Gatherer
from forebay.errors import RefusedError, StoreError
from forebay.store import Slot, StoreSettings, open_store
from forebay.store.putting import Outcome
from forebay.trajectory import Trajectory
from tests.unit.store.builders import FIRST, RUN, make_spec, make_trajectory


class Gated:
    """Takes results when told; remembers which came together."""

    def __init__(self, **outcomes: Outcome) -> None:
        self.batches: list[list[str]] = []
        self.begun, self.going_on = threading.Semaphore(0), threading.Semaphore(0)
        self._outcomes = outcomes

    def put_many(self, results: Sequence[tuple[Trajectory, Slot]]) -> list[Outcome]:
        names = [trajectory.trajectory_id for trajectory, _ in results]
        self.batches.append(names)
        self.begun.release()
        assert self.going_on.acquire(timeout=30.0)
        return [self._outcomes.get(name, "accepted") for name in names]


def start(gatherer: Gatherer, *names: str) -> list[asyncio.Task[str]]:
    store = open_store(StoreSettings(engine="memory"), RUN)
    incarnation = store.rewind(0).incarnation
    store.dispatch([make_spec(0, group_size=len(names))], incarnation=incarnation)
    slots = store.claim(len(names), ttl_s=10.0, actor="actor", version=FIRST)
    return [
        asyncio.create_task(gatherer.put(make_trajectory(slot, name=name), slot))
        for name, slot in zip(names, slots, strict=True)
    ]


async def begun(store: Gated) -> None:
    assert await asyncio.to_thread(store.begun.acquire, timeout=30.0)


def run(main: Any) -> None:
    asyncio.run(asyncio.wait_for(main, 60.0))


def test_what_ends_during_a_call_goes_together_in_the_next() -> None:
    async def main() -> None:
        store = Gated(b="late", c="duplicate")
        gatherer = Gatherer(store.put_many)
        first = start(gatherer, "a")
        await begun(store)
        others = start(gatherer, "b", "c", "d")
        await asyncio.sleep(0)
        store.going_on.release(2)
        assert await asyncio.gather(*first, *others) == ["accepted", "late", "duplicate", "accepted"]
        assert store.batches == [["a"], ["b", "c", "d"]]
        gatherer.close()

    run(main())


def test_each_result_gets_its_own_error() -> None:
    async def main() -> None:
        store = Gated(b=RefusedError("too large"), c=StoreError("the disk is full"))
        gatherer = Gatherer(store.put_many)
        store.going_on.release()
        ended = await asyncio.gather(*start(gatherer, "a", "b", "c", "d"), return_exceptions=True)
        assert store.batches == [["a", "b", "c", "d"]]
        assert [type(outcome) for outcome in ended] == [str, RefusedError, StoreError, str]
        gatherer.close()

    run(main())


def test_a_call_that_breaks_ends_all_of_its_results_and_no_others() -> None:
    async def main() -> None:
        calls: list[int] = []

        def put_many(results: Sequence[tuple[Trajectory, Slot]]) -> list[Outcome]:
            calls.append(len(results))
            if len(calls) == 1:
                raise KeyError("a defect")
            return ["accepted"] * len(results)

        gatherer = Gatherer(put_many)
        ended = await asyncio.gather(*start(gatherer, "a", "b"), return_exceptions=True)
        assert [type(outcome) for outcome in ended] == [KeyError, KeyError]
        assert await asyncio.gather(*start(gatherer, "c")) == ["accepted"]
        gatherer.close()

    run(main())


def test_a_canceled_result_that_waits_is_not_sent() -> None:
    async def main() -> None:
        store = Gated()
        gatherer = Gatherer(store.put_many)
        first = start(gatherer, "a")
        await begun(store)
        gone, kept = start(gatherer, "b", "c")
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.wait([gone])
        store.going_on.release(2)
        assert await asyncio.gather(*first, kept) == ["accepted", "accepted"]
        assert store.batches == [["a"], ["c"]]
        gatherer.close()

    run(main())


@pytest.mark.parametrize(("num", "expected"), [(64, [64]), (65, [64, 1]), (150, [64, 64, 22])])
def test_a_call_takes_at_most_64(num: int, expected: list[int]) -> None:
    async def main() -> None:
        store = Gated()
        store.going_on.release(len(expected))
        gatherer = Gatherer(store.put_many)
        await asyncio.gather(*start(gatherer, *(f"t{number}" for number in range(num))))
        assert [len(batch) for batch in store.batches] == expected
        gatherer.close()

    run(main())
