"""The lmdb engine: durable, embedded, several processes on one host.

One environment a process; its writers commit together. Reads are snapshots and copy what they return, so
that no reader pins pages. Freed pages are used again; a map that becomes too small is doubled. A lock that a
killed writer held is taken over; the slots of killed readers are cleared.

A commit writes its pages, waits for them, and writes the page that points to them. Only that is done under
the lock which all processes share. The process then waits for the last page by itself, and answers nobody
before: the next commit, of whichever process, waits for everything written before it, so that power loss
takes at most what was not yet answered.
"""

from __future__ import annotations

import mmap
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import lmdb

from forebay.errors import ConfigError, DamagedError, ForebayError, StoreError, StoreVersionError
from forebay.store.compaction import sweep_compaction
from forebay.store.data_file import DataFile, lengthen
from forebay.store.file_systems import refuse_network_filesystem
from forebay.store.group_commit import Committer, Operation
from forebay.store.kv import Txn
from forebay.store.marker import claim_directory, hold_directory, release_directory
from forebay.store.records import GROUPS, QUARANTINED_FILES, decode_file, decode_group
from forebay.store.settings import StoreSettings
from forebay.store.side_files import SideFiles

T = TypeVar("T")

MAX_READERS = 512
_COMMITS_BETWEEN_CHECKS = 256
_WRITE_FAILURES = ("Input/output error", "File too large", "No space left on device", "Disk quota exceeded")

_opened: dict[Path, LmdbEngine] = {}
_opened_lock = threading.Lock()


def open_lmdb(path: Path, settings: StoreSettings, run_id: str) -> LmdbEngine:
    """Open the store in a directory; within a process, every caller shares one environment.

    Raises:
        StoreVersionError: The directory holds something else; it was not touched.
        ConfigError: The path or the settings cannot work.
    """
    path = path.resolve()
    with _opened_lock:
        engine = _opened.get(path)
        refuse_network_filesystem(path)
        claim_directory(path, run_id)
        if engine is None:
            engine = _opened[path] = LmdbEngine(path, settings)
        else:
            engine.share(settings)
        return engine


