"""One timeline of all processes, as Chrome's JSON trace format, which Perfetto reads.

Every process becomes a group of tracks. The path of a member of a group becomes a flow: arrows from slice to
slice, in order of time. Processes of one host share its monotonic clock; hosts are put side by side by their
wall clocks.

References:
    Trace Event Format, https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from forebay.telemetry.trace import (
    FORMAT,
    ROTATED_SUFFIX,
    SUFFIX,
    CounterRecord,
    ProcessRecord,
    Record,
    SliceRecord,
    read_trace,
)

_ROLES = ("learner", "generator", "actor", "evaluator")
# An arrow begins and ends this far inside a slice, so that it belongs to it and not to its neighbor.
_INSIDE_NS = 500
_MAX_TRACKS = 10_000

Event = dict[str, Any]


class TraceCounts(NamedTuple):
    """What a timeline holds."""

    processes: int
    slices: int
    paths: int


class _Stop(NamedTuple):
    """Where a path leads through a slice."""

    time_ns: int
    pid: int
    tid: int


class _Process(NamedTuple):
    """A process and its files, oldest first."""

    record: ProcessRecord
    files: tuple[Path, ...]


def write_timeline(directory: Path, write: Callable[[bytes], Any]) -> TraceCounts:
    """Merge the trace files of a run into one JSON object.

    Args:
        directory: Where processes left their traces.
        write: Called with each piece of the JSON text, as bytes.

    Returns:
        What is in it; zeros if there is no trace.
    """
    processes = _processes(directory)
    timeline = _Timeline(processes)
    write(b'{"displayTimeUnit":"ms","traceEvents":[')
    separator = b"\n"
    for event in timeline.events():
        write(separator + msgspec.json.encode(event))
        separator = b",\n"
    write(b"\n]}\n")
    return TraceCounts(len(processes), timeline.num_slices, timeline.num_paths)


class _Timeline:
    """Translates records into events."""

    def __init__(self, processes: list[_Process]) -> None:
        self._processes = processes
        self._offsets_ns = _offsets_ns(process.record for process in processes)
        records = [process.record for process in processes]
        self._begin_ns = min(
            (round(r.monotonic_s * 1e9) + self._offsets_ns[r.boot] for r in records), default=0
        )
        self._stops: defaultdict[str, list[_Stop]] = defaultdict(list)
        self.num_slices = 0
        self.num_paths = 0

    def events(self) -> Iterator[Event]:
        # Small numbers of our own: ids of processes on different hosts may be equal.
        for pid, process in enumerate(self._processes, start=1):
            yield from self._process_events(pid, process)
        # Perfetto takes only numbers as the identity of a flow.
        for number, stops in enumerate(self._stops.values(), start=1):
            yield from self._path_events(number, sorted(stops))

    def _process_events(self, pid: int, process: _Process) -> Iterator[Event]:
        record = process.record
        yield _metadata("process_name", pid, 0, name=f"{record.role} ({record.host}, process {record.pid})")
        yield _metadata("process_sort_index", pid, 0, sort_index=_sort_index(record.role))
        # Perfetto shows threads in the order of the file, and takes their ids for those of a whole machine.
        tids = {track: pid * _MAX_TRACKS + n for n, track in enumerate(_tracks(process.files), start=1)}
        for order, (track, tid) in enumerate(tids.items()):
            yield _metadata("thread_name", pid, tid, name=track)
            yield _metadata("thread_sort_index", pid, tid, sort_index=order)
        shift_ns = self._offsets_ns[record.boot] - self._begin_ns
        for entry in _records(process.files):
            match entry:
                case SliceRecord():
                    if entry.track in tids:  # it is new if the process has gone on meanwhile
                        yield self._slice(entry, pid, tids[entry.track], shift_ns)
                case CounterRecord():
                    yield {
                        "ph": "C",
                        "name": entry.name,
                        "pid": pid,
                        "tid": 0,
                        "ts": (entry.time_ns + shift_ns) / 1000,
                        "args": {"value": entry.value},
                    }
                case ProcessRecord():
                    continue

    def _slice(self, entry: SliceRecord, pid: int, tid: int, shift_ns: int) -> Event:
        self.num_slices += 1
        began_ns = entry.began_ns + shift_ns
        inside_ns = min(_INSIDE_NS, entry.duration_ns // 2)
        for member in entry.members:
            self._stops[member].append(_Stop(began_ns + inside_ns, pid, tid))
        return {
            "ph": "X",
            "cat": "forebay",
            "name": entry.name,
            "pid": pid,
            "tid": tid,
            "ts": began_ns / 1000,
            "dur": entry.duration_ns / 1000,
            "args": entry.arguments | ({"members": " ".join(entry.members)} if entry.members else {}),
        }

    def _path_events(self, number: int, stops: list[_Stop]) -> Iterator[Event]:
        if len(stops) < 2:
            return
        self.num_paths += 1
        last = len(stops) - 1
        for index, stop in enumerate(stops):
            phase = "s" if index == 0 else "f" if index == last else "t"
            event: Event = {
                "ph": phase,
                "cat": "trajectory",
                "name": "trajectory",
                "id": number,
                "pid": stop.pid,
                "tid": stop.tid,
                "ts": stop.time_ns / 1000,
            }
            yield event | {"bp": "e"} if phase == "f" else event


def _processes(directory: Path) -> list[_Process]:
    """Return the processes that left a trace in this format, in the order in which they are shown."""
    found = []
    for path in sorted(directory.glob(f"*{SUFFIX}")):
        rotated = path.with_name(f"{path.stem}{ROTATED_SUFFIX}")
        first = next(read_trace(path), None)
        if isinstance(first, ProcessRecord) and first.format == FORMAT:
            found.append(_Process(first, (rotated, path) if rotated.exists() else (path,)))
    return sorted(found, key=lambda p: (_sort_index(p.record.role), p.record.role, p.record.wall_s))


def _offsets_ns(records: Iterable[ProcessRecord]) -> dict[str, int]:
    """Return by host what to add to its monotonic clock to get wall time."""
    differences: defaultdict[str, list[float]] = defaultdict(list)
    for record in records:
        differences[record.boot].append((record.wall_s - record.monotonic_s) * 1e9)
    return {boot: round(statistics.median(values)) for boot, values in differences.items()}


def _records(files: Iterable[Path]) -> Iterator[Record]:
    for path in files:
        yield from read_trace(path)


def _tracks(files: Iterable[Path]) -> list[str]:
    """Return the tracks of a process, threads first, then lanes by kind and number."""
    found = {record.track for record in _records(files) if isinstance(record, SliceRecord)}
    return sorted(found, key=_order)


def _metadata(kind: str, pid: int, tid: int, **args: str | int) -> Event:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": args}


def _sort_index(role: str) -> int:
    kind = role.partition("-")[0]
    return _ROLES.index(kind) if kind in _ROLES else len(_ROLES)


def _order(track: str) -> tuple[bool, str, int]:
    kind, _, number = track.rpartition(" ")
    return (True, kind, int(number)) if number.isdigit() else (False, track, 0)
