"""The disk of a run: room, file system, how long it takes to make bytes durable, and a store on it."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from forebay.clock import Clock
from forebay.launch.probes.finding import Finding
from forebay.store import StoreSettings, open_store
from forebay.store.file_systems import LOCAL_REMEDY, existing, filesystem_of, is_network

_GIB = 2**30
_MIN_FREE_BYTES = 2 * _GIB
_SLOW_FSYNC_S = 0.05
_UNSURE = ("fuse", "virtiofs", "vboxsf", "prl_fs")
_IN_MEMORY = ("tmpfs", "ramfs")


def look_at_disk(directory: Path) -> list[Finding]:
    """Check room and kind of the file system that runs will be written to."""
    place = existing(directory)
    free_bytes = shutil.disk_usage(place).free
    kind = filesystem_of(place)
    return [_room(directory, free_bytes, os.statvfs(place).f_files, os.statvfs(place).f_favail), *_kind(kind)]


def look_at_writing(directory: Path, clock: Clock) -> list[Finding]:
    """Write a small file and make it durable, as every result of an actor is."""
    with tempfile.TemporaryFile(dir=existing(directory)) as file:
        file.write(bytes(4096))
        file.flush()
        started_s = clock.monotonic_s()
        os.fsync(file.fileno())
        took_s = clock.monotonic_s() - started_s
    seen = f"{1000 * took_s:.1f} ms to make a small file durable"
    if took_s > _SLOW_FSYNC_S:
        remedy = 'Use a faster disk, or store.durability="os": survives kill -9, not power loss.'
        return [Finding("fsync", "warn", seen, remedy)]
    return [Finding("fsync", "ok", seen)]


def look_at_store(directory: Path) -> list[Finding]:
    """Make a store there, commit to it, and remove it."""
    with tempfile.TemporaryDirectory(dir=existing(directory)) as scratch:
        store = open_store(StoreSettings(path=Path(scratch) / "store"), "doctor")
        try:
            store.rewind(0)
        finally:
            store.close()
    return [Finding("store", "ok", "opens and commits there")]


def look_at_cache(directory: Path) -> list[Finding]:
    """Check that compiled programs can be kept between starts."""
    try:
        with tempfile.TemporaryFile(dir=existing(directory)):
            return [Finding("compile cache", "ok", f"{directory}")]
    except OSError as error:
        remedy = "Set JAX_COMPILATION_CACHE_DIR to a directory that can be written: starts take longer."
        return [Finding("compile cache", "warn", f"{directory}: {error.strerror}", remedy)]


def _room(directory: Path, free_bytes: int, num_inodes: int, free_inodes: int) -> Finding:
    seen = f"{free_bytes / _GIB:.1f} GiB free for {directory}"
    if num_inodes and not free_inodes:
        return Finding("disk", "bad", "no inode is free", "Remove files, or set run.directory elsewhere.")
    if free_bytes < _MIN_FREE_BYTES:
        return Finding("disk", "bad", seen, "Free space, or set run.directory to another disk.")
    return Finding("disk", "ok", seen)


def _kind(kind: str) -> list[Finding]:
    if is_network(kind):
        return [Finding("file system", "bad", f"{kind}: a store does not work over a network", LOCAL_REMEDY)]
    if kind.startswith(_UNSURE):
        seen = f"{kind}: whether memory maps and locks hold depends on what is behind it"
        return [Finding("file system", "warn", seen, LOCAL_REMEDY)]
    if kind in _IN_MEMORY:
        seen = f"{kind}: lies in memory, nothing survives a restart of the machine"
        return [Finding("file system", "warn", seen, "Set run.directory to a disk.")]
    if kind == "overlay":
        seen = "overlay: what is written goes with the container"
        return [Finding("file system", "note", seen, "Mount a volume at run.directory to keep it.")]
    return [Finding("file system", "ok", kind or "unknown")]