class LmdbEngine:
    """Transactions over one lmdb environment; made by `open_lmdb`.

    Args:
        path: Directory, checked to be ours.
        settings: Durability and sizes.
    """

    def __init__(self, path: Path, settings: StoreSettings) -> None:
        self.pid = os.getpid()
        self._path, self._settings = path, settings
        self._held = hold_directory(path)
        sweep_compaction(path)
        try:
            self._env = _open_environment(path, settings)
        except ForebayError:
            release_directory(self._held)
            raise
        self._env.reader_check()
        lengthen(path, self._env)
        self._data = DataFile(path)
        self._syncs = settings.durability == "fsync"
        self._files = SideFiles(path / "payloads", sync=self._syncs)
        # Held by every read, and while the map is resized: lmdb allows no transaction then.
        self._reading = threading.Lock()
        self._num_users = 1
        self._num_commits = 0
        self._is_failed = False
        self._discarded: list[str] = []
        self._committer = Committer(self._commit)
        self._files.sweep(lambda: self.read(_side_files_in_use))

    def share(self, settings: StoreSettings) -> None:
        """Count one more user of this environment.

        Raises:
            ConfigError: The user wants another durability, or lives in a fork.
        """
        if self.pid != os.getpid():
            raise ConfigError(
                f"the store in {self._path} was opened before a fork",
                remedy="Start processes with spawn, or open the store after the fork only.",
            )
        if self._settings.durability != settings.durability:
            raise ConfigError(
                "a process opens a store with one durability",
                got=settings.durability,
                limit=self._settings.durability,
            )
        self._num_users += 1

    def read(self, operation: Callable[[Txn], T]) -> T:
        """Run `operation` on a snapshot."""
        self._check_process()
        try:
            return self._read_once(operation)
        except lmdb.MapResizedError:
            # Another process enlarged the map; the next commit adopts that.
            self.write(lambda txn: None)
        except lmdb.ReadersFullError:
            self._env.reader_check()
        except lmdb.Error as error:
            raise _explained(error, self._path, self._env) from error
        try:
            return self._read_once(operation)
        except lmdb.Error as error:
            raise _explained(error, self._path, self._env) from error

    def write(self, operation: Callable[[Txn], T], *, durable: bool = True) -> T:
        """Run `operation` with others in one commit; return once it is durable."""
        self._check_process()
        value: T = self._committer.submit(Operation(operation, durable=durable))
        return value

    def stage(self, frame: bytes) -> str:
        """Write a large payload to a side file."""
        return self._files.write(frame) if len(frame) > self._settings.side_file_bytes else ""

    def unstage(self, name: str) -> None:
        """Remove a side file that nothing refers to."""
        if not self._is_failed:  # else its commit may be on the disk all the same
            self._files.remove(name)

    def close(self) -> None:
        """Close the environment once its last user is gone."""
        with _opened_lock:
            if self._num_users == 0 or self.pid != os.getpid():
                return
            self._num_users -= 1
            if self._num_users:
                return
            _opened.pop(self._path, None)
            self._committer.stop()
            with self._reading:
                self._env.close()
            self._data.close()
            release_directory(self._held)

    def _read_once(self, operation: Callable[[Txn], T]) -> T:
        with self._reading:
            if self._num_users == 0:
                raise StoreError("the store is closed")
            self._data.check()
            with self._env.begin() as txn:
                return operation(LmdbTxn(txn, self._files))

    def _check_process(self) -> None:
        if self.pid != os.getpid():
            raise StoreError("the store was opened before a fork", remedy="Start processes with spawn.")

    def _commit(self, take: Callable[[], Operation | None]) -> None:
        batch: list[Operation] = []
        if not self._commit_together(take, batch):
            batch.extend(iter(take, None))
            for operation in batch:
                self._commit_alone(operation)
        self._make_durable(batch)
        self._num_commits += 1
        if self._num_commits % _COMMITS_BETWEEN_CHECKS == 0:
            self._env.reader_check()

    def _commit_together(self, take: Callable[[], Operation | None], batch: list[Operation]) -> bool:
        """Commit all that waits in one transaction; return False, with nothing done, if one of it fails."""
        try:
            with self._begin() as raw:
                txn = LmdbTxn(raw, self._files)
                # Taken only now: while another process held the lock, more have gathered.
                while (operation := take()) is not None:
                    batch.append(operation)
                    if not operation.attempt(txn):
                        raw.abort()
                        return False
                txn.finish()
        except (lmdb.Error, DamagedError):
            return False
        self._discarded += txn.discarded
        return True

    def _commit_alone(self, operation: Operation) -> None:
        self._try_alone(operation)
        while isinstance(operation.error, lmdb.MapFullError) and self._grow():
            self._try_alone(operation)
        if isinstance(operation.error, lmdb.Error):
            cause = operation.error
            operation.error = _explained(cause, self._path, self._env)
            operation.error.__cause__ = cause

    def _try_alone(self, operation: Operation) -> None:
        txn: LmdbTxn | None = None
        with operation:
            raw = self._begin()
            try:
                txn = LmdbTxn(raw, self._files)
                operation.run(txn)
                txn.finish()
                raw.commit()
            finally:
                raw.abort()
        if operation.error is None and txn is not None:
            self._discarded += txn.discarded

    def _make_durable(self, batch: list[Operation]) -> None:
        """Wait for what was committed, while others commit; then remove the files it no longer names."""
        discarded, self._discarded = self._discarded, []
        if self._syncs and (discarded or any(each.durable and each.error is None for each in batch)):
            try:
                self._env.sync(True)
            except lmdb.Error as error:
                self._is_failed = True
                for operation in batch:
                    operation.error = operation.error or _explained(error, self._path, self._env)
                return
        for name in discarded:
            self._files.remove(name)

    def _begin(self) -> Any:
        if self._is_failed:
            raise DamagedError(
                f"the disk of the store in {self._path} failed to keep a commit",
                remedy="Check it, and start again: nothing that was acknowledged is lost.",
            )
        self._data.check()
        try:
            return self._env.begin(write=True)
        except lmdb.MapResizedError:
            self._resize(0)
            return self._env.begin(write=True)

    def _grow(self) -> bool:
        """Double the map; return whether the system has the addresses for it."""
        map_bytes = 2 * int(self._env.info()["map_size"])
        if not _can_map(map_bytes):
            return False
        self._resize(map_bytes)
        return True

    def _resize(self, map_bytes: int) -> None:
        with self._reading:
            self._env.set_mapsize(map_bytes)


