"""A strict reader of Chrome's trace format, written from its description and not from our writer."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any, NamedTuple


class Timeline(NamedTuple):
    """A timeline that is well formed.

    Attributes:
        slices: By (process name, thread name): `(name, begin, end, arguments)`, by begin, outer ones first.
        paths: By member: the `(process name, thread name, slice name)` that its flow leads through, in order.
        counters: By (process name, counter name): values in order.
    """

    slices: dict[tuple[str, str], list[tuple[str, float, float, dict[str, Any]]]]
    paths: dict[str, list[tuple[str, str, str]]]
    counters: dict[tuple[str, str], list[float]]


def read(text: bytes) -> Timeline:
    """Return what a timeline says; an assertion fails where Perfetto would drop or misplace something."""
    document = json.loads(text)
    assert set(document) == {"displayTimeUnit", "traceEvents"}
    events = document["traceEvents"]
    processes, threads = _names(events)
    slices: defaultdict[tuple[int, int], list[Any]] = defaultdict(list)
    flows: defaultdict[int, list[Any]] = defaultdict(list)
    counters: defaultdict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for event in events:
        kind = event["ph"]
        assert kind in {"M", "X", "C", "s", "t", "f"}, event
        if kind == "M":
            continue
        assert isinstance(event["name"], str) and event["name"], event
        assert isinstance(event["ts"], int | float) and event["ts"] >= 0, event
        assert event["pid"] in processes, event
        if kind == "C":
            counters[processes[event["pid"]], event["name"]].append((event["ts"], event["args"]["value"]))
            continue
        place = event["pid"], event["tid"]
        assert place in threads, event
        if kind == "X":
            assert event["dur"] >= 0, event
            assert isinstance(event["args"], dict)
            slices[place].append((event["ts"], -event["dur"], event))
        else:
            assert event["cat"] and isinstance(event["id"], int), event
            flows[event["id"]].append(event)
    return Timeline(
        {(processes[p], threads[p, t]): _nested(found) for (p, t), found in slices.items()},
        dict(_path(found, slices, processes, threads) for found in flows.values()),
        {name: [value for _, value in sorted(found)] for name, found in counters.items()},
    )


def _names(events: list[Any]) -> tuple[dict[int, str], dict[tuple[int, int], str]]:
    processes: dict[int, str] = {}
    threads: dict[tuple[int, int], str] = {}
    for event in events:
        if event["ph"] != "M":
            continue
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int)
        if event["name"] == "process_name":
            assert event["pid"] not in processes
            processes[event["pid"]] = event["args"]["name"]
        elif event["name"] == "thread_name":
            assert (event["pid"], event["tid"]) not in threads
            threads[event["pid"], event["tid"]] = event["args"]["name"]
        else:
            assert isinstance(event["args"]["sort_index"], int)
    return processes, threads


def _nested(found: list[Any]) -> list[tuple[str, float, float, dict[str, Any]]]:
    """Check that slices of one thread lie inside or after one another."""
    open_ends: list[float] = []
    nested = []
    for begin, negative, event in sorted(found, key=lambda item: item[:2]):
        end = round(begin - negative, 3)
        while open_ends and open_ends[-1] <= begin:
            open_ends.pop()
        assert not open_ends or end <= open_ends[-1], f"{event} reaches out of what it lies in"
        open_ends.append(end)
        nested.append((event["name"], begin, end, event["args"]))
    return nested


def _path(
    flow: list[Any], slices: Any, processes: Any, threads: Any
) -> tuple[str, list[tuple[str, str, str]]]:
    """Check that a flow begins, goes on and ends in slices, in order of time."""
    assert [event["ph"] for event in flow] == ["s", *["t"] * (len(flow) - 2), "f"], flow
    assert [event["ts"] for event in flow] == sorted(event["ts"] for event in flow)
    assert flow[-1]["bp"] == "e"
    path = []
    members: set[str] = set()
    for event in flow:
        place = event["pid"], event["tid"]
        around = [item for item in slices[place] if item[0] <= event["ts"] <= round(item[0] - item[1], 3)]
        assert around, f"{event} is in no slice"
        innermost = max(around, key=lambda item: (item[0], item[1]))[2]
        of_slice = set(innermost["args"].get("members", "").split())
        members = members & of_slice if members else of_slice
        path.append((processes[event["pid"]], threads[place], innermost["name"]))
    assert len(members) == 1, f"no one member is on all of {path}"
    return members.pop(), path
