"""Opening a redis store: the server is asked what it promises before anything is written to it."""

from __future__ import annotations

from contextlib import ExitStack

import msgspec

from forebay.clock import Clock
from forebay.store.redis import scripts
from forebay.store.redis.packing import FORMAT_VERSION
from forebay.store.redis.promises import check_promises
from forebay.store.redis.server import Server
from forebay.store.redis.store import RedisStore
from forebay.store.redis.view import RedisView
from forebay.store.settings import StoreSettings


def open_redis(settings: StoreSettings, run_id: str, clock: Clock) -> RedisStore:
    """Open the store of a run on a server; make it if there is none.

    Raises:
        ConfigError: The server does not promise what the settings ask for, or refuses the password.
        StoreVersionError: The store has another format.
        StoreError: The server is away.
    """
    server = Server(settings, run_id)
    with ExitStack() as undone:
        undone.callback(server.close)
        check_promises(server, settings, clock)
        server.run(scripts.BEGIN, FORMAT_VERSION, run_id, msgspec.msgpack.encode([]))
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
    server = Server(settings, run_id)
    with ExitStack() as undone:
        undone.callback(server.close)
        view = RedisView(server, settings, clock)
        view.check_owner(run_id)
        undone.pop_all()
    return view
