"""The address of a store's server, without secrets."""

from __future__ import annotations

import ipaddress
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from forebay.errors import ConfigError

_SERVER_PORT: Final = 6379
_SENTINEL_PORT: Final = 26379
_SENTINEL: Final = "+sentinel"
_FORM: Final = (
    "redis://HOST:PORT/DATABASE, redis+sentinel://HOST:PORT,HOST:PORT/SERVICE/DATABASE, or rediss:// for TLS"
)


class Address(NamedTuple):
    """Where a server listens, or where it can be asked for.

    Attributes:
        servers: Names or addresses, each with its TCP port: of servers of which one is the primary, or of
            sentinels.
        database: Number of the database.
        tls: Whether they speak TLS.
        service: What sentinels call the primary; "" if the servers are none.
    """

    servers: tuple[tuple[str, int], ...]
    database: int
    tls: bool
    service: str = ""

    def __str__(self) -> str:
        scheme = f"redis{'s' if self.tls else ''}{_SENTINEL if self.service else ''}"
        servers = ",".join(
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.servers
        )
        return f"{scheme}://{servers}/{f'{self.service}/' if self.service else ''}{self.database}"

    @property
    def is_loopback(self) -> bool:
        """Whether nothing leaves this machine."""
        return all(is_loopback(host) for host, _ in self.servers)


def is_loopback(host: str) -> bool:
    """Return whether what is sent to a host stays on this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def parse_address(url: str) -> Address:
    """Return the address that a URL names.

    Raises:
        ConfigError: It is none, or it holds a user or a password.

    Example:
        >>> parse_address("rediss://store.example:6380/2")
        Address(servers=(('store.example', 6380),), database=2, tls=True, service='')
        >>> str(parse_address("redis+sentinel://s1,s2/store"))
        'redis+sentinel://s1:26379,s2:26379/store/0'
    """
    parts = urlsplit(url)
    if "@" in parts.netloc:
        raise ConfigError(
            "store.url must not hold a user or a password: the configuration is kept in the run directory",
            remedy="Set store.username, and store.password_env to the name of an environment variable.",
        )
    scheme = parts.scheme.removesuffix(_SENTINEL)
    by_sentinel = scheme != parts.scheme
    service, path = "", parts.path.strip("/")
    if by_sentinel:
        service, _, path = path.partition("/")
    try:
        port = _SENTINEL_PORT if by_sentinel else _SERVER_PORT
        servers = tuple(_server(part, port) for part in parts.netloc.split(","))
        database = int(path or 0)
    except ValueError as error:
        raise ConfigError(f"store.url is not an address: {error}", got=url, limit=_FORM) from error
    known = scheme in ("redis", "rediss") and bool(service) == by_sentinel
    if not known or parts.query or parts.fragment or database < 0:
        raise ConfigError("store.url is not an address", got=url, limit=_FORM)
    return Address(servers, database, scheme == "rediss", service)


def _server(netloc: str, default_port: int) -> tuple[str, int]:
    parts = urlsplit(f"//{netloc}")
    if not parts.hostname:
        raise ValueError("it names no host")
    return parts.hostname, parts.port or default_port
