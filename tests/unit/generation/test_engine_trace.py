from __future__ import annotations

from pathlib import Path

import pytest

from forebay.clock import ManualClock
from forebay.generation.scheduler import Scheduler
from forebay.generation.settings import GeneratorSettings
from forebay.telemetry.chrome import write_timeline
from forebay.telemetry.trace import Tracer
from tests.unit.generation.fakes import Answers, FakeExecutor, request, version
from tests.unit.telemetry import timeline


class SlowExecutor(FakeExecutor):
    """A model whose calls take time."""

    clock: ManualClock

    def prefill(self, chunks) -> None:
        self.clock.advance(0.5)
        super().prefill(chunks)

    def decode(self, batch):
        self.clock.advance(0.25)
        return super().decode(batch)


@pytest.fixture
def found(tmp_path: Path) -> timeline.Timeline:
    """Two requests, one after the other, and new weights in between."""
    clock = ManualClock(10.0)
    settings = GeneratorSettings(slots=2, context=32, prefill_chunks=(4,))
    executor = SlowExecutor(2, 32)
    executor.clock = clock
    tracer = Tracer(tmp_path / "generator-1.jsonl", "generator", clock)
    scheduler = Scheduler(executor, settings, version(0), clock, tracer)
    answers = Answers()
    clock.advance(3.0)
    scheduler.submit(request("a", [1, 2, 3, 4, 5], max_tokens=4, episode_id="g7.1.0.actor.5"), answers("a"))
    while scheduler.step():
        pass
    clock.advance(2.0)
    scheduler.load(version(1), {})
    scheduler.submit(request("b", [1, 2], max_tokens=2, episode_id="g8.0.0.actor.6"), answers("b"))
    while scheduler.step():
        pass
    tracer.close()
    parts: list[bytes] = []
    write_timeline(tmp_path, parts.append)
    return timeline.read(b"".join(parts))


def named(found: timeline.Timeline, track: str) -> list[tuple[str, float]]:
    slices = next(slices for (_, name), slices in found.slices.items() if name == track)
    return [(name, round((end - begin) / 1e6, 3)) for name, begin, end, _ in slices]


def test_device_calls_and_idle_time_fill_the_engines_thread(found: timeline.Timeline) -> None:
    calls = named(found, "MainThread")
    assert calls[0] == ("waits for requests", 3.0)
    assert ("prefill", 0.5) in calls
    assert ("waits for requests", 2.0) in calls
    assert [name for name, _ in calls].count("load weights") == 1
    assert {duration for name, duration in calls if name == "decode"} == {0.25}


def test_a_request_shows_how_long_it_waited_and_what_it_got(found: timeline.Timeline) -> None:
    requests = named(found, "request 0")
    assert [name for name, _ in requests] == ["queue and prompt", "generate"] * 2
    assert requests[0][1] == 0.5
    slices = next(slices for (_, name), slices in found.slices.items() if name == "request 0")
    assert slices[1][3] == {"tokens": 4, "finish": "length", "request": "a", "members": "g7.1"}
    assert set(found.paths) == {"g7.1", "g8.0"}


def test_the_queue_is_a_counter(found: timeline.Timeline) -> None:
    assert {name for _, name in found.counters} == {"requests waiting", "requests running"}
