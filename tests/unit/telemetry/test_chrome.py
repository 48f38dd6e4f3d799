from __future__ import annotations

import os
import random
import socket
from pathlib import Path

import msgspec
import pytest

from forebay.clock import ManualClock
from forebay.telemetry.chrome import TraceCounts, write_timeline
from forebay.telemetry.trace import ProcessRecord, SliceRecord, Tracer
from tests.unit.telemetry import timeline


def merged(directory: Path) -> tuple[TraceCounts, timeline.Timeline]:
    parts: list[bytes] = []
    counts = write_timeline(directory, parts.append)
    return counts, timeline.read(b"".join(parts))


def write(path: Path, *records) -> None:
    path.write_bytes(b"".join(msgspec.json.encode(record) + b"\n" for record in records))


def process(
    role: str, *, boot: str = "b1", wall_s: float = 5000.0, monotonic_s: float = 100.0
) -> ProcessRecord:
    return ProcessRecord(1, role, 7, "host", boot, wall_s, monotonic_s)


def test_the_path_of_a_trajectory_leads_through_all_processes(tmp_path) -> None:
    clock = ManualClock(100.0)
    learner = Tracer(tmp_path / "learner-1.jsonl", "learner", clock)
    actor = Tracer(tmp_path / "actor-0-2.jsonl", "actor-0", clock)
    learner.slice("dispatch", 100.0, 100.5, track="dispatch_0", members=("g1.0", "g1.1"))
    actor.slice("episode", 101.0, 104.0, track="episode 0")
    actor.slice("generate", 101.5, 102.0, track="episode 0", members=("g1.0",))
    actor.slice("put", 103.0, 104.0, track="episode 0", members=("g1.0",))
    learner.slice("train version 1", 105.0, 107.0, track="steps", members=("g1.0",))
    learner.counter("depth", 3)
    learner.close()
    actor.close()
    counts, found = merged(tmp_path)
    assert counts == TraceCounts(processes=2, slices=5, paths=1)
    learner_name, actor_name = (
        f"{role} ({socket.gethostname()}, process {os.getpid()})" for role in ("learner", "actor-0")
    )
    assert found.paths == {
        "g1.0": [
            (learner_name, "dispatch_0", "dispatch"),
            (actor_name, "episode 0", "generate"),
            (actor_name, "episode 0", "put"),
            (learner_name, "steps", "train version 1"),
        ]
    }
    assert found.slices[actor_name, "episode 0"] == [
        ("episode", 1e6, 4e6, {}),
        ("generate", 1.5e6, 2e6, {"members": "g1.0"}),
        ("put", 3e6, 4e6, {"members": "g1.0"}),
    ]
    assert found.counters == {(learner_name, "depth"): [3.0]}


def test_hosts_are_put_side_by_side_by_their_wall_clocks(tmp_path) -> None:
    write(tmp_path / "learner-1.jsonl", process("learner"), SliceRecord("t", "here", 102 * 10**9, 10**9))
    write(
        tmp_path / "actor-0-1.jsonl",
        process("actor-0", boot="b2", wall_s=5001.0, monotonic_s=9.0),
        SliceRecord("t", "there", 10 * 10**9, 10**9),
    )
    _, found = merged(tmp_path)
    begins = {slices[0][0]: slices[0][1] for slices in found.slices.values()}
    assert begins == {"here": 2e6, "there": 2e6}


def test_processes_of_one_host_share_its_monotonic_clock_whatever_the_wall_clock_did(tmp_path) -> None:
    write(tmp_path / "learner-1.jsonl", process("learner"), SliceRecord("t", "one", 101 * 10**9, 1))
    write(tmp_path / "x-2.jsonl", process("x"), SliceRecord("t", "two", 102 * 10**9, 1))
    # The wall clock was set back by an hour before this one began.
    write(
        tmp_path / "y-3.jsonl",
        process("y", wall_s=1403.0, monotonic_s=103.0),
        SliceRecord("t", "three", 103 * 10**9, 1),
    )
    _, found = merged(tmp_path)
    begins = {slices[0][0]: slices[0][1] for slices in found.slices.values()}
    assert begins == {"one": 1e6, "two": 2e6, "three": 3e6}


def test_both_halves_of_a_rotated_trace_are_read_and_foreign_files_are_not(tmp_path) -> None:
    write(tmp_path / "learner-1.jsonl.1", process("learner"), SliceRecord("t", "old", 101 * 10**9, 1))
    write(tmp_path / "learner-1.jsonl", process("learner"), SliceRecord("t", "new", 102 * 10**9, 1))
    (tmp_path / "notes.jsonl").write_text("hello\n")
    write(tmp_path / "later.jsonl", ProcessRecord(2, "x", 1, "h", "b", 1.0, 1.0))
    counts, found = merged(tmp_path)
    assert counts.processes == 1
    assert [name for name, *_ in next(iter(found.slices.values()))] == ["old", "new"]


def test_a_run_without_a_trace_makes_an_empty_timeline(tmp_path) -> None:
    counts, found = merged(tmp_path / "nowhere")
    assert counts == TraceCounts(0, 0, 0)
    assert found == timeline.Timeline({}, {}, {})


@pytest.mark.parametrize("seed", range(5))
def test_what_overlaps_lies_on_lanes_on_which_it_nests(tmp_path, seed) -> None:
    rng = random.Random(seed)
    tracer = Tracer(tmp_path / "actor-1.jsonl", "actor", ManualClock())
    spans = [(begin, begin + rng.expovariate(1 / 3)) for begin in (rng.uniform(0, 60) for _ in range(200))]
    for begin, end in sorted(spans, key=lambda span: span[1]):
        lane = tracer.lane("episode", begin, end)
        tracer.slice("episode", begin, end, track=lane)
        middle = rng.uniform(begin, end)
        tracer.slice("first", begin, middle, track=lane, members=("g.0",))
        tracer.slice("second", middle, end, track=lane, members=("g.0",))
    tracer.close()
    counts, found = merged(tmp_path)
    assert counts.slices == 600
    assert sum(len(slices) for slices in found.slices.values()) == 600
    assert len(found.paths["g.0"]) == 400


def test_the_strict_reader_sees_what_reaches_out_of_its_slice() -> None:
    def event(**fields):
        return {"ph": "X", "pid": 1, "tid": 1, "name": "x", "args": {}} | fields

    names = [
        {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "p"}},
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "t"}},
    ]
    wrong = [*names, event(ts=0, dur=5), event(ts=3, dur=5)]
    with pytest.raises(AssertionError, match="reaches out"):
        timeline.read(msgspec.json.encode({"displayTimeUnit": "ms", "traceEvents": wrong}))
