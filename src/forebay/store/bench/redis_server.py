"""A Redis or Valkey server of the benchmark's own: on a free loopback port, with files in its directory."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from forebay.errors import ConfigError, PeerFailedError
from forebay.store.bench.limits import repeat
from forebay.store.bench.processes import Gate, Sample, work

_START_TIMEOUT_S = 30.0
_KEYS = 64


class Server(NamedTuple):
    """A server that runs.

    Args:
        port: Where it listens on 127.0.0.1.
        pid: Its process.
    """

    port: int
    pid: int

    @property
    def url(self) -> str:
        """Its address, as `store.url` takes it."""
        return f"redis://127.0.0.1:{self.port}/0"

    def cpu_s(self) -> float:
        """Return the CPU time that it has used."""
        words = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def missing() -> str:
    """Return what is missing for the rows of Redis; "" if nothing is."""
    if _program() is None:
        return "no redis-server or valkey-server on PATH"
    try:
        import redis  # noqa: F401
    except ImportError:
        return "the Python package redis is not installed: pip install 'forebay[redis]'"
    return ""


@contextlib.contextmanager
def running(directory: Path, appendfsync: str) -> Iterator[Server]:
    """Start a server, and stop it at the end.

    Args:
        directory: Where it keeps its files.
        appendfsync: When it makes them durable: always or everysec.

    Raises:
        ConfigError: There is no server on PATH.
        PeerFailedError: It does not start.
    """
    program = _program()
    if program is None:
        raise ConfigError(missing(), remedy="Install one, or choose other engines.")
    directory.mkdir(parents=True, exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = {
        "--port": port,
        "--bind": "127.0.0.1",
        "--dir": directory,
        "--save": "",
        "--appendonly": "yes",
        "--appendfsync": appendfsync,
        "--auto-aof-rewrite-percentage": 0,
    }
    command = [program, *(str(word) for option in options.items() for word in option)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_for(port, process)
        yield Server(port, process.pid)
    finally:
        process.kill()
        process.wait()


def _program() -> str | None:
    return shutil.which("redis-server") or shutil.which("valkey-server")


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline_s = time.monotonic() + _START_TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline_s:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0) as link:
            link.sendall(b"PING\r\n")
            if link.recv(16).startswith(b"+PONG"):
                return
        time.sleep(0.02)
    raise PeerFailedError("the benchmark's redis-server does not start", limit=f"{_START_TIMEOUT_S:.0f} s")


class BareRedisJob(msgspec.Struct, frozen=True, kw_only=True):
    """What a writer of the bare baseline is given.

    Args:
        url: The server.
        payload_bytes: Size of a record.
        batch: Records of one pipeline.
        number: Which writer it is.
    """

    url: str
    payload_bytes: int
    batch: int
    number: int


def set_pipelined(job: BareRedisJob, gate: Gate) -> Sample:
    """Set keys, a batch in one pipeline; the same keys again and again, so that memory stays bounded."""
    import redis

    client: Any = redis.Redis.from_url(job.url)
    payload = os.urandom(job.payload_bytes)
    serial = 0

    def put() -> bool:
        nonlocal serial
        pipeline = client.pipeline(transaction=False)
        for _ in range(job.batch):
            serial += 1
            pipeline.set(f"{job.number}:{serial % _KEYS}", payload)
        pipeline.execute()
        return True

    try:
        return work(gate.pass_through(), [lambda window: repeat(window, job.batch, put)])
    finally:
        client.close()
