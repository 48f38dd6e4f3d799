"""What the store asks of a server: version, role, durability, eviction.

Nothing is written to a server that does not promise what the settings ask for. It is asked at each new
connection: after a fail-over another server may stand there.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from forebay.errors import ConfigError
from forebay.store.address import Address
from forebay.store.redis.packing import pairs
from forebay.store.redis.routes import Connection
from forebay.store.redis.wire import Argument, send
from forebay.store.settings import StoreSettings

logger = logging.getLogger(__name__)

_MIN_VERSION: Final = 7
_WANTED_FSYNC: Final = {"fsync": ("always",), "os": ("always", "everysec")}


def greet_reader(connection: Connection) -> None:
    """Refuse a server that is loading its files, or a replica: what it holds may be incomplete.

    Raises:
        RedisError: It is one of these, for the moment.
    """
    _check_role(_info(connection))


class Promises:
    """Refuses servers that cannot keep what the settings promise; made once for a store.

    Args:
        settings: What they ask for.
        address: The server's, for errors.
    """

    def __init__(self, settings: StoreSettings, address: Address) -> None:
        self._settings, self._address = settings, address
        self._warned: set[str] = set()

    def greet(self, connection: Connection) -> None:
        """Check the server of a new connection.

        Raises:
            ConfigError: It is too old, or would lose or evict what it acknowledges.
            RedisError: It is loading its files, or a replica, for the moment.
        """
        info = _info(connection)
        version = info.get("redis_version", "0")
        if int(version.partition(".")[0]) < _MIN_VERSION:
            raise ConfigError(
                f"the store's server {self._address} is too old", got=version, limit=f">= {_MIN_VERSION}"
            )
        _check_role(info)
        self._check_eviction(info)
        self._check_memory(info)
        self._check_durability(info, _config(connection))

    def _check_eviction(self, info: dict[str, str]) -> None:
        policy = info.get("maxmemory_policy", "noeviction")
        if policy != "noeviction":
            raise ConfigError(
                f"the store's server {self._address} would evict trajectories when its memory is full",
                got=f"maxmemory-policy {policy}",
                limit="maxmemory-policy noeviction",
                remedy="Run: redis-cli CONFIG SET maxmemory-policy noeviction",
            )

    def _check_memory(self, info: dict[str, str]) -> None:
        limit = int(info.get("maxmemory", "0"))
        needed = self._settings.capacity_bytes + self._settings.retained_capacity_bytes
        if 0 < limit < needed:
            self._warn(
                f"the store's server {self._address} has maxmemory {limit}, less than store.capacity_bytes + "
                f"store.retained_capacity_bytes = {needed}: it may refuse trajectories before the store "
                "brakes"
            )

    def _check_durability(self, info: dict[str, str], config: dict[str, str] | None) -> None:
        durability = self._settings.durability
        wanted = _WANTED_FSYNC[durability]
        if info.get("aof_enabled") != "1":
            raise self._too_weak("appendonly no", "appendonly yes")
        if config is None:
            self._warn(
                f"the store's server {self._address} does not tell its appendfsync (no permission for CONFIG "
                f'GET): store.durability="{durability}" needs appendfsync {" or ".join(wanted)}, and is '
                "taken on trust"
            )
            return
        if config["appendfsync"] not in wanted:
            raise self._too_weak(f"appendfsync {config['appendfsync']}", f"appendfsync {wanted[-1]}")
        if durability == "fsync" and config["no-appendfsync-on-rewrite"] == "yes":
            raise self._too_weak("no-appendfsync-on-rewrite yes", "no-appendfsync-on-rewrite no")

    def _too_weak(self, got: str, limit: str) -> ConfigError:
        softer = ', or set store.durability="os"' if self._settings.durability == "fsync" else ""
        return ConfigError(
            f"the store's server {self._address} does not keep what "
            f'store.durability="{self._settings.durability}" promises',
            got=got,
            limit=limit,
            remedy=f"Run: redis-cli CONFIG SET {limit}{softer}",
        )

    def _warn(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            logger.warning("%s", message)


def _answer(connection: Connection, *words: Argument) -> Any:
    send(connection, [words])
    return connection.read_response(disconnect_on_error=True)


def _info(connection: Connection) -> dict[str, str]:
    text = _answer(connection, "INFO").decode(errors="replace")
    lines = (line.partition(":") for line in text.splitlines() if not line.startswith("#"))
    return {name: value for name, _, value in lines}


def _check_role(info: dict[str, str]) -> None:
    from redis.exceptions import BusyLoadingError, ReadOnlyError

    # It says that it keeps no append-only file while it loads it.
    if info.get("loading") == "1":
        raise BusyLoadingError("it is loading its files")
    if info.get("role") == "slave":
        raise ReadOnlyError("it is a replica", status_code="READONLY")


def _config(connection: Connection) -> dict[str, str] | None:
    from redis.exceptions import ResponseError

    try:
        flat = _answer(connection, "CONFIG", "GET", "appendfsync", "no-appendfsync-on-rewrite")
    except ResponseError:
        return None
    return {name: value.decode() for name, value in pairs(flat).items()}
