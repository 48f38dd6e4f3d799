"""The address of a store's server, without secrets."""

from __future__ import annotations

import ipaddress
from typing import NamedTuple
from urllib.parse import urlsplit

from forebay.errors import ConfigError

_DEFAULT_PORT = 6379
_FORM = "redis://HOST:PORT/DATABASE, or rediss:// for TLS"


class Address(NamedTuple):
    """Where a server listens.

    Attributes:
        host: Name or address.
        port: TCP port.
        database: Number of the database.
        tls: Whether it speaks TLS.
    """

    host: str
    port: int
    database: int
    tls: bool

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"redis{'s' if self.tls else ''}://{host}:{self.port}/{self.database}"

    @property
    def is_loopback(self) -> bool:
        """Whether nothing leaves this machine."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def parse_address(url: str) -> Address:
    """Return the address that a URL names.

    Raises:
        ConfigError: It is none, or it holds a user or a password.

    Example:
        >>> parse_address("rediss://store.example:6380/2")
        Address(host='store.example', port=6380, database=2, tls=True)
    """
    parts = urlsplit(url)
    if "@" in parts.netloc:
        raise ConfigError(
            "store.url must not hold a user or a password: the configuration is kept in the run directory",
            remedy="Set store.username, and store.password_env to the name of an environment variable.",
        )
    try:
        host, port = parts.hostname, parts.port or _DEFAULT_PORT
        database = int(parts.path.strip("/") or 0)
    except ValueError as error:
        raise ConfigError(f"store.url is not an address: {error}", got=url, limit=_FORM) from error
    if parts.scheme not in ("redis", "rediss") or not host or parts.query or parts.fragment or database < 0:
        raise ConfigError("store.url is not an address", got=url, limit=_FORM)
    return Address(host, port, database, parts.scheme == "rediss")
