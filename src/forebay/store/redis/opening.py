"""Opening a redis store: the server is asked what it promises before anything is written to it."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Final

from forebay.clock import Clock, SystemClock
from forebay.errors import ConfigError
from forebay.store.redis import scripts
from forebay.store.redis.packing import FORMAT_VERSION, empty_totals
from forebay.store.redis.promises import Promises, greet_reader
from forebay.store.redis.server import Server, server_address
from forebay.store.redis.store import RedisStore
from forebay.store.redis.view import RedisView
from forebay.store.settings import StoreSettings

_MAX_SKEW_S: Final = 5.0
_SCAN_COUNT: Final = 1000


def open_redis(settings: StoreSettings, run_id: str, clock: Clock) -> RedisStore:
    """Open the store of a run on a server; make it if there is none.

    Raises:
        ConfigError: The server does not promise what the settings ask for, or refuses the password.
        StoreVersionError: The store has another format.
        StoreError: The server is away.
    """
    server = Server(settings, run_id, Promises(settings, server_address(settings)).greet)
    with ExitStack() as undone:
        undone.callback(server.close)
        _check_clock(server, clock)
        server.run(scripts.BEGIN, FORMAT_VERSION, run_id, empty_totals(f"{server.prefix}meta"))
        RedisView(server, settings, clock).check_owner(run_id)
        undone.pop_all()
    return RedisStore(server, settings, run_id, clock)


def view_redis(settings: StoreSettings, run_id: str, clock: Clock) -> RedisView:
    """Look into the store of a run on a server without changing it.

    Raises:
        ConfigError: There is no store of that run.
        StoreVersionError: The store has another format.
        StoreError: The server is away.
    """
    server = Server(settings, run_id, greet_reader)
    with ExitStack() as undone:
        undone.callback(server.close)
        view = RedisView(server, settings, clock)
        view.check_owner(run_id)
        undone.pop_all()
    return view


def forget_redis(settings: StoreSettings, run_id: str) -> int:
    """Delete everything that a server holds of a run; return how many keys that were.

    Nobody else may work on the store of that run.

    Raises:
        StoreError: The server is away.
    """
    server = Server(settings, run_id, greet_reader)
    num_keys, cursor = 0, b"0"
    try:
        while True:
            found: list[bytes]
            cursor, found = server.read("SCAN", cursor, "MATCH", f"{server.prefix}*", "COUNT", _SCAN_COUNT)
            if found:
                num_keys += int(server.ask("UNLINK", *found))
            if int(cursor) == 0:
                return num_keys
    finally:
        server.close()


def _check_clock(server: Server, clock: Clock) -> None:
    """Refuse a server whose clock is not the system's, where that is the time of leases.

    Raises:
        ConfigError: They differ.
    """
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
