"""Inspection: a store that is only looked at. Nothing expires, nothing is swept, not a byte changes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import lmdb

from forebay.clock import Clock, SystemClock
from forebay.errors import ConfigError, StoreError
from forebay.staleness import OutstandingGroup
from forebay.store import accounting, batches
from forebay.store.ledger import Ledger
from forebay.store.lmdb import MAX_READERS, LmdbTxn
from forebay.store.marker import DATA_NAME, check_directory
from forebay.store.protocol import JournalEntry, StoreStats, TakenGroup
from forebay.store.settings import StoreSettings
from forebay.store.side_files import SideFiles

T = TypeVar("T")


class StoreView:
    """Snapshots of an lmdb store that other processes may be using; made by `view_store`.

    A lease or a deadline that has passed counts as it is until a process of the run settles it.

    Args:
        settings: Where it lies, and the capacities that are shown beside what is used.
        run_id: The run that should own it.
        clock: Dates the snapshots.

    Raises:
        ConfigError: There is no store there.
        StoreVersionError: It is another run's, of another format, or something else.
    """

    def __init__(self, settings: StoreSettings, run_id: str, clock: Clock) -> None:
        if settings.path is None:
            raise ConfigError("an lmdb store needs a directory", remedy="Set store.path.")
        check_directory(settings.path, run_id)
        if not (settings.path / DATA_NAME).exists():
            raise ConfigError(f"the store in {settings.path} is empty yet", remedy="Start the run first.")
        self._settings, self._clock = settings, clock
        self._files = SideFiles(settings.path / "payloads", sync=False)
        self._reading = threading.Lock()
        try:
            self._env = lmdb.open(
                str(settings.path), readonly=True, map_size=settings.map_bytes, max_readers=MAX_READERS
            )
        except lmdb.Error as error:
            raise StoreError(f"cannot look into the store in {settings.path}: {error}") from error

    def __enter__(self) -> StoreView:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def stats(self) -> StoreStats:
        """Return a snapshot; see `Store.stats`."""
        return self._read(accounting.stats)

    def scan(self) -> Iterator[OutstandingGroup]:
        """Yield every group; see `Store.scan`."""
        return iter(self._read(batches.every_group))

    def journal(self) -> tuple[JournalEntry, ...]:
        """Return every batch that was consumed and is not forgotten, in order; see `Store.journal`."""
        return self._read(lambda ledger: tuple(ledger.journal()))

    def read_group(self, group_id: str) -> TakenGroup:
        """Return a stored group; see `TrajectorySource.read_group`."""
        return batches.whole_group(self._read(lambda ledger: batches.read_raw(ledger, group_id)))

    def audit(self) -> tuple[str, ...]:
        """Recount everything from the records; return each contradiction, an empty tuple if there is none."""
        return self._read(accounting.audit)

    def close(self) -> None:
        """Release the environment."""
        self._env.close()

    def _read(self, rule: Callable[[Ledger], T]) -> T:
        with self._reading, self._begin() as txn:
            return rule(Ledger(LmdbTxn(txn, self._files), self._settings, self._clock.wall_s()))

    def _begin(self) -> Any:
        try:
            return self._env.begin()
        except lmdb.MapResizedError:  # another process enlarged the map
            self._env.set_mapsize(0)
            return self._env.begin()


def view_store(settings: StoreSettings, run_id: str, clock: Clock | None = None) -> StoreView:
    """Look into the store of a run without changing it.

    Args:
        settings: Where it lies, and its capacities.
        run_id: The run that owns it.
        clock: Dates the snapshots; the system's by default.

    Raises:
        ConfigError: There is no store there.
        StoreVersionError: It is another run's, of another format, or something else.
    """
    return StoreView(settings, run_id, clock or SystemClock())
