"""Inspection: an lmdb store that is only looked at. Nothing expires, nothing is swept, no byte changes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Any, Self, TypeVar

import lmdb

from forebay.clock import Clock, SystemClock
from forebay.errors import ConfigError, StoreError, WireError
from forebay.staleness import OutstandingGroup
from forebay.store import accounting, batches
from forebay.store.data_file import DataFile
from forebay.store.ledger import Ledger
from forebay.store.lmdb import MAX_READERS, LmdbTxn
from forebay.store.marker import DATA_NAME, check_directory, hold_directory, release_directory
from forebay.store.protocol import JournalEntry, StoreStats, TakenGroup
from forebay.store.records import (
    GROUPS,
    QUARANTINE,
    QUARANTINED_FILES,
    decode_file,
    decode_group,
    group_key,
    parse_payload_key,
)
from forebay.store.redis.opening import view_redis
from forebay.store.settings import StoreSettings
from forebay.store.side_files import SideFiles
from forebay.store.view import (
    PAGE_GROUPS,
    SetAside,
    StoredGroup,
    StoreView,
    outstanding_group,
    stored_group,
)

T = TypeVar("T")


class LmdbView:
    """A `StoreView` of an lmdb store; made by `view_store`.

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
        self._held = hold_directory(settings.path)
        try:
            self._env = lmdb.open(
                str(settings.path), readonly=True, map_size=settings.map_bytes, max_readers=MAX_READERS
            )
        except lmdb.Error as error:
            release_directory(self._held)
            raise StoreError(f"cannot look into the store in {settings.path}: {error}") from error
        self._data = DataFile(settings.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def stats(self) -> StoreStats:
        """Return a snapshot; see `StoreView.stats`."""
        return self._read(accounting.stats)

    def groups(self) -> Iterator[StoredGroup]:
        """Yield every group, page by page; see `StoreView.groups`."""
        after = b""
        while page := self._read(_page_after(after)):
            yield from page
            after = group_key(page[-1].group_id)

    def find_group(self, group_id: str) -> StoredGroup | None:
        """Return a group, or None; see `StoreView.find_group`."""
        group = self._read(lambda ledger: ledger.find(group_id))
        return None if group is None else stored_group(group)

    def read_raw(self, group_id: str) -> batches.RawGroup:
        """Return a group with its frames; see `StoreView.read_raw`."""
        return self._read(lambda ledger: batches.read_raw(ledger, group_id))

    def read_group(self, group_id: str) -> TakenGroup:
        """Return a stored group, decoded; see `StoreView.read_group`."""
        return batches.whole_group(self.read_raw(group_id))

    def scan(self) -> Iterator[OutstandingGroup]:
        """Yield every group as the staleness rules see it; see `StoreView.scan`."""
        return map(outstanding_group, self.groups())

    def journal(self) -> tuple[JournalEntry, ...]:
        """Return every batch that was consumed and is not forgotten; see `StoreView.journal`."""
        return self._read(lambda ledger: tuple(ledger.journal()))

    def set_aside(self) -> tuple[SetAside, ...]:
        """Return the frames in quarantine; see `StoreView.set_aside`."""
        return self._read(_quarantined)

    def audit(self) -> tuple[str, ...]:
        """Recount everything from the records; see `StoreView.audit`."""
        return accounting.audit(self._read)

    def close(self) -> None:
        """Release the environment."""
        self._env.close()
        self._data.close()
        release_directory(self._held)

    def _read(self, rule: Callable[[Ledger], T]) -> T:
        with self._reading, self._begin() as txn:
            return rule(Ledger(LmdbTxn(txn, self._files), self._settings, self._clock.wall_s()))

    def _begin(self) -> Any:
        self._data.check()
        try:
            return self._env.begin()
        except lmdb.MapResizedError:  # another process enlarged the map
            self._env.set_mapsize(0)
            return self._env.begin()


def _page_after(after: bytes) -> Callable[[Ledger], list[StoredGroup]]:
    """Return a rule that reads the groups whose keys come after one."""

    def read(ledger: Ledger) -> list[StoredGroup]:
        found = ledger.txn.scan(GROUPS, after)
        page = islice((item for item in found if item[0] != after), PAGE_GROUPS)
        return [stored_group(decode_group(*item)) for item in page]

    return read


def _quarantined(ledger: Ledger) -> tuple[SetAside, ...]:
    kept = [(*parse_payload_key(key), frame) for key, frame in ledger.txn.scan(QUARANTINE)]
    for key, raw in ledger.txn.scan(QUARANTINED_FILES):
        with suppress(WireError):
            kept.append((*parse_payload_key(key), ledger.txn.read_file(decode_file(key, raw)[0])))
    return tuple(SetAside(group_id=name, member=member, frame=frame) for name, member, frame in kept)


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
    clock = clock or SystemClock()
    if settings.engine == "redis":
        return view_redis(settings, run_id, clock)
    return LmdbView(settings, run_id, clock)
