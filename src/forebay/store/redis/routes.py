"""Which server a connection goes to: the primary, wherever it is at the moment.

An address may name several servers. They are tried in turn, one for each new connection, until one is the
primary. A node of a cluster may point to another one; sentinels are asked for the primary each time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from forebay.errors import ConfigError
from forebay.store.address import Address, is_loopback
from forebay.store.redis.wire import Argument, send


class Connection(Protocol):
    """What a link needs of redis-py's connections."""

    def connect(self) -> None:
        """Connect and log in."""
        ...

    def disconnect(self) -> None:
        """Close the socket."""
        ...

    def send_packed_command(self, command: list[bytes], check_health: bool) -> None:
        """Send bytes."""
        ...

    def read_response(self, *, disconnect_on_error: bool) -> Any:
        """Return the next answer, or raise the server's error."""
        ...


class Connectors(NamedTuple):
    """What makes connections, not yet open, given `host` and `port`.

    Attributes:
        server: To a server of the store.
        sentinel: To a sentinel: the same, without user, password and database.
    """

    server: Callable[..., Connection]
    sentinel: Callable[..., Connection]


class Route:
    """Opens connections to the primary; one thread at a time uses it.

    Args:
        address: What the settings name.
        connectors: What makes connections.
        allow_plaintext: Whether what a sentinel or a cluster names may be on another host without TLS.
        greet: Called with each new connection; raises if it is not one to be used.
    """

    def __init__(
        self,
        address: Address,
        connectors: Connectors,
        greet: Callable[[Connection], None],
        *,
        allow_plaintext: bool,
    ) -> None:
        self.address = address
        self._connectors, self._greet, self._allow_plaintext = connectors, greet, allow_plaintext
        self._turn = 0
        self._pointed_to: tuple[str, int] | None = None

    def open(self) -> Connection:
        """Return an open connection to what should be the primary.

        Raises:
            ConfigError: It is not one to be used; trying again does not help.
            RedisError: It is away, or not the primary (any more).
        """
        host, port = self._next()
        if not (self.address.tls or self._allow_plaintext or is_loopback(host) or self._is_named(host)):
            raise ConfigError(
                f"{self.address} points to a server on another host, without TLS",
                got=f"{host}:{port}",
                remedy="Use rediss://, or set store.allow_plaintext=true on a network you trust.",
            )
        connection = self._connectors.server(host=host, port=port)
        usable = False
        try:
            connection.connect()
            self._greet(connection)
            usable = True
        finally:
            if not usable:
                connection.disconnect()
        return connection

    def point_to(self, host: str, port: int) -> None:
        """Go there with the next connection: a node of a cluster says so."""
        self._pointed_to = (host, port)

    def _is_named(self, host: str) -> bool:
        return not self.address.service and any(host == named for named, _ in self.address.servers)

    def _next(self) -> tuple[str, int]:
        target, self._pointed_to = self._pointed_to, None
        if target is None:
            target = self.address.servers[self._turn % len(self.address.servers)]
            self._turn += 1
            if self.address.service:
                target = self._ask_sentinel(*target)
        return target

    def _ask_sentinel(self, host: str, port: int) -> tuple[str, int]:
        from redis.exceptions import ConnectionError as AwayError

        question: tuple[Argument, ...] = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.address.service)
        sentinel = self._connectors.sentinel(host=host, port=port)
        try:
            sentinel.connect()
            send(sentinel, [question])
            answer = sentinel.read_response(disconnect_on_error=True)
        finally:
            sentinel.disconnect()
        if answer is None:
            # Another sentinel may know it, and this one may hear of it.
            raise AwayError(f"sentinel {host}:{port} knows no service {self.address.service}")
        found, found_port = answer
        return found.decode(), int(found_port)
