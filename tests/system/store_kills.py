"""Kills the processes that work on a store, hundreds of times, and accounts for every trajectory.

`python tests/system/store_kills.py --engine lmdb-fsync --kills 200 --seed 1` prints one JSON object: the
seed, the kills by role and point, the totals, and what is wrong. The plan of the kills follows from the seed,
and a point is reached by counting. How the processes interleave is the operating system's, so a failure may
take several runs of its seed to come back.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, get_args

sys.path.insert(0, str(Path(__file__).parents[2]))

from forebay.store import StoreSettings, open_store
from tests.system.store_accounts import account_for
from tests.system.store_fates import Fate, Role, plan_fates
from tests.system.store_workers import CLOCK, DRAIN, FENCED, live, read_log
from tests.unit.store.builders import RUN

# Forked from a server that has imported everything: a life costs milliseconds, not a second of imports.
_CONTEXT = multiprocessing.get_context("forkserver")
ROLES: tuple[Role, ...] = get_args(Role)
CAST: tuple[Role, ...] = ("learner", "putter", "putter", "putter", "settler")
_PATIENCE_S = 3.0
_MIN_STEPS = 12  # otherwise a slow machine would prove nothing
_HANG_S = 120.0
_POLL_S = 0.02

Options = dict[str, Any]
Serve = Callable[[Path], AbstractContextManager["Service"]]


class Service:
    """Where a store lives: what opens it, and how its server dies, if it has one.

    Args:
        options: Settings of the store.
        kill: Kills the server with SIGKILL and starts it again; None without a server.
    """

    def __init__(self, options: Options, kill: Callable[[], object] | None = None) -> None:
        self.options, self.kill = options, kill


@contextmanager
def _lmdb(directory: Path, durability: str) -> Iterator[Service]:
    yield Service({"path": directory / "store", "durability": durability, "side_file_bytes": 20_000})


@contextmanager
def _redis(directory: Path) -> Iterator[Service]:
    # Imported late: it imports pytest, and every life would, since it runs the main module again.
    from tests.redis_server import ALWAYS, RedisServer

    with RedisServer(directory / "redis", *ALWAYS) as server:
        yield Service({"engine": "redis", "url": server.url}, server.restart)


ENGINES: dict[str, Serve] = {
    "lmdb-fsync": lambda directory: _lmdb(directory, "fsync"),
    "lmdb-os": lambda directory: _lmdb(directory, "os"),
    "redis-always": _redis,
}


def service_modules(engine: str) -> list[str]:
    """Return what the processes of an engine import beside the store."""
    return ["redis", "forebay.store.redis"] if engine.startswith("redis") else []


def missing_program(engine: str) -> str | None:
    """Return why an engine cannot be tried here, or None if it can."""
    from tests.redis_server import BINARY

    found = BINARY is not None or not engine.startswith("redis")
    return None if found else "no redis-server on PATH"


@dataclass
class Life:
    """One process from its start to its end."""

    role: Role
    fate: Fate
    process: BaseProcess
    opened: Connection
    dies_at_s: float
    killed: bool = False
    fenced_by_s: float | None = None


@dataclass
class Kills:
    """A cast of processes on one store, each killed and replaced again and again.

    Args:
        directory: Of the store, the logs and the checkpoints.
        service: Where the store lives.
        seed: Decides who dies where.
        cast: The roles, one process each.
    """

    directory: Path
    service: Service
    seed: int
    cast: tuple[Role, ...] = CAST
    killed: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._fates = {role: plan_fates(role, self.seed) for role in ROLES}
        self._rng = random.Random(self.seed)
        self._lives: list[Life] = []
        self._num_lives = 0

    def run(self, num_kills: int) -> None:
        """Kill `num_kills` processes, more if too little was trained, then let others finish what is left."""
        deadline_s = time.monotonic() + _HANG_S + num_kills
        everybody_at, server_at = self._next_shock(0), self._next_shock(0)
        self._start_everybody()
        while self.killed.total() < num_kills or self._num_trained() < _MIN_STEPS:
            if time.monotonic() > deadline_s:
                self.wrong.append(f"only {self.killed.total()} of {num_kills} kills in time")
                break
            self._tend()
            if self.killed.total() >= everybody_at:
                everybody_at = self._next_shock(everybody_at)
                self._kill_everybody()
                self._compact()
                self._start_everybody()
            if self.service.kill and self.killed.total() >= server_at:
                server_at = self._next_shock(server_at)
                self.service.kill()
                self.killed["server any time"] += 1
        self._kill_everybody()
        self._drain()

    def _num_trained(self) -> int:
        return sum(line["kind"] == "trained" for line in read_log(self.directory / "learner.log"))

    def _next_shock(self, after: int) -> int:
        return after + self._rng.randint(8, 16)

    def _start_everybody(self) -> None:
        for role in self.cast:
            self._start(role, next(self._fates[role]))

    def _compact(self) -> None:
        """Compact an embedded store while nobody uses it; that process dies as others do."""
        if "path" in self.service.options:
            self._start("compactor", next(self._fates["compactor"]))
            while self._lives:
                self._tend(replace=False)

    def _start(self, role: Role, fate: Fate) -> None:
        self._num_lives += 1
        seed = f"{self.seed}/{self._num_lives}"
        opened, opener = multiprocessing.Pipe(duplex=False)
        process = _CONTEXT.Process(
            target=live, args=(role, self.directory, self.service.options, fate, seed, opener), daemon=True
        )
        process.start()
        opener.close()
        lifetime_s = fate.delay_s if fate.opening else _HANG_S
        self._lives.append(Life(role, fate, process, opened, time.monotonic() + lifetime_s))

    def _tend(self, *, replace: bool = True) -> None:
        """Kill who is due, bury who is dead, and start the next life of each."""
        wait([life.process.sentinel for life in self._lives], timeout=_POLL_S)
        now_s = time.monotonic()
        for life in tuple(self._lives):
            if not life.fate.opening and _has_opened(life):
                life.dies_at_s = now_s + (_PATIENCE_S if life.fate.verb else life.fate.delay_s)
            if life.process.exitcode is not None:
                self._bury(life, replace=replace)
            elif life.fenced_by_s is not None:
                if now_s > life.fenced_by_s:
                    self.wrong.append("a learner was not fenced by its successor")
                    self._kill(life)
            elif now_s > life.dies_at_s and life.fate.usurped:
                life.fenced_by_s = now_s + _HANG_S
                self._start(life.role, next(self._fates[life.role]))
            elif now_s > life.dies_at_s:
                self._kill(life)

    def _kill(self, life: Life) -> None:
        life.killed = True
        life.process.kill()
        life.process.join()

    def _bury(self, life: Life, *, replace: bool = True) -> None:
        self._lives.remove(life)
        code = life.process.exitcode
        where = life.fate.name if not life.killed or not life.fate.verb else "any time"
        if code == -signal.SIGKILL:
            self.killed[f"{life.role} {where}"] += 1
        elif code != FENCED and (code, life.role) != (0, "compactor"):
            self.wrong.append(f"a {life.role} ended with {code} (seed {self.seed})")
        life.process.close()
        life.opened.close()
        if replace and life.fenced_by_s is None:
            self._start(life.role, next(self._fates[life.role]))

    def _kill_everybody(self) -> None:
        for life in self._lives:
            life.killed = True
            life.process.kill()
        for life in tuple(self._lives):
            life.process.join()
            self._bury(life, replace=False)

    def _drain(self) -> None:
        """Let a learner and a putter finish everything that was dispatched."""
        (self.directory / DRAIN).touch()
        for role in ("learner", "putter"):
            self._start(role, Fate())
        for life in self._lives:
            life.process.join(_HANG_S)
            if life.process.exitcode != 0:
                self.wrong.append(f"the last {life.role} ended with {life.process.exitcode}")
                life.process.kill()


def _has_opened(life: Life) -> bool:
    """Return whether a process has opened the store since it was last asked."""
    try:
        return life.opened.poll() and bool(life.opened.recv_bytes())
    except (EOFError, OSError):
        return False


def run_kills(engine: str, num_kills: int, seed: int, directory: Path) -> dict[str, Any]:
    """Kill the processes of a store, and account for everything.

    Args:
        engine: One of `ENGINES`.
        num_kills: How many processes die.
        seed: Decides where and when.
        directory: Empty; logs and store are left there.

    Returns:
        What happened; `wrong` is empty if everything is right.
    """
    began_s = time.monotonic()
    _CONTEXT.set_forkserver_preload(["tests.system.store_workers", *service_modules(engine)])
    with ExitStack() as stack:
        service = stack.enter_context(ENGINES[engine](directory))
        kills = Kills(directory, service, seed)
        kills.run(num_kills)
        store = open_store(StoreSettings(**service.options), RUN, CLOCK)
        stack.callback(store.close)
        totals, wrong = account_for(store, directory)
    return {
        "engine": engine,
        "seed": seed,
        "kills": kills.killed.total(),
        **totals,
        "killed": dict(sorted(kills.killed.items())),
        "wall_s": round(time.monotonic() - began_s, 1),
        "wrong": kills.wrong + wrong,
    }


def main() -> int:
    """Kill, print the outcome, and remove the run if it is right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=[*ENGINES, "all"], default="all", help="which store")
    parser.add_argument("--kills", type=int, default=200, help="processes killed, on each engine")
    parser.add_argument("--seed", type=int, default=None, help="decides the kills; the clock's by default")
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else time.time_ns() % 2**31
    print(f"seed {seed}", file=sys.stderr, flush=True)
    failed = False
    for engine in ENGINES if arguments.engine == "all" else [arguments.engine]:
        if missing := missing_program(engine):
            print(f"{engine} left out: {missing}", file=sys.stderr)
            continue
        directory = Path(tempfile.mkdtemp(prefix="forebay-store-kills-"))
        outcome = run_kills(engine, arguments.kills, seed, directory)
        print(json.dumps(outcome, indent=1), flush=True)
        if outcome["wrong"]:
            failed = True
            again = f"--engine {engine} --kills {arguments.kills} --seed {seed}"
            print(f"the run is in {directory}; again: {again}", file=sys.stderr)
        else:
            shutil.rmtree(directory)
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
