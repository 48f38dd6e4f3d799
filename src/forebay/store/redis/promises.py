"""What the store asks of a server: version, durability, eviction, and a clock that agrees.

Nothing is written to a server that does not promise what the settings ask for.
"""

from __future__ import annotations

import logging
from typing import Final

from forebay.clock import Clock, SystemClock
from forebay.errors import ConfigError
from forebay.store.redis.packing import pairs
from forebay.store.redis.server import Server
from forebay.store.settings import StoreSettings

logger = logging.getLogger(__name__)

_MIN_VERSION: Final = 7
_MAX_SKEW_S: Final = 5.0
_WANTED_FSYNC: Final = {"fsync": ("always",), "os": ("always", "everysec")}


def check_promises(server: Server, settings: StoreSettings, clock: Clock) -> None:
    """Refuse a server that cannot keep what the settings promise.

    Args:
        server: The server.
        settings: What they ask for.
        clock: The time of leases; where it is the system's, it must agree with the server's.

    Raises:
        ConfigError: It is too old, would lose or evict what it acknowledges, or its clock differs.
    """
    info = _info(server)
    version = info.get("redis_version", "0")
    if int(version.partition(".")[0]) < _MIN_VERSION:
        raise ConfigError(
            f"the store's server {server.address} is too old", got=version, limit=f">= {_MIN_VERSION}"
        )
    if info.get("cluster_enabled") == "1":
        logger.warning(
            "the store's server %s is one of a cluster: redirections are not followed", server.address
        )
    _check_eviction(server, info)
    _check_memory(server, settings, info)
    _check_durability(server, settings, info)
    _check_clock(server, clock)


def _info(server: Server) -> dict[str, str]:
    while True:
        # Answered once the server has loaded its files: until then it says that it keeps no append-only file.
        server.ask("GET", f"{server.prefix}beat")
        text = server.ask("INFO").decode(errors="replace")
        lines = (line.partition(":") for line in text.splitlines() if not line.startswith("#"))
        info = {name: value for name, _, value in lines}
        if info.get("loading") != "1":
            return info


def _check_eviction(server: Server, info: dict[str, str]) -> None:
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        raise ConfigError(
            f"the store's server {server.address} would evict trajectories when its memory is full",
            got=f"maxmemory-policy {policy}",
            limit="maxmemory-policy noeviction",
            remedy="Run: redis-cli CONFIG SET maxmemory-policy noeviction",
        )


def _check_memory(server: Server, settings: StoreSettings, info: dict[str, str]) -> None:
    limit = int(info.get("maxmemory", "0"))
    needed = settings.capacity_bytes + settings.retained_capacity_bytes
    if 0 < limit < needed:
        logger.warning(
            "the store's server %s has maxmemory %d, less than store.capacity_bytes + "
            "store.retained_capacity_bytes = %d: it may refuse trajectories before the store brakes",
            server.address,
            limit,
            needed,
        )


def _check_durability(server: Server, settings: StoreSettings, info: dict[str, str]) -> None:
    wanted = _WANTED_FSYNC[settings.durability]
    if info.get("aof_enabled") != "1":
        raise _too_weak(server, settings, "appendonly no", "appendonly yes")
    config = _config(server)
    if config is None:
        logger.warning(
            "the store's server %s does not tell its appendfsync (no permission for CONFIG GET): "
            'store.durability="%s" needs appendfsync %s, and is taken on trust',
            server.address,
            settings.durability,
            " or ".join(wanted),
        )
        return
    if config["appendfsync"] not in wanted:
        raise _too_weak(server, settings, f"appendfsync {config['appendfsync']}", f"appendfsync {wanted[-1]}")
    if settings.durability == "fsync" and config["no-appendfsync-on-rewrite"] == "yes":
        limit = "no-appendfsync-on-rewrite no"
        raise _too_weak(server, settings, "no-appendfsync-on-rewrite yes", limit)


def _config(server: Server) -> dict[str, str] | None:
    try:
        flat = server.ask("CONFIG", "GET", "appendfsync", "no-appendfsync-on-rewrite")
    except ConfigError:
        return None
    return {name: value.decode() for name, value in pairs(flat).items()}


def _too_weak(server: Server, settings: StoreSettings, got: str, limit: str) -> ConfigError:
    softer = ', or set store.durability="os"' if settings.durability == "fsync" else ""
    return ConfigError(
        f"the store's server {server.address} does not keep what "
        f'store.durability="{settings.durability}" promises',
        got=got,
        limit=limit,
        remedy=f"Run: redis-cli CONFIG SET {limit}{softer}",
    )


def _check_clock(server: Server, clock: Clock) -> None:
    if not isinstance(clock, SystemClock):
        return
    seconds, microseconds = server.ask("TIME")
    skew_s = clock.wall_s() - (int(seconds) + int(microseconds) * 1e-6)
    if abs(skew_s) > _MAX_SKEW_S:
        raise ConfigError(
            f"the clock of this machine and that of the store's server {server.address} differ: leases and "
            "deadlines would end at the wrong time",
            got=f"{skew_s:+.1f} s",
            limit=f"{_MAX_SKEW_S:g} s",
            remedy="Let both follow a time server.",
        )
