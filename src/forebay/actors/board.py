"""The board: notes that the actor processes of a run leave for one another."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple, Protocol
from urllib.parse import quote, unquote

import msgspec

from forebay.actors.levels import Turn

_SUFFIX: Final = ".note"
# Notes of processes that ended without taking theirs away.
_FORGOTTEN_S: Final = 3600.0


class Sight(msgspec.Struct, frozen=True, array_like=True):
    """What episodes of a process did between two of its looks.

    Args:
        number: Counts the looks.
        turns: Turns that ended, by environment; times on the clock of the process.
        failures: Resets and steps that failed, by environment.
        episodes_s: Times of the episodes that ended, by environment.
    """

    number: int
    turns: dict[str, tuple[Turn, ...]] = {}
    failures: dict[str, int] = {}
    episodes_s: dict[str, tuple[float, ...]] = {}


class Note(msgspec.Struct, frozen=True, array_like=True):
    """What a process tells the others.

    Args:
        joined_s: Wall clock at its beginning: the one that has been there longest decides.
        now_s: Its monotonic clock when it wrote this.
        live: Episodes that hold a place, by environment.
        waits: Whether the store had as much work as it asked for, by environment.
        sights: What has not been taken in yet by the one that decides.
        heard: The newest sight taken in of each process, by its name, if it decides.
        plan: Episodes that all processes together may run, by environment, if it decides.
    """

    joined_s: float
    now_s: float
    live: dict[str, int] = {}
    waits: dict[str, bool] = {}
    sights: tuple[Sight, ...] = ()
    heard: dict[str, int] = {}
    plan: dict[str, int] | None = None


class Posted(NamedTuple):
    """A note, and how long before the reader's own newest one it was written, in seconds."""

    age_s: float
    note: Note


class Board(Protocol):
    """Where the processes of a run see one another's newest note."""

    def post(self, note: Note) -> None:
        """Put this process's note in the place of its last one; without effect once it has left."""
        ...

    def read(self) -> dict[str, Posted]:
        """Return the newest note of each process by its name, this one's too."""
        ...

    def leave(self) -> None:
        """Take this process's note away for good: one that is being posted by another thread as well."""
        ...


class MemoryBoard:
    """A board for processes that share memory, and for one that is alone.

    Args:
        name: This process.
        now_s: Monotonic clock.
        notes: What the others share.
    """

    def __init__(
        self, name: str, now_s: Callable[[], float], notes: dict[str, tuple[float, Note]] | None = None
    ) -> None:
        self._name, self._now_s = name, now_s
        self._notes = notes if notes is not None else {}
        self._has_left, self._posting = False, threading.Lock()

    def post(self, note: Note) -> None:
        """Replace this process's note, unless it has left."""
        with self._posting:
            if not self._has_left:
                self._notes[self._name] = self._now_s(), note

    def read(self) -> dict[str, Posted]:
        """Return every process's note."""
        return {name: Posted(self._now_s() - at_s, note) for name, (at_s, note) in self._notes.items()}

    def leave(self) -> None:
        """Take the note away, for good."""
        with self._posting:
            self._has_left = True
            self._notes.pop(self._name, None)


class DirectoryBoard:
    """A board in a directory that all processes share, a file per process.

    How old a note is, its file's time says. Where a file server sets that, the clocks of several machines
    need not agree; else they must, to a second or so.

    Args:
        path: The directory; made if it is missing.
        name: This process, different at every start of it.
    """

    def __init__(self, path: Path, name: str) -> None:
        self._path, self._name = path, name
        self._mine = path / (quote(name, safe="") + _SUFFIX)
        self._written_s = 0.0
        self._has_left, self._posting = False, threading.Lock()
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(Note)

    def post(self, note: Note) -> None:
        """Write the note beside the old one, and rename it, unless this process has left.

        Raises:
            OSError: The file system refuses.
        """
        with self._posting:
            if self._has_left:
                return
            self._path.mkdir(parents=True, exist_ok=True)
            partial = self._mine.with_suffix(".partial")
            partial.write_bytes(self._encoder.encode(note))
            partial.replace(self._mine)
            self._written_s = self._mine.stat().st_mtime

    def read(self) -> dict[str, Posted]:
        """Return what can be read; a note that another version of the program wrote is passed over.

        Raises:
            OSError: The file system refuses.
        """
        found: dict[str, Posted] = {}
        with os.scandir(self._path) as entries:
            files = [Path(entry) for entry in entries if entry.name.endswith(_SUFFIX)]
        for file in files:
            try:
                age_s = self._written_s - file.stat().st_mtime
                if age_s > _FORGOTTEN_S:
                    file.unlink(missing_ok=True)
                    continue
                note = self._decoder.decode(file.read_bytes())
            except (FileNotFoundError, msgspec.DecodeError):
                continue
            found[unquote(file.name.removesuffix(_SUFFIX))] = Posted(max(0.0, age_s), note)
        return found

    def leave(self) -> None:
        """Remove the file, for good.

        Raises:
            OSError: The file system refuses.
        """
        with self._posting:
            self._has_left = True
            self._mine.unlink(missing_ok=True)


def shifted(posted: Posted, sight: Sight, now_s: float) -> Mapping[str, tuple[Turn, ...]]:
    """Return the turns of a sight with their times on the reader's clock.

    Args:
        posted: The note that holds it.
        sight: The sight.
        now_s: The reader's monotonic clock.
    """
    by_s = now_s - posted.age_s - posted.note.now_s
    return {
        name: tuple(turn._replace(began_s=turn.began_s + by_s) for turn in turns)
        for name, turns in sight.turns.items()
    }
