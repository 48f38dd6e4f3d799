from __future__ import annotations

from pathlib import Path

import lmdb
import pytest

from forebay.clock import ManualClock
from forebay.errors import ConfigError, StoreVersionError
from forebay.store import StoreSettings, count_lost, open_store, view_store
from tests.unit.store.builders import FIRST, RUN, make_spec, make_trajectory

TTL_S = 10.0


@pytest.fixture
def settings(tmp_path: Path) -> StoreSettings:
    """A store in which one result has arrived, and another member's lease is about to end."""
    settings = StoreSettings(path=tmp_path / "store", side_file_bytes=0)
    store = open_store(settings, RUN, ManualClock(1000.0))
    store.rewind(0)
    store.dispatch([make_spec(0), make_spec(1)], incarnation=0)
    first, _ = store.claim(2, ttl_s=TTL_S, actor="a", version=FIRST)
    store.put(make_trajectory(first), first)
    store.close()
    return settings


def content(settings: StoreSettings) -> dict[str, bytes]:
    assert settings.path is not None
    files = [path for path in settings.path.rglob("*") if path.is_file() and path.name != "lock.mdb"]
    return {str(path): path.read_bytes() for path in files}


def last_transaction(settings: StoreSettings) -> int:
    with lmdb.open(str(settings.path), readonly=True) as env:
        return int(env.info()["last_txnid"])


def test_looking_changes_no_byte_and_settles_nothing(settings: StoreSettings) -> None:
    late = ManualClock(1000.0 + 2 * TTL_S)
    before, number = content(settings), last_transaction(settings)
    with view_store(settings, RUN, late) as view:
        stats = view.stats()
        assert (stats.leased_slots, stats.stored_trajectories, count_lost(stats)) == (1, 1, 0)
        assert stats.oldest_s == 2 * TTL_S
        assert [group.group_id for group in view.scan()] == ["g0", "g1"]
        assert view.audit() == () and view.journal() == ()
        assert len(view.read_group("g0").trajectories) == 1
    assert content(settings) == before and last_transaction(settings) == number
    # The same look by a process of the run ends the lease: only then is there a transaction more.
    store = open_store(settings, RUN, late)
    assert store.stats().leased_slots == 0
    store.close()
    assert last_transaction(settings) > number


def test_what_is_no_store_of_the_run_is_refused_and_not_made(settings: StoreSettings, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no store in"):
        view_store(StoreSettings(path=tmp_path / "nothing"), RUN)
    with pytest.raises(ConfigError, match="needs a directory"):
        view_store(StoreSettings(), RUN)
    with pytest.raises(StoreVersionError, match="belongs to another run"):
        view_store(settings, "another")
    assert not (tmp_path / "nothing").exists()
