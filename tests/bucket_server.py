"""A real server of buckets for tests: moto's, on a free loopback port, as a process of its own.

It speaks S3. What the client of Google Cloud Storage says for forebay differs from that in the credentials
only, so that both are tested against it; that service's emulators on PyPI speak its other protocol.

bucket = make_bucket("s3")
monkeypatch.setenv(...) for bucket.environment, then checkpoints go to bucket.url
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.util
import itertools
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from dataclasses import dataclass
from typing import Self

import pytest

from forebay.cli.roles import free_port

_START_TIMEOUT_S = 60.0
_numbers = itertools.count()

needs_buckets = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("moto", "flask", "obstore")),
    reason="no server of buckets (pip install 'moto[s3]' flask flask-cors), or no client (obstore)",
)


@dataclass(frozen=True)
class TestBucket:
    """An empty bucket.

    Args:
        url: As `learner.checkpoint_path` takes it.
        environment: Variables that a process needs to reach it.
    """

    __test__ = False

    url: str
    environment: dict[str, str]

    def use(self, monkeypatch: pytest.MonkeyPatch) -> Self:
        """Set the variables for this process and those that it starts."""
        for name, value in self.environment.items():
            monkeypatch.setenv(name, value)
        return self


def make_bucket(scheme: str = "s3", port: int | None = None) -> TestBucket:
    """Make a bucket of the shared server.

    Args:
        scheme: Of its URL.
        port: Where clients reach the server; a proxy's, or by default its own.
    """
    server_port = shared_server()
    name = f"bucket{os.getpid()}x{next(_numbers)}"  # the server takes no escaped hyphen
    make = urllib.request.Request(f"http://127.0.0.1:{server_port}/{name}", method="PUT")
    with urllib.request.urlopen(make, timeout=10.0):
        pass
    return TestBucket(f"{scheme}://{name}/runs", environment_of(scheme, port or server_port))


def environment_of(scheme: str, port: int) -> dict[str, str]:
    """Return the variables by which a client finds a server, and what it signs with."""
    endpoint = f"http://127.0.0.1:{port}"
    if scheme == "gs":
        return {"GOOGLE_BASE_URL": endpoint, "GOOGLE_BEARER_TOKEN": "test"}
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
    }


@functools.cache
def shared_server() -> int:
    """Return the port of a server that lives until the end of this process.

    Raises:
        RuntimeError: It ended at once, or did not answer in a minute.
    """
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def end() -> None:
        process.kill()
        process.wait()

    atexit.register(end)
    deadline_s = time.monotonic() + _START_TIMEOUT_S
    while not _answers(port):
        if process.poll() is not None or time.monotonic() > deadline_s:
            raise RuntimeError("the server of buckets did not start")
        time.sleep(0.05)
    return port


class Gate:
    """A TCP proxy on a port of its own that can be shut: then nobody can connect, and connections are cut.

    Args:
        port: The server's port on the loopback interface.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self.port = free_port()
        self._listener: socket.socket | None = None
        self._connections: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.shut()

    def open(self) -> None:
        """Let everybody through."""
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._start(self._accept, self._listener)

    def shut(self) -> None:
        """Cut every connection and refuse new ones; nothing if it is shut."""
        if self._listener is None:
            return
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._listener = None
        for connection in self._connections:
            _cut(connection)
        for thread in self._threads:
            thread.join()
        for connection in self._connections:
            connection.close()
        self._connections, self._threads = [], []

    def _start(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):  # the listener was closed
            while True:
                client, _ = listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                self._connections += (client, server)
                self._start(_forward, client, server)
                self._start(_forward, server, client)


def _forward(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the other direction was cut
        while data := source.recv(1 << 16):
            sink.sendall(data)
    _cut(source)
    _cut(sink)


def _cut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it is cut already
        connection.shutdown(socket.SHUT_RDWR)


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/moto-api/", timeout=1.0):
            return True
    except OSError:
        return False
