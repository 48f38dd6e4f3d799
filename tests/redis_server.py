"""A real Redis (or Valkey) server for tests: on a free loopback port, in a directory of its own.

`FOREBAY_REDIS_SERVER` names its binary; without it, it is `redis-server` or `valkey-server` on PATH.

with RedisServer(tmp_path, "appendonly yes", "appendfsync always") as server:
    redis.Redis.from_url(server.url).ping()
    server.restart()  # kill -9, then again on the same port with the same files
"""

from __future__ import annotations

import atexit
import functools
import importlib.util
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import NamedTuple, Self

import pytest

from forebay.cli.roles import free_port

_NAMED = os.environ.get("FOREBAY_REDIS_SERVER")
BINARY = shutil.which(_NAMED) if _NAMED else shutil.which("redis-server") or shutil.which("valkey-server")
if _NAMED and BINARY is None:
    raise RuntimeError(f"FOREBAY_REDIS_SERVER={_NAMED} is not a program")
OPENSSL = shutil.which("openssl")
ALWAYS = ("appendonly yes", "appendfsync always")
EVERYSEC = ("appendonly yes", "appendfsync everysec")
_START_TIMEOUT_S = 60.0

needs_redis = pytest.mark.skipif(
    BINARY is None or importlib.util.find_spec("redis") is None,
    reason="no redis-server on PATH (apt-get install redis-server), or no client (pip install redis)",
)


@functools.cache
def server_version() -> tuple[str, tuple[int, ...]]:
    """Return name and version of the server that the tests start; `("", ())` if there is none."""
    if BINARY is None:
        return "", ()
    said = subprocess.run([BINARY, "--version"], capture_output=True, text=True, check=True).stdout
    name, numbers = re.findall(r"(\w+) server v=([\d.]+)", said)[0]
    return name.lower(), tuple(map(int, numbers.split(".")))


def has_waitaof() -> bool:
    """Return whether the server has WAITAOF: Redis from 7.2 on, and every Valkey."""
    name, version = server_version()
    return name == "valkey" or version >= (7, 2)


needs_openssl = pytest.mark.skipif(OPENSSL is None, reason="no openssl on PATH")


class Certificates(NamedTuple):
    """Files of a TLS server and of those who talk to it.

    Attributes:
        authority: Certificate of the authority that signed the server's.
        certificate: The server's, or a client's.
        key: Its private key.
    """

    authority: Path
    certificate: Path
    key: Path


class RedisServer:
    """One server process; the port and the files stay the same when it is started again.

    Args:
        directory: Where it keeps its files; made if missing.
        options: Lines of its configuration, e.g. `"appendfsync always"`; later ones win.
        tls: Certificates; it then speaks TLS only.
        sentinel: Whether it is a sentinel, which keeps its state in its configuration.
    """

    def __init__(
        self, directory: Path, *options: str, tls: Certificates | None = None, sentinel: bool = False
    ) -> None:
        self.directory, self.options, self.tls, self.sentinel = directory, options, tls, sentinel
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)
        self._log = directory / "redis.log"
        self._log.touch()
        self._log_start = 0

    @property
    def url(self) -> str:
        """Its address, as `store.url` takes it."""
        return f"redis{'s' if self.tls else ''}://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        """The id of its process.

        Raises:
            RuntimeError: It does not run.
        """
        if self._process is None:
            raise RuntimeError("the server was not started")
        return self._process.pid

    @property
    def log(self) -> str:
        """What it has written to its log."""
        return self._log.read_text()

    def start(self, *options: str) -> Self:
        """Start it and wait until it has loaded its files and answers.

        Args:
            options: Configuration of this start only, after the others.

        Raises:
            RuntimeError: It ended at once, or did not answer in a minute.
        """
        if BINARY is None:
            raise RuntimeError("no redis-server on PATH")
        self._log_start = self._log.stat().st_size
        configuration = self.directory / "redis.conf"
        configuration.write_text("\n".join((*self._defaults(), *self.options, *options, "")))
        self._process = subprocess.Popen(
            [BINARY, str(configuration), *(("--sentinel",) if self.sentinel else ())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        atexit.register(self.kill)
        deadline_s = time.monotonic() + _START_TIMEOUT_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                self.kill()
                raise RuntimeError(f"redis-server did not start: {self.log[-2000:]}")
            time.sleep(0.02)
        return self

    def kill(self) -> None:
        """Kill it with SIGKILL and wait for its end; nothing if it does not run."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Ask it to save and end, and wait for that; nothing if it does not run."""
        self._end(signal.SIGTERM)

    def restart(self, *options: str) -> Self:
        """Kill it with SIGKILL and start it again on what its files hold."""
        self.kill()
        return self.start(*options)

    def suspend(self) -> None:
        """Stop it from answering, its connections open (SIGSTOP)."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on (SIGCONT)."""
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        """Kill it; its files stay."""
        self.kill()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _defaults(self) -> tuple[str, ...]:
        ports = (f"port {self.port}",)
        if self.tls:
            ports = (
                "port 0",
                f"tls-port {self.port}",
                f"tls-ca-cert-file {self.tls.authority}",
                f"tls-cert-file {self.tls.certificate}",
                f"tls-key-file {self.tls.key}",
                "tls-auth-clients optional",
            )
        return (
            "bind 127.0.0.1",
            *ports,
            "daemonize no",
            *(() if self.sentinel else ('save ""',)),
            f"dir {self.directory}",
            f"logfile {self._log}",
        )

    def _answers(self) -> bool:
        """Return whether it answers a ping with anything but that it is loading."""
        if self.tls is not None:
            return b"eady to accept connections" in self._log.read_bytes()[self._log_start :]
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1.0) as connection:
                connection.sendall(b"PING\r\n")
                answer = connection.recv(64)
        except OSError:
            return False
        return answer.startswith((b"+PONG", b"-NOAUTH"))

    def _signal(self, number: int) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def _end(self, number: int) -> None:
        if self._process is not None:
            self._signal(number)
            self._process.wait()
            self._process = None
            atexit.unregister(self.kill)


