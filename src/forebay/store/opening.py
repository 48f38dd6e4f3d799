"""Opening a store: from settings to an engine."""

from __future__ import annotations

from forebay.clock import Clock, SystemClock
from forebay.errors import ConfigError
from forebay.store.heap import keep_freed_memory
from forebay.store.kv import Engine
from forebay.store.lmdb import open_lmdb
from forebay.store.memory import MemoryEngine
from forebay.store.protocol import Store
from forebay.store.redis.opening import open_redis
from forebay.store.rules import RuleStore
from forebay.store.settings import StoreSettings
from forebay.trajectory import check_name


def open_store(settings: StoreSettings, run_id: str, clock: Clock | None = None) -> Store:
    """Open the store of a run; make it if there is none.

    Args:
        settings: Engine, place, durability and capacities. Capacities are the opener's, not the store's: a
            store reopened with others obeys the new ones.
        run_id: The run that owns it.
        clock: Time of leases and deadlines; the system's by default.

    Raises:
        ConfigError: The settings cannot work, or the server does not promise what they ask for.
        StoreVersionError: There is something else at that place; it was not touched.
        StoreError: The server is away, or the disk is full.

    Example:
        >>> store = open_store(StoreSettings(engine="memory"), "run")
        >>> store.rewind(0).incarnation
        0
        >>> store.stats().outstanding
        0
    """
    check_name(run_id, "run_id")
    keep_freed_memory()
    clock = clock or SystemClock()
    if settings.engine == "redis":
        return open_redis(settings, run_id, clock)
    engine: Engine
    if settings.engine == "memory":
        engine = MemoryEngine()
    elif settings.path is None:
        raise ConfigError("an lmdb store needs a directory", remedy="Set store.path.")
    else:
        engine = open_lmdb(settings.path, settings, run_id)
    return RuleStore(engine, settings, run_id, clock)
