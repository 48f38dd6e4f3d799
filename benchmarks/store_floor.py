"""Where the processor time of a trajectory in an lmdb store goes, and what no store in Python can do without.

    .venv/bin/python benchmarks/store_floor.py --json [--rounds 100] [--directory .]

One process, so that nobody waits and no cache is shared: each round dispatches 16 groups of 8, claims their
members, puts 52 KiB for each, eight at a time, and drains them. Bare LMDB does the same bytes and batches,
round by round: eight records a transaction, 128 removed in one. CPU time of the process, user and system; the
lower decile of the rounds, per trajectory.

LMDB lets one process write at a time. What bare LMDB does is all under its lock; `lock_bound` is that over
what the store does under it, and bounds the ratio of their rates for any number of processes.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

import lmdb

from forebay.store import Slot, Store, StoreSettings, open_store
from forebay.store.bench.workload import (
    GROUP_SIZE,
    ORIGIN,
    make_branch,
    make_specs,
    make_trajectory,
    oldest_settled,
)
from forebay.store.putting import receipt_of
from forebay.trajectory import Sequence, Trajectory
from forebay.wire import encode

PAYLOAD_BYTES: Final = 52 << 10
NUM_GROUPS: Final = 16
NUM_TRAJECTORIES: Final = NUM_GROUPS * GROUP_SIZE
CLAIMED_AT_ONCE: Final = 32
PUT_AT_ONCE: Final = 8
_ROOMY_BYTES: Final = 1 << 40
_LEASE_S: Final = 600.0
_WARM_ROUNDS: Final = 4
Batch = list[tuple[Trajectory, Slot]]
VERBS: Final = ("dispatch", "claim", "make", "put", "drain")


class Meter:
    """CPU time by what it was spent on, a value a round.

    Example:
        >>> meter = Meter()
        >>> meter.run("add", lambda: 1 + 1)
        2
        >>> meter.end_round()
        >>> list(meter.per_trajectory_us())
        ['add']
    """

    def __init__(self) -> None:
        self._spent_ns: dict[str, int] = {}
        self._rounds: list[dict[str, int]] = []

    def run(self, name: str, call: Callable[[], Any]) -> Any:
        """Return what a call returns; note what it took."""
        began_ns = time.process_time_ns()
        value = call()
        self.note(name, time.process_time_ns() - began_ns)
        return value

    def note(self, name: str, spent_ns: int) -> None:
        """Note what something took."""
        self._spent_ns[name] = self._spent_ns.get(name, 0) + spent_ns

    def end_round(self) -> None:
        """Begin another round."""
        self._rounds.append(self._spent_ns)
        self._spent_ns = {}

    def per_trajectory_us(self) -> dict[str, float]:
        """Return the lower decile of the rounds, but for the first ones, in microseconds a trajectory."""
        rounds = self._rounds[_WARM_ROUNDS:] or self._rounds
        place = len(rounds) // 10
        return {
            name: sorted(spent[name] for spent in rounds)[place] / 1e3 / NUM_TRAJECTORIES
            for name in rounds[0]
        }


class TimedEnvironment:
    """An LMDB environment that notes how long its writer lock is held.

    Args:
        env: The environment.
        meter: Where to note it, as `locked`.
    """

    def __init__(self, env: Any, meter: Meter) -> None:
        self._env, self._meter = env, meter

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    @contextmanager
    def _writing(self) -> Iterator[Any]:
        began_ns = time.process_time_ns()
        with self._env.begin(write=True) as txn:
            yield txn
        self._meter.note("locked", time.process_time_ns() - began_ns)

    def begin(self, *, write: bool = False) -> Any:
        """Begin a transaction."""
        return self._writing() if write else self._env.begin()


def store_round(store: Store, meter: Meter, number: int) -> None:
    """Let one round of trajectories go through a store; encoding is measured once more by itself."""
    first = NUM_GROUPS * number
    specs = make_specs(first, first + NUM_GROUPS, PAYLOAD_BYTES)
    meter.run("dispatch", lambda: store.dispatch(specs, incarnation=0))
    branch = make_branch(PAYLOAD_BYTES)
    while slots := meter.run("claim", lambda: _claim(store)):
        for at in range(0, len(slots), PUT_AT_ONCE):
            wanted = slots[at : at + PUT_AT_ONCE]
            batch = meter.run("make", partial(_make, branch, wanted))
            meter.run("encode", partial(_encode, batch))
            for outcome in meter.run("put", partial(store.put_many, batch)):
                receipt_of(outcome)
    choose = oldest_settled(NUM_GROUPS, drains=True)
    meter.run("drain", lambda: store.take(incarnation=0, choose=choose, timeout_s=0.0))


def _make(branch: Sequence, slots: Iterable[Slot]) -> Batch:
    return [(make_trajectory(branch, slot), slot) for slot in slots]


def _encode(batch: Batch) -> list[bytes]:
    return [encode(trajectory) for trajectory, _ in batch]


def _claim(store: Store) -> Any:
    return store.claim(CLAIMED_AT_ONCE, ttl_s=_LEASE_S, actor="floor", version=ORIGIN)


def bare_round(env: Any, payload: bytes, meter: Meter, number: int) -> None:
    """Put and remove as many records of the same size with LMDB alone."""

    def put(first: int) -> None:
        with env.begin(write=True) as txn:
            for serial in range(first, first + PUT_AT_ONCE):
                txn.put(b"%016d" % serial, payload)

    def remove() -> None:
        with env.begin() as txn, txn.cursor() as cursor:
            cursor.first()
            keys = list(islice(cursor.iternext(values=False), NUM_TRAJECTORIES))
        with env.begin(write=True) as txn:
            for key in keys:
                txn.delete(key)

    first = NUM_TRAJECTORIES * number
    for at in range(first, first + NUM_TRAJECTORIES, PUT_AT_ONCE):
        meter.run("bare_put", partial(put, at))
    meter.run("bare_remove", remove)


def measure(directory: Path, rounds: int) -> dict[str, Any]:
    """Return microseconds a trajectory of each part, and the bounds that follow.

    Args:
        directory: Where files are made; on the disk that is asked about.
        rounds: How often 128 trajectories go through.
    """
    meter = Meter()
    with tempfile.TemporaryDirectory(prefix=".store-floor-", dir=directory) as scratch:
        settings = StoreSettings(
            path=Path(scratch) / "store",
            durability="os",
            capacity_bytes=_ROOMY_BYTES,
            retained_capacity_bytes=_ROOMY_BYTES,
        )
        store: Any = open_store(settings, "floor")
        env = lmdb.open(str(Path(scratch) / "bare"), map_size=1 << 32, sync=False)
        try:
            store.rewind(0)
            engine = store._transactions.engine
            engine._env = TimedEnvironment(engine._env, meter)
            payload = os.urandom(PAYLOAD_BYTES)
            for number in range(rounds):
                store_round(store, meter, number)
                bare_round(env, payload, meter, number)
                meter.end_round()
        finally:
            env.close()
            store.close()
    return conclude(meter.per_trajectory_us())


def conclude(parts_us: dict[str, float]) -> dict[str, Any]:
    """Return the parts with what they add up to.

    Args:
        parts_us: Microseconds a trajectory, by part; `put` contains `encode`, and `locked` lies across them.

    Example:
        >>> parts = {"dispatch": 2, "claim": 4, "make": 4, "encode": 6, "put": 24, "drain": 3, "locked": 25}
        >>> found = conclude(parts | {"bare_put": 9, "bare_remove": 1})
        >>> found["bare_us"], found["store_us"], found["floor_us"], found["lock_bound"]
        (10, 37, 20, 0.4)
    """
    bare_us = parts_us["bare_put"] + parts_us["bare_remove"]
    return {
        "parts_us": {name: round(value, 2) for name, value in parts_us.items()},
        "bare_us": round(bare_us, 2),
        "store_us": round(sum(parts_us[name] for name in VERBS), 2),
        "floor_us": round(bare_us + parts_us["make"] + parts_us["encode"], 2),
        "lock_bound": round(bare_us / parts_us["locked"], 2),
    }


def run(measure: Callable[[Path, int], dict[str, Any]], description: str | None, rounds: int) -> None:
    """Measure as the command line says, and print what was found.

    Args:
        measure: Takes the directory for files and the number of rounds.
        description: Of the command.
        rounds: Unless another number is given.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object on one line")
    parser.add_argument("--rounds", type=int, default=rounds, help="of 128 trajectories each")
    parser.add_argument("--directory", type=Path, default=Path(), help="on the disk to be measured")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error(f"--rounds must be 1 or more (got {options.rounds})")
    if not options.directory.is_dir():
        parser.error(f"--directory must be one that is there (got {options.directory})")
    print(json.dumps(measure(options.directory, options.rounds), indent=None if options.json else 2))


if __name__ == "__main__":
    run(measure, __doc__, rounds=100)