class LmdbTxn:
    """A transaction of lmdb, as the rules see it.

    Args:
        txn: The transaction.
        files: Where large payloads lie.

    Attributes:
        shared: What the operations of one commit leave for one another.
        discarded: Side files to be removed once it is durable.
    """

    def __init__(self, txn: Any, files: SideFiles) -> None:
        self.shared: Any = None
        self.discarded: list[str] = []
        self._txn, self._files = txn, files
        self._last_calls: list[Callable[[], None]] = []

    def get(self, key: bytes) -> bytes | None:
        """Return a copy of the value of a key, or None."""
        value: bytes | None = self._txn.get(key)
        return value

    def put(self, key: bytes, value: bytes) -> None:
        """Set the value of a key."""
        self._txn.put(key, value)

    def delete(self, key: bytes) -> None:
        """Remove a key, if it is there."""
        self._txn.delete(key)

    def delete_all(self, prefix: bytes) -> None:
        """Remove every key that has a prefix."""
        with self._txn.cursor() as cursor:
            found = cursor.set_range(prefix)
            while found and cursor.key().startswith(prefix):
                found = cursor.delete()

    def first(self, prefix: bytes) -> tuple[bytes, bytes] | None:
        """Return the first item whose key has a prefix."""
        return next(self.scan(prefix), None)

    def scan(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Yield the items whose keys have a prefix, from `start` on, in order."""
        with self._txn.cursor() as cursor:
            if cursor.set_range(max(prefix, start)):
                for key, value in cursor.iternext():
                    if not key.startswith(prefix):
                        return
                    yield key, value

    def read_file(self, name: str) -> bytes:
        """Return the content of a side file."""
        return self._files.read(name)

    def discard_file(self, name: str) -> None:
        """Remove a side file once this transaction is durable."""
        self.discarded.append(name)

    def before_commit(self, call: Callable[[], None]) -> None:
        """Call `call` once the last operation of this commit has run."""
        self._last_calls.append(call)

    def finish(self) -> None:
        """Make the calls that were left for the end."""
        calls, self._last_calls = self._last_calls, []
        for call in calls:
            call()
        # What was shared refers to this transaction: a circle would wait for the garbage collector.
        self.shared = None


def _open_environment(path: Path, settings: StoreSettings) -> Any:
    sync = settings.durability == "fsync"
    try:
        return lmdb.open(
            str(path), map_size=settings.map_bytes, sync=sync, metasync=False, max_readers=MAX_READERS
        )
    except (lmdb.InvalidError, lmdb.VersionMismatchError, lmdb.CorruptedError) as error:
        raise StoreVersionError(f"{path} is not a store of this version: {error}") from error
    except lmdb.DiskError as error:
        raise StoreError(
            f"no space left to make a store in {path}", remedy="Free space on its disk."
        ) from error
    except lmdb.Error as error:
        raise ConfigError(
            f"cannot open the store in {path}: {error}",
            remedy="Check its permissions; if memory cannot be mapped, lower store.map_bytes.",
        ) from error


def _explained(error: lmdb.Error, path: Path, env: Any) -> StoreError:
    if isinstance(error, lmdb.MapFullError):
        return StoreError(
            f"the store in {path} is full, and its map cannot grow",
            got=f"{env.info()['map_size']} bytes mapped",
            remedy="Nothing was lost; raise the limit of virtual memory (ulimit -v).",
        )
    # lmdb reports a short write, which is how a disk becomes full, as an input/output error.
    if isinstance(error, lmdb.DiskError) or str(error).endswith(_WRITE_FAILURES):
        return StoreError(
            f"the disk of the store in {path} is full, or fails: {error}",
            got=f"{shutil.disk_usage(path).free} bytes free",
            remedy="Free space on it; nothing was lost, the call can be made again.",
        )
    if isinstance(error, (lmdb.CorruptedError, lmdb.PageNotFoundError)):
        return DamagedError(
            f"the file of the store in {path} is damaged: {error}",
            remedy="Check its disk; restore the store from a copy, or start a new run.",
        )
    return StoreError(f"the store in {path} failed: {error}")


def _can_map(num_bytes: int) -> bool:
    """Return whether there are addresses: lmdb, refused them, would be left without a map."""
    try:
        with mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ):
            return True
    except (OSError, OverflowError, ValueError):
        return False


def _side_files_in_use(txn: Txn) -> set[str]:
    members = (member for key, raw in txn.scan(GROUPS) for member in decode_group(key, raw).members)
    quarantined = {decode_file(key, raw)[0] for key, raw in txn.scan(QUARANTINED_FILES)}
    return quarantined | {member.side_file for member in members if member.side_file}
