"""What the machine can do at all: the same bytes, batches and processes, with nothing of ours in between."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import lmdb
import msgspec

from forebay.store.bench.processes import Gate, Pace, Sample, Window, work

_IDLE_S = 0.001
_ROUND_BYTES = 256 << 20
_MAP_BYTES = 32 << 30
_MAX_READERS = 512


class BareJob(msgspec.Struct, frozen=True, kw_only=True):
    """What one process of a bare layout is given.

    Args:
        directory: Where its files lie.
        payload_bytes: Size of a record.
        batch: Records that a writer makes durable at once.
        take: Records that the reader removes at once.
        sync: Whether a write must survive power loss.
        number: Which writer it is.
        most: Records that may wait for the reader.
    """

    directory: str
    payload_bytes: int
    batch: int
    take: int = 1
    sync: bool = False
    number: int = 0
    most: int = 1024

    @property
    def payload(self) -> bytes:
        """A record."""
        return os.urandom(self.payload_bytes)


def repeat(window: Window, records: int, call: Callable[[], bool]) -> list[float]:
    """Call until the window ends; each call that did something is worth `records` equal latencies."""
    latencies: list[float] = []
    pace = Pace(0.0, 0.0)
    while (began_s := pace.wait()) < window.end_s:
        if not call():
            time.sleep(_IDLE_S)
            continue
        ended_s = time.monotonic()
        if window.holds(ended_s):
            latencies += [ended_s - began_s] * records
    return latencies


def put_lmdb(job: BareJob, gate: Gate) -> Sample:
    """Put batches under growing keys, each batch one transaction; pause while the reader is behind."""
    env, payload = _open(job), job.payload
    serial = 0

    def put() -> bool:
        nonlocal serial
        with env.begin(write=True) as txn:
            if txn.stat()["entries"] >= job.most:
                return False
            for _ in range(job.batch):
                serial += 1
                txn.put(b"%016d/%d" % (serial, job.number), payload)
        return True

    try:
        return work(gate.pass_through(), [lambda window: repeat(window, job.batch, put)])
    finally:
        env.close()


def take_lmdb(job: BareJob, gate: Gate) -> Sample:
    """Remove the oldest records, many in one transaction."""
    env = _open(job)

    def take() -> bool:
        with env.begin() as txn, txn.cursor() as cursor:
            if txn.stat()["entries"] < job.take:
                return False
            cursor.first()
            keys = list(islice(cursor.iternext(values=False), job.take))
        with env.begin(write=True) as txn:
            for key in keys:
                txn.delete(key)
        return True

    try:
        return work(gate.pass_through(), [lambda window: repeat(window, job.take, take)])
    finally:
        env.close()


def _open(job: BareJob) -> Any:
    Path(job.directory).mkdir(exist_ok=True)
    return lmdb.open(
        job.directory, map_size=_MAP_BYTES, sync=job.sync, metasync=job.sync, max_readers=_MAX_READERS
    )


def append(job: BareJob, gate: Gate) -> Sample:
    """Append batches to a file of this process; with `sync`, each batch is made durable."""
    descriptor = os.open(Path(job.directory) / f"append{job.number}", os.O_WRONLY | os.O_CREAT)
    payloads = [job.payload] * job.batch
    written = 0

    def put() -> bool:
        nonlocal written
        if written > _ROUND_BYTES:
            os.ftruncate(descriptor, 0)
            written = os.lseek(descriptor, 0, os.SEEK_SET)
        written += os.writev(descriptor, payloads)
        if job.sync:
            os.fdatasync(descriptor)
        return True

    try:
        return work(gate.pass_through(), [lambda window: repeat(window, job.batch, put)])
    finally:
        os.close(descriptor)


def copy_memory(job: BareJob, gate: Gate) -> Sample:
    """Copy records within memory."""
    payload = job.payload
    target = memoryview(bytearray(job.payload_bytes * job.batch))

    def put() -> bool:
        for at in range(0, len(target), job.payload_bytes):
            target[at : at + job.payload_bytes] = payload
        return True

    return work(gate.pass_through(), [lambda window: repeat(window, job.batch, put)])
