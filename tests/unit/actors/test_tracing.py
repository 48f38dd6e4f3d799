"""The path of an episode as the actor records it, in virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from forebay.actors.pool import ActorPool
from forebay.actors.settings import ActorSettings
from forebay.envs.protocol import Action, Outcome
from forebay.telemetry.chrome import write_timeline
from forebay.telemetry.trace import Tracer
from tests.unit.actors.support import (
    CHAT,
    LoopClock,
    Scripted,
    ScriptedGenerator,
    SlowCalculator,
    group,
    kind,
    make_store,
    run_until,
    run_virtual,
)
from tests.unit.telemetry import timeline


def trace_of(directory: Path, environment=SlowCalculator, every: int = 1, size: int = 1) -> timeline.Timeline:
    """Run one group, and return what the actor recorded."""

    async def main() -> None:
        tracer = Tracer(directory / "actor-0-1.jsonl", "actor-0", LoopClock(), every=every)
        store = make_store([group(0, size=size)])
        pool = ActorPool(
            store=store,
            generator=ScriptedGenerator(),
            chat=CHAT,
            environments={"calculator": kind(lambda _: environment())},
            settings=ActorSettings(episodes_per_process=1, max_turn_tokens=32),
            run_seed=7,
            name="actor-0",
            clock=LoopClock(),
            tracer=tracer,
        )
        await run_until(
            pool, lambda: store.stats().settled_groups + store.stats().counters.get("dropped", 0) > 0
        )
        tracer.close()

    run_virtual(main())
    parts: list[bytes] = []
    write_timeline(directory, parts.append)
    return timeline.read(b"".join(parts))


def test_an_episode_is_a_slice_with_everything_it_did_inside(tmp_path) -> None:
    found = trace_of(tmp_path)
    slices = next(slices for (_, track), slices in found.slices.items() if track == "episode 0")
    assert Counter(name for name, *_ in slices) == {
        "episode g0.0.0": 1, "claim": 1, "reset": 1, "generate": 3, "environment": 3, "put": 1,
    }  # fmt: skip
    lasting = [(name, round((end - begin) / 1e6, 2)) for name, begin, end, _ in slices if end > begin]
    assert lasting == [
        ("episode g0.0.0", 2.15), ("generate", 0.05), ("environment", 1.0), ("generate", 0.05),
        ("environment", 1.0), ("generate", 0.05),
    ]  # fmt: skip
    assert slices[0][3] == {"trajectory": "g0.0.0", "environment": "calculator", "ending": "accepted"}
    tracks = [track for _, track, _ in found.paths["g0.0"]]
    assert Counter(tracks) == {"episode 0": 9, "MainThread": 1}  # the store's call is made by a thread


def test_waits_of_the_pool_are_named_by_their_causes(tmp_path) -> None:
    found = trace_of(tmp_path, size=2)
    waits = next(slices for (_, track), slices in found.slices.items() if track == "claiming")
    assert [name for name, *_ in waits][:2] == ["waits for a free place"] * 2
    assert sum(end - begin for _, begin, end, _ in waits[:2]) == pytest.approx(4.3e6)


def test_members_that_are_not_followed_leave_no_episode(tmp_path) -> None:
    found = trace_of(tmp_path, every=10**6)
    assert not found.paths
    assert not [track for _, track in found.slices if track.startswith("episode")]


def test_an_episode_that_fails_shows_how_far_it_came(tmp_path) -> None:
    async def fail(action: Action) -> Outcome:
        await asyncio.sleep(3.0)
        raise RuntimeError("gone")

    async def main() -> None:
        tracer = Tracer(tmp_path / "actor-0-1.jsonl", "actor-0", LoopClock())
        store = make_store([group(0, size=1)])
        pool = ActorPool(
            store=store,
            generator=ScriptedGenerator(),
            chat=CHAT,
            environments={"calculator": kind(lambda _: Scripted(step=fail))},
            settings=ActorSettings(episodes_per_process=1),
            run_seed=7,
            name="actor-0",
            clock=LoopClock(),
            tracer=tracer,
        )
        await run_until(pool, lambda: store.stats().counters.get("dropped.failed", 0) == 1)
        tracer.close()

    run_virtual(main())
    parts: list[bytes] = []
    write_timeline(tmp_path, parts.append)
    slices = next(
        slices for (_, track), slices in timeline.read(b"".join(parts)).slices.items() if track == "episode 0"
    )
    attempts = [(name, arguments["ending"]) for name, *_, arguments in slices if name.startswith("episode")]
    assert attempts == [(f"episode g0.0.{attempt}", "failed") for attempt in range(3)]
    assert Counter(name for name, *_ in slices)["environment"] == 3
    assert max(end - begin for name, begin, end, _ in slices if name == "environment") == pytest.approx(3e6)
