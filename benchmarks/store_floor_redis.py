"""Where the processor time of a trajectory in a redis store goes: the server's, by verb, and the client's.

    .venv/bin/python benchmarks/store_floor_redis.py --json [--rounds 30] [--directory .]

One client and a server of the benchmark's own (`appendfsync everysec`). Each round dispatches 16 groups of 8,
claims their members, puts 52 KiB for each, eight at a time, and drains them; then sets as many keys of the
same size, eight in a pipeline, as a bare client does. CPU time of the server and of the client, and the time
that the server spends in scripts, as it counts them itself; the lower decile of the rounds, per trajectory.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.store_floor import (
    CLAIMED_AT_ONCE,
    NUM_GROUPS,
    NUM_TRAJECTORIES,
    PAYLOAD_BYTES,
    PUT_AT_ONCE,
    run,
)
from forebay.store import Slot, Store, StoreSettings, open_store
from forebay.store.bench import redis_server
from forebay.store.bench.workload import ORIGIN, make_branch, make_specs, make_trajectory, oldest_settled
from forebay.store.putting import receipt_of

_LEASE_S: Final = 600.0
_ROOMY_BYTES: Final = 1 << 40
_KEYS: Final = 64


class ServerMeter:
    """What the phases of a round cost the server and the client.

    Args:
        client: A connection of its own to the server.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._spent: dict[str, list[tuple[float, float, float]]] = {}

    def run(self, name: str, call: Callable[[], Any]) -> None:
        """Make a call; note what it took."""
        server_us, scripts_us = self._look()
        began_ns = time.process_time_ns()
        call()
        client_us = (time.process_time_ns() - began_ns) / 1e3
        now_us, now_scripts_us = self._look()
        spent = (now_us - server_us, now_scripts_us - scripts_us, client_us)
        self._spent.setdefault(name, []).append(spent)

    def _look(self) -> tuple[float, float]:
        cpu, commands = self._client.info("cpu"), self._client.info("commandstats")
        scripts_us = float(commands.get("cmdstat_evalsha", {}).get("usec", 0))
        return 1e6 * (cpu["used_cpu_user"] + cpu["used_cpu_sys"]), scripts_us

    def per_trajectory_us(self) -> dict[str, dict[str, float]]:
        """Return microseconds a trajectory, by phase: of the server, its scripts, the client."""
        return {
            name: {
                kind: round(sorted(values)[len(values) // 10] / NUM_TRAJECTORIES, 2)
                for kind, values in zip(
                    ("server", "scripts", "client"), zip(*spent, strict=True), strict=True
                )
            }
            for name, spent in self._spent.items()
        }


def store_round(store: Store, meter: ServerMeter, number: int) -> None:
    """Let one round of trajectories go through a store."""
    first = NUM_GROUPS * number
    specs = make_specs(first, first + NUM_GROUPS, PAYLOAD_BYTES)
    branch, slots = make_branch(PAYLOAD_BYTES), list[Slot]()

    def claim() -> None:
        while more := store.claim(CLAIMED_AT_ONCE, ttl_s=_LEASE_S, actor="floor", version=ORIGIN):
            slots.extend(more)

    def put() -> None:
        for at in range(0, len(slots), PUT_AT_ONCE):
            wanted = slots[at : at + PUT_AT_ONCE]
            for outcome in store.put_many([(make_trajectory(branch, slot), slot) for slot in wanted]):
                receipt_of(outcome)

    choose = oldest_settled(NUM_GROUPS, drains=True)
    meter.run("dispatch", lambda: store.dispatch(specs, incarnation=0))
    meter.run("claim", claim)
    meter.run("put", put)
    meter.run("drain", lambda: store.take(incarnation=0, choose=choose, timeout_s=0.0))


def bare_round(client: Any, payload: bytes) -> None:
    """Set as many keys as a round puts trajectories."""
    for first in range(0, NUM_TRAJECTORIES, PUT_AT_ONCE):
        pipeline = client.pipeline(transaction=False)
        for serial in range(first, first + PUT_AT_ONCE):
            pipeline.set(f"0:{serial % _KEYS}", payload)
        pipeline.execute()


def measure(directory: Path, rounds: int) -> dict[str, Any]:
    """Return microseconds a trajectory of each phase, and of the store beside the bare client.

    Args:
        directory: Where the server keeps its files.
        rounds: How often 128 trajectories go through.

    Raises:
        ConfigError: There is no server on PATH.
    """
    import redis

    with (
        tempfile.TemporaryDirectory(prefix=".store-floor-", dir=directory) as scratch,
        redis_server.running(Path(scratch), "everysec") as server,
        redis.Redis.from_url(server.url) as client,
        redis.Redis.from_url(server.url) as bare,
        contextlib.closing(_open(server.url)) as store,
    ):
        store.rewind(0)
        meter, payload = ServerMeter(client), os.urandom(PAYLOAD_BYTES)
        for number in range(rounds):
            store_round(store, meter, number)
            meter.run("bare", lambda: bare_round(bare, payload))
        return conclude(meter.per_trajectory_us())


def _open(url: str) -> Store:
    settings = StoreSettings(
        engine="redis",
        url=url,
        durability="os",
        capacity_bytes=_ROOMY_BYTES,
        retained_capacity_bytes=_ROOMY_BYTES,
    )
    return open_store(settings, "floor")


def conclude(phases: dict[str, dict[str, float]]) -> dict[str, Any]:
    """Return the phases with the sums that are compared.

    Args:
        phases: Microseconds a trajectory by phase: `server`, `scripts` (within it), `client`.

    Example:
        >>> each = {"server": 5.0, "scripts": 3.0, "client": 2.0}
        >>> verbs = dict.fromkeys(("dispatch", "claim", "put", "drain"), each)
        >>> found = conclude(verbs | {"bare": {"server": 9.0, "scripts": 0.0, "client": 5.0}})
        >>> found["store_us"], found["bare_us"], found["cpu_ratio"]
        (28.0, 14.0, 0.5)
    """
    verbs = [spent for name, spent in phases.items() if name != "bare"]
    store_us = sum(spent["server"] + spent["client"] for spent in verbs)
    bare_us = phases["bare"]["server"] + phases["bare"]["client"]
    return {
        "phases_us": phases,
        "store_us": round(store_us, 2),
        "bare_us": round(bare_us, 2),
        "cpu_ratio": round(bare_us / store_us, 2),
    }


if __name__ == "__main__":
    run(measure, __doc__, rounds=30)
