"""The engines that every test of the store runs against."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from forebay.clock import ManualClock
from forebay.store import Store, StoreSettings, open_store
from tests.redis_server import EVERYSEC, empty_server, needs_redis
from tests.unit.store.builders import RUN

# A new engine joins the conformance suite with one line: its settings, given a fresh directory.
ENGINES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "memory": lambda path: {"engine": "memory"},
    "lmdb-fsync": lambda path: {"engine": "lmdb", "path": path / "store"},
    "lmdb-os": lambda path: {"engine": "lmdb", "path": path / "store", "durability": "os"},
    # Every payload is larger than the limit, so that the whole suite also runs on side files.
    "lmdb-side-files": lambda path: {
        "engine": "lmdb",
        "path": path / "store",
        "durability": "os",
        "side_file_bytes": 0,
    },
    "redis": lambda path: {
        "engine": "redis",
        "url": empty_server(*EVERYSEC).url,
        "durability": "os",
    },
}

OpenStore = Callable[..., Store]


ENGINE_PARAMS = [
    pytest.param(name, marks=needs_redis if name.startswith("redis") else ()) for name in ENGINES
]


@pytest.fixture(params=ENGINE_PARAMS)
def engine_settings(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    return ENGINES[request.param](tmp_path)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(start_s=1000.0)


@pytest.fixture
def opened(engine_settings: dict[str, Any], clock: ManualClock) -> Iterator[OpenStore]:
    """Open stores of the engine under test; close them afterwards."""
    stores: list[Store] = []

    def opener(run_id: str = RUN, **settings: Any) -> Store:
        stores.append(open_store(StoreSettings(**engine_settings, **settings), run_id, clock))
        return stores[-1]

    yield opener
    for store in stores:
        store.close()


@pytest.fixture
def store(opened: OpenStore) -> Iterator[Store]:
    """A store of the engine under test; its totals must be true at the end of every test."""
    store = opened()
    yield store
    assert store.audit() == ()
