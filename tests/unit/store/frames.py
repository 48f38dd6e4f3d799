"""Stored frames, reached past the store: what a bad disk or a hostile writer would do to them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from forebay.store.records import decode_group, group_key, payload_key


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
        group = decode_group(self._engine.read(lambda txn: txn.get(group_key(group_id))))
        name = group.members[member].side_file
        return self._directory / name if name and self._directory else None
