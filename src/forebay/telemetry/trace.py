"""What a process did when: slices of time on named tracks, in one bounded file per process.

A slice is a stretch of time with a name: a wait named by its cause, or work. A track holds slices that lie
inside or after one another: a thread, or one of the lanes on which things that overlap are spread. Slices
that belong to a member of a group carry its name, so that its path can be followed across processes; of
those, only every `every`-th member is traced, the same ones in every process.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from forebay.clock import Clock, SystemClock

FORMAT: Final = 1
SUFFIX: Final = ".jsonl"
ROTATED_SUFFIX: Final = ".jsonl.1"
_MAX_PENDING = 256
_MAX_PENDING_S = 1.0
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_log = logging.getLogger(__name__)

Argument: TypeAlias = str | int | float | bool | None


class ProcessRecord(msgspec.Struct, frozen=True, array_like=True, tag="p"):
    """The first line of a trace file.

    Args:
        format: Number of this format.
        role: What the process is, such as `learner` or `actor-0`.
        pid: Its id.
        host: The name of its host.
        boot: Identity of that host's monotonic clock: processes with the same one share it.
        wall_s: Wall clock when the trace began.
        monotonic_s: The monotonic clock at the same moment.
    """

    format: int
    role: str
    pid: int
    host: str
    boot: str
    wall_s: float
    monotonic_s: float


class SliceRecord(msgspec.Struct, frozen=True, array_like=True, tag="s"):
    """A stretch of time on a track.

    Args:
        track: Where it lies.
        name: What it is.
        began_ns: Monotonic clock at its begin.
        duration_ns: Its length.
        members: The members of groups whose path leads through it.
        arguments: What else is known about it.
    """

    track: str
    name: str
    began_ns: int
    duration_ns: int
    members: tuple[str, ...] = ()
    arguments: dict[str, Argument] = {}


class CounterRecord(msgspec.Struct, frozen=True, array_like=True, tag="c"):
    """A number that changed at a moment."""

    name: str
    time_ns: int
    value: float


Record = ProcessRecord | SliceRecord | CounterRecord


def member_name(group_id: str, member: int) -> str:
    """Return the name under which a member of a group is followed, whatever the attempt."""
    return f"{group_id}.{member}"


def member_of(trajectory_id: str) -> str:
    """Return the member that a trajectory `GROUP.MEMBER.ATTEMPT`, or an episode `TRAJECTORY.…`, belongs to.

    Example:
        >>> member_of("g00000007.3.0.actor-0-4711.12")
        'g00000007.3'
    """
    return ".".join(trajectory_id.split(".", 2)[:2])


class Tracer:
    """Records what this process does; every method may be called from any thread.

    Events wait in memory for at most a second, or until there are many, and are then appended in one write.
    At half of `max_bytes` the file becomes `NAME.1`, replacing the one before, so that the newest time is
    always there. A disk that fails ends the trace and not the process.

    Args:
        path: The file, which must be new; None to record nothing.
        role: What this process is.
        clock: Source of time.
        every: Of so many members one is followed.
        max_bytes: Most bytes on disk.

    Attributes:
        enabled: Whether anything is recorded.
    """

    def __init__(
        self, path: Path | None, role: str, clock: Clock, *, every: int = 1, max_bytes: int = 32 * 2**20
    ) -> None:
        self._path = path
        self._role = role
        self._clock = clock
        self._every = every
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._pending: list[Record] = []
        self._flushed_s = clock.monotonic_s()
        self._num_bytes = 0
        self._lanes: dict[str, list[float]] = {}
        self.enabled = path is not None
        if path is not None:
            self._pending.append(self._process_record())

    def now_s(self) -> float:
        """Return the time on the clock of the trace."""
        return self._clock.monotonic_s()

    def follows(self, member: str) -> bool:
        """Return whether a member of a group is followed."""
        return self.enabled and zlib.crc32(member.encode()) % self._every == 0

    def followed(self, trajectory_ids: Iterable[str]) -> tuple[str, ...]:
        """Return the members among those of some trajectories that are followed."""
        if not self.enabled:
            return ()
        return tuple(filter(self.follows, map(member_of, trajectory_ids)))

    def slice(
        self,
        name: str,
        began_s: float,
        ended_s: float,
        *,
        track: str | None = None,
        members: tuple[str, ...] = (),
        arguments: Mapping[str, Argument] | None = None,
    ) -> None:
        """Record a stretch of time that has ended.

        Args:
            name: What it was.
            began_s: Its begin on the monotonic clock.
            ended_s: Its end.
            track: Where it lies; the calling thread by default.
            members: Members whose path leads through it.
            arguments: What else is known about it.
        """
        if self.enabled:
            self._add(
                SliceRecord(
                    track or threading.current_thread().name,
                    name,
                    _ns(began_s),
                    max(0, _ns(ended_s) - _ns(began_s)),
                    members,
                    dict(arguments or {}),
                )
            )

    @contextmanager
    def span(
        self, name: str, *, members: tuple[str, ...] = (), arguments: Mapping[str, Argument] | None = None
    ) -> Iterator[None]:
        """Record the time inside the block on the calling thread's track."""
        if not self.enabled:
            yield
            return
        began_s = self._clock.monotonic_s()
        try:
            yield
        finally:
            self.slice(name, began_s, self._clock.monotonic_s(), members=members, arguments=arguments)

    def observe(self, name: str, began_s: float, ended_s: float) -> None:
        """Record a stretch of time of the calling thread; for whoever books time by name already."""
        self.slice(name, began_s, ended_s)

    def lane(self, kind: str, began_s: float, ended_s: float) -> str:
        """Return a track of a kind on which nothing lies after `began_s` yet, and occupy it until `ended_s`.

        For things that overlap and are recorded when they end.
        """
        with self._lock:
            ends = self._lanes.setdefault(kind, [])
            free = (index for index, end_s in enumerate(ends) if end_s <= began_s)
            index = next(free, len(ends))
            ends[index:] = [ended_s, *ends[index + 1 :]]
        return f"{kind} {index}"

    def counter(self, name: str, value: float) -> None:
        """Record the value of a number now."""
        if self.enabled:
            self._add(CounterRecord(name, _ns(self._clock.monotonic_s()), value))

    def flush(self) -> None:
        """Write what waits in memory."""
        with self._lock:
            self._flush()

    def close(self) -> None:
        """Write what waits in memory, and record nothing more."""
        self.flush()
        self.enabled = False

    def _add(self, record: Record) -> None:
        with self._lock:
            self._pending.append(record)
            due = self._clock.monotonic_s() - self._flushed_s >= _MAX_PENDING_S
            if due or len(self._pending) >= _MAX_PENDING:
                self._flush()

    def _flush(self) -> None:
        self._flushed_s = self._clock.monotonic_s()
        if self._path is None or not self.enabled or not self._pending:
            return
        lines = b"".join(msgspec.json.encode(record) + b"\n" for record in self._pending)
        self._pending.clear()
        try:
            self._append(self._path, lines)
        except OSError as error:
            self.enabled = False
            _log.warning("the trace of this process ends: %s", error)

    def _append(self, path: Path, lines: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if self._num_bytes and self._num_bytes + len(lines) > self._max_bytes // 2:
            path.replace(path.with_name(f"{path.stem}{ROTATED_SUFFIX}"))
            lines = msgspec.json.encode(self._process_record()) + b"\n" + lines
            self._num_bytes = 0
        with path.open("ab", buffering=0) as file:
            file.write(lines)
        self._num_bytes += len(lines)

    def _process_record(self) -> ProcessRecord:
        return ProcessRecord(
            format=FORMAT,
            role=self._role,
            pid=os.getpid(),
            host=socket.gethostname(),
            boot=_boot_id(),
            wall_s=self._clock.wall_s(),
            monotonic_s=self._clock.monotonic_s(),
        )


# Records nothing.
OFF: Final = Tracer(None, "off", SystemClock())


def _ns(time_s: float) -> int:
    # Begin and end are rounded alike, so that slices that lie inside one another stay so.
    return round(time_s * 1e9)


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return socket.gethostname()


_decoder = msgspec.json.Decoder(Record)


def read_trace(path: Path) -> Iterator[Record]:
    """Yield the records of a trace file: none if it is missing, and no line that a crash has torn."""
    try:
        file = path.open("rb")
    except FileNotFoundError:  # its process is about to begin a new one
        return
    with file:
        for line in file:
            try:
                yield _decoder.decode(line)
            except msgspec.MsgspecError:
                continue
