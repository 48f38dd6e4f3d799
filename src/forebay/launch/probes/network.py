"""Loopback and ports: where generator and actors meet."""

from __future__ import annotations

import os
import socket

from forebay.launch.probes.finding import Finding

_TIMEOUT_S = 2.0


def look_at_loopback() -> list[Finding]:
    """Bind a port that the system chooses, and connect to it."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname(), _TIMEOUT_S),
    ):
        return [Finding("loopback", "ok", "127.0.0.1 accepts connections on a free port")]


def look_at_port(host: str, port: int, *, needed: bool) -> list[Finding]:
    """Check that a generator can listen on its port.

    Args:
        host: Address to bind.
        port: Port to bind; 0 is always free.
        needed: Whether a run is configured to use it, rather than just by default.
    """
    if not port:
        return [Finding("port", "ok", "the system chooses a free one")]
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        why = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
        seen = f"{host}:{port}: {why}"
        remedy = "Set generator.port=0 to take any free one, or end the process that holds it."
        return [Finding("port", "bad" if needed else "warn", seen, remedy)]
    return [Finding("port", "ok", f"{host}:{port} is free")]
