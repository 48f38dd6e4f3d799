"""The engines that every test of the store runs against."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from forebay.clock import ManualClock
from forebay.store import StoreSettings, open_store
from forebay.store.rules import RuleStore
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
}

OpenStore = Callable[..., RuleStore]


@pytest.fixture(params=ENGINES)
def engine_settings(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    return ENGINES[request.param](tmp_path)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(start_s=1000.0)


@pytest.fixture
def opened(engine_settings: dict[str, Any], clock: ManualClock) -> Iterator[OpenStore]:
    """Open stores of the engine under test; close them afterwards."""
    stores: list[RuleStore] = []

    def opener(run_id: str = RUN, **settings: Any) -> RuleStore:
        stores.append(open_store(StoreSettings(**engine_settings, **settings), run_id, clock))
        return stores[-1]

    yield opener
    for store in stores:
        store.close()


@pytest.fixture
def store(opened: OpenStore) -> Iterator[RuleStore]:
    """A store of the engine under test; its totals must be true at the end of every test."""
    store = opened()
    yield store
    assert store.audit() == ()