@functools.cache
def shared_server(*options: str) -> RedisServer:
    """Return a server that lives until the end of the process; for tests that need one, whatever it holds.

    Args:
        options: Lines of its configuration.
    """
    directory = tempfile.mkdtemp(prefix="forebay-redis-")
    server = RedisServer(Path(directory), *options).start()
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return server


def empty_server(*options: str) -> RedisServer:
    """Return the shared server with those options, holding nothing."""
    server = shared_server(*options)
    with socket.create_connection(("127.0.0.1", server.port), timeout=10.0) as connection:
        connection.sendall(b"FLUSHALL SYNC\r\n")
        answer = connection.recv(64)
    if not answer.startswith(b"+OK"):
        raise RuntimeError(f"the server could not be emptied: {answer!r}")
    return server


def make_certificates(directory: Path, *, host: str = "IP:127.0.0.1", days: int = 2) -> Certificates:
    """Make an authority and a certificate that it signed.

    Args:
        directory: Where the files go; made if missing.
        host: Whom the certificate is for, as a subject alternative name.
        days: How long it is valid; 0 for one that has expired when it is made.

    Raises:
        RuntimeError: There is no openssl.
    """
    if OPENSSL is None:
        raise RuntimeError("no openssl on PATH")
    directory.mkdir(parents=True, exist_ok=True)
    authority, authority_key = directory / "ca.pem", directory / "ca.key"
    certificate, key, request = directory / "server.pem", directory / "server.key", directory / "server.csr"
    extensions = directory / "extensions"
    # What Python verifies from 3.13 on, besides names and dates.
    extensions.write_text(f"subjectAltName={host}\nauthorityKeyIdentifier=keyid\nsubjectKeyIdentifier=hash\n")
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    name = ("-subj", "/CN=test authority")
    usage = ("-addext", "keyUsage=critical,keyCertSign,cRLSign")
    _openssl("req", "-x509", *curve, *name, *usage, "-days", "2", "-keyout", authority_key, "-out", authority)
    _openssl("req", *curve, "-subj", "/CN=test server", "-keyout", key, "-out", request)
    signer = ("-CA", authority, "-CAkey", authority_key, "-CAcreateserial")
    _openssl(
        "x509",
        "-req",
        "-in",
        request,
        *signer,
        "-days",
        str(days),
        "-extfile",
        extensions,
        "-out",
        certificate,
    )
    return Certificates(authority, certificate, key)


def _openssl(*arguments: str | Path) -> None:
    subprocess.run([str(OPENSSL), *map(str, arguments)], check=True, capture_output=True)
