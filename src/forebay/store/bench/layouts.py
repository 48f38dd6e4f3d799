"""The layouts that are measured, each N writers and at most one reader: engines, and the machine's limits."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from forebay.store.bench import limits, mailbox, redis_server, workload
from forebay.store.bench.figures import Figures, summarize
from forebay.store.bench.processes import SPAWN, Role, Sample, run_processes, sleep_until

STORES: Final = ("lmdb_fsync", "lmdb_os", "redis_always", "redis_everysec")
ENGINES: Final = (*STORES, "mp_queue")
LIMITS: Final = (
    *("raw_memcpy", "raw_append", "raw_append_fdatasync", "bare_lmdb_os", "bare_lmdb_fsync"),
    *("bare_redis_everysec", "bare_redis_always"),
)
_BATCH_BYTES: Final = 16 << 20
_MAX_BATCH_GROUPS: Final = 16
_CAPACITY_BYTES: Final = 1 << 40
Tasks = list[tuple[Role, Any]]


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """How one row is measured.

    Args:
        directory: Where its files are made; on the disk that the store will lie on.
        payload_bytes: Size of a trajectory.
        writers: Writer processes.
        in_flight: Puts that each makes at once; a bare baseline makes as many durable at once.
        warm_s: Seconds of work before the window.
        window_s: Seconds that count.
    """

    directory: Path
    payload_bytes: int
    writers: int
    in_flight: int
    warm_s: float
    window_s: float

    @property
    def batch_groups(self) -> int:
        """Groups that the reader takes at once."""
        fitting = _BATCH_BYTES // (workload.GROUP_SIZE * self.payload_bytes)
        return max(1, min(_MAX_BATCH_GROUPS, fitting))


def measure(name: str, layout: Layout, puts_per_s: float = 0.0, *, drains: bool = False) -> Figures:
    """Measure one row.

    Args:
        name: One of `ENGINES` or `LIMITS`.
        layout: How.
        puts_per_s: Rate of all writers together; 0 for as fast as possible.
        drains: Whether the reader of a store only removes what arrives.

    Raises:
        StoreError: A process failed, or does not answer.
    """
    with _scratch(layout.directory) as directory:
        if "redis" in name:
            with redis_server.running(directory / "redis", name.rpartition("_")[2]) as server:
                tasks = _redis_tasks(name, layout, server.url, puts_per_s, drains)
                return _run(tasks, layout, has_reader=name in ENGINES, cpu_s=server.cpu_s)
        if name in STORES:
            settings = {"engine": "lmdb", "path": str(directory / "store"), "durability": name[5:]}
            tasks = _store_tasks(layout, settings, puts_per_s, drains)
        elif name == "mp_queue":
            tasks = _queue_tasks(layout, puts_per_s)
        else:
            tasks = _limit_tasks(name, layout, directory)
        has_reader = name in ENGINES or name.startswith("bare_lmdb")
        return _run(tasks, layout, has_reader=has_reader)


def _run(
    tasks: Tasks, layout: Layout, *, has_reader: bool, cpu_s: Callable[[], float] | None = None
) -> Figures:
    spent: list[float] = []

    def watch(start_s: float, end_s: float) -> None:
        for moment_s in (start_s, end_s):
            sleep_until(moment_s)
            spent.append(cpu_s() if cpu_s is not None else 0.0)

    threads: list[threading.Thread] = []

    def on_start(start_s: float, end_s: float) -> None:
        threads.append(threading.Thread(target=watch, args=(start_s, end_s)))
        threads[0].start()

    samples = run_processes(tasks, layout.warm_s, layout.window_s, on_start)
    threads[0].join()
    writers, readers = samples[: layout.writers], samples[layout.writers :]
    return summarize(writers, readers if has_reader else (), layout.window_s, spent[1] - spent[0])


def sample_store(
    layout: Layout, settings: dict[str, Any], run_id: str, puts_per_s: float = 0.0
) -> list[Sample]:
    """Let processes write to a store as actors do, and one read it; return what each writer did.

    Args:
        layout: How; its directory is not looked at.
        settings: The store's settings, as JSON types; it is made if it is not there, and stays.
        run_id: The run whose store it is.
        puts_per_s: Rate of all writers together; 0 for as fast as possible.

    Raises:
        StoreError: A process failed, or does not answer.
    """
    tasks = _store_tasks(layout, settings, puts_per_s, drains=False, run_id=run_id)
    return run_processes(tasks, layout.warm_s, layout.window_s)[: layout.writers]


def _store_tasks(
    layout: Layout, settings: dict[str, Any], puts_per_s: float, drains: bool, run_id: str = workload.RUN_ID
) -> Tasks:
    roomy = {"capacity_bytes": _CAPACITY_BYTES, "retained_capacity_bytes": _CAPACITY_BYTES}
    job = workload.Job(
        settings=settings | roomy,
        payload_bytes=layout.payload_bytes,
        in_flight=layout.in_flight,
        batch_groups=layout.batch_groups,
        puts_per_s=puts_per_s / layout.writers,
        drains=drains,
        writers=layout.writers,
        run_id=run_id,
    )
    return [*_writers(workload.write, job, layout.writers), (workload.read, job)]


def _redis_tasks(name: str, layout: Layout, url: str, puts_per_s: float, drains: bool) -> Tasks:
    if name in STORES:
        durability = "fsync" if name == "redis_always" else "os"
        settings = {"engine": "redis", "url": url, "durability": durability}
        return _store_tasks(layout, settings, puts_per_s, drains)
    job = redis_server.BareRedisJob(
        url=url, payload_bytes=layout.payload_bytes, batch=layout.in_flight, number=0
    )
    return _writers(redis_server.set_pipelined, job, layout.writers)


def _queue_tasks(layout: Layout, puts_per_s: float) -> Tasks:
    queue: Any = SPAWN.Queue(4 * layout.batch_groups * workload.GROUP_SIZE)
    job = mailbox.MailJob(
        queue=queue,
        payload_bytes=layout.payload_bytes,
        in_flight=layout.in_flight,
        puts_per_s=puts_per_s / layout.writers,
    )
    return [*([(mailbox.post, job)] * layout.writers), (mailbox.collect, job)]


def _limit_tasks(name: str, layout: Layout, directory: Path) -> Tasks:
    taken = layout.batch_groups * workload.GROUP_SIZE
    job = limits.BareJob(
        directory=str(directory),
        payload_bytes=layout.payload_bytes,
        batch=layout.in_flight,
        take=taken,
        most=4 * taken,
        sync=name.endswith("sync"),
    )
    if name.startswith("bare_lmdb"):
        return [*_writers(limits.put_lmdb, job, layout.writers), (limits.take_lmdb, job)]
    role = limits.copy_memory if name == "raw_memcpy" else limits.append
    return _writers(role, job, layout.writers)


def _writers(role: Role, job: Any, count: int) -> Tasks:
    return [(role, msgspec.structs.replace(job, number=number)) for number in range(count)]


@contextmanager
def _scratch(directory: Path) -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix=".store-bench-", dir=directory))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def names_for(engines: Sequence[str]) -> tuple[str, ...]:
    """Return the rows that belong to engines: themselves, and the limits that they are compared with."""
    kinds = {engine.partition("_")[0] for engine in engines}
    wanted = [name for name in LIMITS if name.startswith("raw") or name.split("_")[1] in kinds]
    return (*wanted, *engines)
