from __future__ import annotations

import threading
from pathlib import Path

import pytest

from forebay.clock import ManualClock
from forebay.telemetry.trace import (
    OFF,
    CounterRecord,
    ProcessRecord,
    SliceRecord,
    Tracer,
    member_name,
    member_of,
    read_trace,
)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(100.0)


def make(tmp_path: Path, clock: ManualClock, **options) -> Tracer:
    return Tracer(tmp_path / "learner-1.jsonl", "learner", clock, **options)


def records(tmp_path: Path) -> list:
    return list(read_trace(tmp_path / "learner-1.jsonl"))


def test_a_trace_says_who_wrote_it_and_what_happened_when(tmp_path, clock) -> None:
    tracer = make(tmp_path, clock)
    with tracer.span("pack", members=("g1.0",), arguments={"version": 3}):
        clock.advance(0.25)
    tracer.counter("waiting", 7)
    tracer.slice("episode", 99.0, 99.5, track="lane 3")
    tracer.close()
    process, pack, waiting, episode = records(tmp_path)
    assert isinstance(process, ProcessRecord)
    assert (process.role, process.wall_s, process.monotonic_s) == ("learner", 100.0, 100.0)
    assert pack == SliceRecord("MainThread", "pack", 100_000_000_000, 250_000_000, ("g1.0",), {"version": 3})
    assert waiting == CounterRecord("waiting", 100_250_000_000, 7)
    assert (episode.track, episode.began_ns, episode.duration_ns) == ("lane 3", 99 * 10**9, 5 * 10**8)


def test_records_wait_in_memory_for_a_second_at_most(tmp_path, clock) -> None:
    tracer = make(tmp_path, clock)
    tracer.slice("first", 100.0, 100.0)
    assert not (tmp_path / "learner-1.jsonl").exists()
    clock.advance(1.0)
    tracer.slice("second", 101.0, 101.0)
    assert [r.name for r in records(tmp_path)[1:]] == ["first", "second"]
    tracer.slice("third", 101.0, 101.0)
    assert len(records(tmp_path)) == 3
    tracer.flush()
    assert len(records(tmp_path)) == 4


def test_a_trace_keeps_its_newest_records_within_its_size(tmp_path, clock) -> None:
    tracer = make(tmp_path, clock, max_bytes=65536)
    for number in range(20_000):
        tracer.slice(f"step {number}", clock.monotonic_s(), clock.monotonic_s())
        clock.advance(0.01)
    tracer.close()
    files = sorted(tmp_path.iterdir())
    assert [path.name for path in files] == ["learner-1.jsonl", "learner-1.jsonl.1"]
    assert sum(path.stat().st_size for path in files) <= 65536
    kept = [record for path in reversed(files) for record in read_trace(path)]
    assert sum(isinstance(record, ProcessRecord) for record in kept) == 2
    numbers = [int(r.name.split()[1]) for r in kept if isinstance(r, SliceRecord)]
    assert numbers == list(range(numbers[0], 20_000))
    assert len(numbers) >= 400


def test_the_same_members_are_followed_everywhere(tmp_path, clock) -> None:
    members = [member_name(f"g{group:08d}", member) for group in range(250) for member in range(4)]
    one = make(tmp_path, clock, every=10)
    other = Tracer(tmp_path / "actor-2.jsonl", "actor", clock, every=10)
    followed = set(filter(one.follows, members))
    assert followed == set(filter(other.follows, members))
    assert 60 <= len(followed) <= 140
    assert one.followed(f"{member}.1" for member in members) == tuple(filter(one.follows, members))
    assert set(filter(make(tmp_path, clock).follows, members)) == set(members)


def test_attempts_and_episodes_belong_to_their_member() -> None:
    assert member_of("g7.3.1") == member_of("g7.3.0.actor-0-99.5") == member_name("g7", 3)


def test_a_lane_holds_one_thing_at_a_time(tmp_path, clock) -> None:
    tracer = make(tmp_path, clock)
    # Recorded when they end, as (begin, end).
    assert tracer.lane("request", 2.0, 5.0) == "request 0"
    assert tracer.lane("request", 5.0, 6.0) == "request 0"
    assert tracer.lane("request", 0.0, 10.0) == "request 1"
    assert tracer.lane("request", 8.0, 11.0) == "request 0"
    assert tracer.lane("episode", 8.0, 11.0) == "episode 0"


def test_threads_have_tracks_of_their_own(tmp_path, clock) -> None:
    tracer = make(tmp_path, clock)
    threads = [threading.Thread(target=lambda: tracer.slice("work", 1.0, 2.0), name=f"t{i}") for i in (0, 1)]
    for thread in threads:
        thread.start()
        thread.join()
    tracer.close()
    assert [record.track for record in records(tmp_path)[1:]] == ["t0", "t1"]


def test_a_disk_that_fails_ends_the_trace_and_is_reported_once(tmp_path, clock, caplog) -> None:
    (tmp_path / "trace").write_text("a file where the directory should be")
    tracer = Tracer(tmp_path / "trace" / "x-1.jsonl", "x", clock)
    for _ in range(3):
        tracer.slice("work", 1.0, 2.0)
        tracer.flush()
    assert not tracer.enabled
    assert len(caplog.records) == 1


def test_nothing_is_recorded_when_it_is_off(tmp_path) -> None:
    with OFF.span("work", members=("g1.0",)):
        OFF.counter("waiting", 1)
    OFF.slice("work", 1.0, 2.0)
    OFF.flush()
    assert not OFF._pending
    assert not OFF.follows("g1.0")


def test_a_torn_line_spoils_no_other(tmp_path, clock) -> None:
    tracer = make(tmp_path, clock)
    tracer.slice("first", 1.0, 2.0)
    tracer.flush()
    path = tmp_path / "learner-1.jsonl"
    path.write_bytes(path.read_bytes() + b'["s","MainThread","cut off\n["x"]\n\xff\n')
    tracer.slice("second", 1.0, 2.0)
    tracer.close()
    assert [r.name for r in records(tmp_path)[1:]] == ["first", "second"]
