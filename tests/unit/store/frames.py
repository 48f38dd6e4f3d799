"""Stored frames and records, reached past the store: what a bad disk or a hostile writer would do to them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from forebay.store.records import (
    CLAIMABLE,
    LIVE,
    META_KEY,
    decode_group,
    group_key,
    journal_key,
    payload_key,
    spec_key,
)


class Frames(Protocol):
    """The frames of a store."""

    def read(self, group_id: str, member: int) -> bytes:
        """Return a member's frame."""
        ...

    def write(self, group_id: str, member: int, frame: bytes) -> None:
        """Exchange a member's frame."""
        ...

    def remove(self, group_id: str, member: int) -> None:
        """Lose a member's frame."""
        ...


class Records(Protocol):
    """The records of a store that are not frames: of g0, recorded in step 1, and of g1, which is settled."""

    kinds: tuple[str, ...]

    def read(self, kind: str) -> bytes:
        """Return a record."""
        ...

    def write(self, kind: str, raw: bytes) -> None:
        """Exchange a record."""
        ...

    def list_stranger(self, group_id: str) -> None:
        """List a group that is not there among those that can be claimed, before all others."""
        ...


def records_of(store: Any, settings: Mapping[str, Any]) -> Records:
    """Return the records of a store, whatever its engine.

    Args:
        store: An open store.
        settings: What it was opened with.
    """
    return ServedRecords(store) if settings["engine"] == "redis" else KeptRecords(store)


def frames_of(store: Any, settings: Mapping[str, Any]) -> Frames:
    """Return the frames of a store, whatever its engine.

    Args:
        store: An open store.
        settings: What it was opened with.
    """
    if settings["engine"] == "redis":
        return ServedFrames(store)
    return KeptFrames(store, settings["path"] / "payloads" if "path" in settings else None)


class ServedFrames:
    """The frames of a store on a server.

    Args:
        store: An open store.
    """

    def __init__(self, store: Any) -> None:
        self._server = store._server

    def read(self, group_id: str, member: int) -> bytes:
        """Return a member's frame."""
        return bytes(self._server.ask("GET", self._key(group_id, member)))

    def write(self, group_id: str, member: int, frame: bytes) -> None:
        """Exchange a member's frame."""
        self._server.ask("SET", self._key(group_id, member), frame)

    def remove(self, group_id: str, member: int) -> None:
        """Lose a member's frame."""
        self._server.ask("DEL", self._key(group_id, member))

    def _key(self, group_id: str, member: int) -> str:
        return f"{self._server.prefix}p:{group_id}:{member}"


class KeptFrames:
    """The frames of a store over an ordered engine, inside it or in side files.

    Args:
        store: An open store.
        directory: Where its side files lie; None if it has none.
    """

    def __init__(self, store: Any, directory: Path | None) -> None:
        self._engine, self._directory = store._transactions.engine, directory

    def read(self, group_id: str, member: int) -> bytes:
        """Return a member's frame."""
        file = self._side_file(group_id, member)
        if file is not None:
            return file.read_bytes()
        return bytes(self._engine.read(lambda txn: txn.get(payload_key(group_id, member))))

    def write(self, group_id: str, member: int, frame: bytes) -> None:
        """Exchange a member's frame."""
        file = self._side_file(group_id, member)
        if file is not None:
            file.write_bytes(frame)
            return
        key = payload_key(group_id, member)
        self._engine.write(lambda txn: txn.put(key, frame))

    def remove(self, group_id: str, member: int) -> None:
        """Lose a member's frame."""
        file = self._side_file(group_id, member)
        if file is not None:
            file.unlink()
            return
        self._engine.write(lambda txn: txn.delete(payload_key(group_id, member)))

    def _side_file(self, group_id: str, member: int) -> Path | None:
        key = group_key(group_id)
        group = decode_group(key, self._engine.read(lambda txn: txn.get(key)))
        name = group.members[member].side_file
        return self._directory / name if name and self._directory else None


class ServedRecords:
    """The records of a store on a server.

    Args:
        store: An open store.
    """

    kinds = ("totals", "group", "task", "summary", "entry", "batch")

    def __init__(self, store: Any) -> None:
        self._server = store._server

    def read(self, kind: str) -> bytes:
        """Return a record."""
        verb, *place = self._place(kind)
        return bytes(self._server.ask(f"{verb}GET", *place))

    def write(self, kind: str, raw: bytes) -> None:
        """Exchange a record."""
        verb, *place = self._place(kind)
        self._server.ask(f"{verb}SET", *place, raw)

    def list_stranger(self, group_id: str) -> None:
        """List a group that is not there among those that can be claimed, before all others."""
        self._server.ask("ZADD", f"{self._server.prefix}claimable", -1, group_id)

    def _place(self, kind: str) -> tuple[str, ...]:
        prefix = self._server.prefix
        return {
            "totals": ("H", f"{prefix}meta", "totals"),
            "group": ("", f"{prefix}g:g0"),
            "task": ("", f"{prefix}t:g0"),
            "summary": ("H", f"{prefix}summaries", "g1"),
            "entry": ("H", f"{prefix}entries", "1"),
            "batch": ("H", f"{prefix}batches", "1"),
        }[kind]


class KeptRecords:
    """The records of a store over an ordered engine.

    Args:
        store: An open store.
    """

    kinds = ("totals", "group", "task", "summary", "entry")

    def __init__(self, store: Any) -> None:
        self._engine = store._transactions.engine

    def read(self, kind: str) -> bytes:
        """Return a record."""
        return bytes(self._engine.read(lambda txn: txn.get(self._key(txn, kind))))

    def write(self, kind: str, raw: bytes) -> None:
        """Exchange a record."""
        self._engine.write(lambda txn: txn.put(self._key(txn, kind), raw))

    def list_stranger(self, group_id: str) -> None:
        """List a group that is not there among those that can be claimed, before all others."""
        self._engine.write(lambda txn: txn.put(CLAIMABLE + bytes(8) + group_id.encode(), b""))

    def _key(self, txn: Any, kind: str) -> bytes:
        keys = {"totals": META_KEY, "group": group_key("g0"), "task": spec_key("g0"), "entry": journal_key(1)}
        return keys[kind] if kind in keys else bytes(txn.first(LIVE)[0])
