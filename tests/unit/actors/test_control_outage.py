"""Control while the store does not answer, or notes cannot be written: nobody looks gone, all follow."""

from __future__ import annotations

import asyncio
import contextlib

from forebay.actors.board import MemoryBoard, Note
from forebay.actors.control import BatchDemand, Control
from forebay.actors.crew import Crew
from forebay.actors.lanes import Lanes
from forebay.staleness import Shares
from forebay.store.protocol import StoreStats
from tests.unit.actors.support import make_store, run_virtual

PERIOD_S = 0.5


class Store:
    """Answers as a store does that is empty, from a moment on."""

    def __init__(self) -> None:
        self.answers = asyncio.Event()

    async def stats(self) -> StoreStats:
        await self.answers.wait()
        return make_store([]).stats()


class FullBoard(MemoryBoard):
    """Takes no note any more once it is full."""

    full = False

    def post(self, note: Note) -> None:
        if self.full:
            raise OSError(28, "No space left on device")
        super().post(note)


def now_s() -> float:
    return asyncio.get_running_loop().time()


def control(name: str, joined_s: float, store: Store, board: MemoryBoard) -> Control:
    shares = Shares(("tool",), (1.0,))
    crew = Crew(name, joined_s, Lanes(shares, batch_episodes=32, first=16, most=100), patience_s=5.0)
    return Control(
        crew,
        board,
        store,  # type: ignore[arg-type]
        BatchDemand(shares, 8, 4),
        period_s=PERIOD_S,
        live=list,
        now_s=now_s,
        wake=lambda: None,
    )


async def stop(*running: asyncio.Task[None]) -> None:
    for one in running:
        one.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await one


def test_the_one_that_decides_stays_so_while_the_store_does_not_answer() -> None:
    async def main() -> None:
        store, notes = Store(), dict[str, tuple[float, Note]]()
        store.answers.set()
        both = [control(n, float(i), store, MemoryBoard(n, now_s, notes)) for i, n in enumerate("ab")]
        running = [asyncio.create_task(one.run()) for one in both]
        await asyncio.sleep(4 * PERIOD_S)
        store.answers.clear()
        await asyncio.sleep(60.0)
        assert [one._crew.decides for one in both] == [True, False]
        assert now_s() - notes["a"][0] <= 3 * PERIOD_S
        await stop(*running)
        assert notes == {}

    run_virtual(main())


def test_one_that_cannot_write_its_note_follows_what_the_others_decide() -> None:
    async def main() -> None:
        store, notes = Store(), dict[str, tuple[float, Note]]()
        store.answers.set()
        board = FullBoard("b", now_s, notes)
        decides, follows = (
            control("a", 0.0, store, MemoryBoard("a", now_s, notes)),
            control("b", 1.0, store, board),
        )
        running = [asyncio.create_task(one.run()) for one in (decides, follows)]
        await asyncio.sleep(4 * PERIOD_S)
        board.full = True
        decides.lanes.controllers["tool"].resume(80, now_s())
        await asyncio.sleep(3 * PERIOD_S)
        assert follows.lanes.totals(now_s()) == {"tool": 80}
        await stop(*running)

    run_virtual(main())
