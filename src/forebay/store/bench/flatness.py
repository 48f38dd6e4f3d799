"""What must not grow: index operations with the residents, memory and file with what went through."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from forebay.store.bench.workload import (
    GROUP_SIZE,
    ORIGIN,
    RUN_ID,
    make_branch,
    make_entry,
    make_specs,
    make_trajectory,
    oldest_settled,
)
from forebay.store.opening import open_store
from forebay.store.protocol import Store
from forebay.store.settings import StoreSettings

_SMALL_BYTES = 512
_CYCLE_BYTES = 10_000
_CYCLES_TIMED = 64
_LEASE_S = 3600.0
_AT_ONCE = 512


class Flatness(msgspec.Struct, frozen=True, kw_only=True):
    """How little grows.

    Args:
        resident: Trajectories in the store, at first and at last.
        index_ms: Median of dispatching, claiming, putting, taking, recording and committing a group of small
            trajectories, at each.
        index_ratio: The second over the first.
        cycles: Trajectories put, taken, recorded and committed, at first and at last.
        rss_bytes: Resident memory at each.
        file_bytes: Size of the lmdb file at each.
    """

    resident: tuple[int, int]
    index_ms: tuple[float, float]
    index_ratio: float
    cycles: tuple[int, int]
    rss_bytes: tuple[int, int]
    file_bytes: tuple[int, int]


def measure_flatness(directory: Path, resident: tuple[int, int], cycles: tuple[int, int]) -> Flatness:
    """Measure on an lmdb store, durability os.

    Args:
        directory: Where its files are made.
        resident: Trajectories at the first and the second measurement.
        cycles: Trajectories that have gone through at the first and the second measurement.
    """
    with tempfile.TemporaryDirectory(prefix=".store-bench-", dir=directory) as scratch:
        first, second = _index_times(Path(scratch) / "index", resident)
        seen = list(_sizes(Path(scratch) / "cycles", cycles))
    return Flatness(
        resident=resident,
        index_ms=(1e3 * first, 1e3 * second),
        index_ratio=second / first,
        cycles=cycles,
        rss_bytes=(seen[0][0], seen[1][0]),
        file_bytes=(seen[0][1], seen[1][1]),
    )


def _open(path: Path, num_groups: int) -> Store:
    settings = StoreSettings(path=path, durability="os", capacity_groups=num_groups, capacity_bytes=1 << 40)
    return open_store(settings, RUN_ID)


def _index_times(path: Path, resident: tuple[int, int]) -> list[float]:
    store = _open(path, resident[1])
    store.rewind(0)
    loop = _Loop(store, _SMALL_BYTES)
    times = []
    for wanted in resident:
        while loop.resident < wanted:
            loop.arrive(min(_AT_ONCE, wanted - loop.resident) // GROUP_SIZE)
        seconds = []
        for _ in range(_CYCLES_TIMED):
            began_s = time.perf_counter()
            loop.arrive(1)
            loop.consume(1)
            seconds.append(time.perf_counter() - began_s)
        times.append(statistics.median(seconds))
    store.close()
    return times


def _sizes(path: Path, cycles: tuple[int, int]) -> Iterator[tuple[int, int]]:
    store = _open(path, GROUP_SIZE)
    store.rewind(0)
    loop = _Loop(store, _CYCLE_BYTES)
    for wanted in cycles:
        while loop.arrived < wanted:
            loop.arrive(1)
            loop.consume(1)
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        yield pages * os.sysconf("SC_PAGE_SIZE"), (path / "data.mdb").stat().st_size
    store.close()


class _Loop:
    """Groups in, groups out, in one thread."""

    def __init__(self, store: Store, payload_bytes: int) -> None:
        self._store, self._payload_bytes = store, payload_bytes
        self._branch = make_branch(payload_bytes)
        self._serial = self._step = 0
        self.arrived = self.resident = 0

    def arrive(self, num_groups: int) -> None:
        specs = make_specs(self._serial, self._serial + num_groups, self._payload_bytes)
        self._serial += num_groups
        self._store.dispatch(specs, incarnation=0)
        num_members = num_groups * GROUP_SIZE
        for slot in self._store.claim(num_members, ttl_s=_LEASE_S, actor="bench", version=ORIGIN):
            self._store.put(make_trajectory(self._branch, slot), slot)
        self.arrived += num_members
        self.resident += num_members

    def consume(self, num_groups: int) -> None:
        groups, _ = self._store.take(incarnation=0, choose=oldest_settled(num_groups), timeout_s=1.0)
        self._step += 1
        entry = make_entry(self._step, [group.spec.group_id for group in groups])
        self._store.record(entry, incarnation=0)
        self._store.commit(self._step, incarnation=0)
        self.resident -= GROUP_SIZE * len(groups)
