"""Looking into a redis store: nothing expires, nothing is settled, not a key changes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, Self

from forebay.clock import Clock
from forebay.errors import ConfigError, StoreError, StoreVersionError
from forebay.staleness import OutstandingGroup
from forebay.store.batches import RawGroup, whole_group
from forebay.store.protocol import JournalEntry, StoreStats, TakenGroup
from forebay.store.records import Group, decode_spec, spec_key
from forebay.store.redis import scripts
from forebay.store.redis.auditing import contradictions, read_snapshot, strangers
from forebay.store.redis.packing import (
    FORMAT_VERSION,
    pairs,
    unpack_entries,
    unpack_group,
    unpack_stats,
    unpack_totals,
)
from forebay.store.redis.server import Server
from forebay.store.settings import StoreSettings
from forebay.store.view import PAGE_GROUPS, SetAside, StoredGroup, outstanding_group, stored_group

# Most bytes of frames that one answer holds, unless a single group is larger.
_PAGE_BYTES: Final = 16 << 20
_SCAN_COUNT: Final = 1000


class RedisView:
    """A `StoreView` of a redis store; made by `view_redis`, and what `RedisStore` reads with.

    Args:
        server: The server; closed with the view.
        settings: The capacities that are shown beside what is used.
        clock: Dates the snapshots.
    """

    def __init__(self, server: Server, settings: StoreSettings, clock: Clock) -> None:
        self._server, self._settings, self._clock = server, settings, clock

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def check_owner(self, run_id: str) -> None:
        """Refuse a store that is not there, or not one that this program may touch.

        Raises:
            ConfigError: There is none.
            StoreVersionError: It has another format, or is another run's.
        """
        stored_format, owner = self._server.ask("HMGET", self._key("meta"), "format", "run_id")
        if stored_format is None:
            raise ConfigError(
                f"there is no store of run {run_id} on {self._server.address} yet",
                remedy="Start the run first.",
            )
        if stored_format != b"%d" % FORMAT_VERSION or owner != run_id.encode():
            found, run = (str(value or b"", errors="replace") for value in (stored_format, owner))
            raise StoreVersionError(
                f"the store on {self._server.address} has another format, or is another run's",
                got=f"format {found}, run {run}",
                limit=f"format {FORMAT_VERSION}, run {run_id}",
                remedy="Use the forebay version that made it; it was not touched.",
            )

    def stats(self) -> StoreStats:
        """Return a snapshot; see `StoreView.stats`."""
        (reply,) = self._server.run(scripts.STATS, self._clock.wall_s())
        totals = unpack_totals(self._key("meta"), reply)
        return unpack_stats(totals, self._settings, self._clock.wall_s())

    def groups(self) -> Iterator[StoredGroup]:
        """Yield every group, page by page, in order of dispatch; see `StoreView.groups`."""
        (names,) = self._server.run(scripts.GROUP_IDS, self._clock.wall_s())
        for at in range(0, len(names), PAGE_GROUPS):
            page = [name.decode() for name in names[at : at + PAGE_GROUPS]]
            yield from (stored_group(group) for group in self._records(page) if group is not None)

    def find_group(self, group_id: str) -> StoredGroup | None:
        """Return a group, or None; see `StoreView.find_group`."""
        (group,) = self._records([group_id])
        return None if group is None else stored_group(group)

    def read_raw(self, group_id: str) -> RawGroup:
        """Return a group with its frames; see `StoreView.read_raw`."""
        before = self._server.read("GET", self._key(f"g:{group_id}"))
        while True:
            (raw,) = self.read_many([group_id])
            after = self._server.read("GET", self._key(f"g:{group_id}"))
            if raw is None:
                raise StoreError("the store holds no such group", got=group_id)
            if before == after:
                return raw
            before = after

    def read_many(self, group_ids: Sequence[str]) -> list[RawGroup | None]:
        """Return groups with their frames, each as it lay there at some moment; None for one that is gone."""
        if not group_ids:
            return []
        records = self._records(group_ids)
        specs = self._server.read("MGET", *(self._key(f"t:{name}") for name in group_ids))
        wanted = [
            [
                (index, member.num_bytes)
                for index, member in enumerate(group.members)
                if member.state == "arrived"
            ]
            if group is not None
            else []
            for group in records
        ]
        frames = self._frames(
            [
                (self._key(f"p:{name}:{i}"), size)
                for name, ms in zip(group_ids, wanted, strict=True)
                for i, size in ms
            ]
        )
        return [
            None
            if group is None or spec is None
            else RawGroup(
                decode_spec(spec_key(name), spec),
                tuple((i, next(frames)) for i, _ in members),
                self._server.run_id,
                dispatched_s=group.dispatched_s,
            )
            for name, group, spec, members in zip(group_ids, records, specs, wanted, strict=True)
        ]

    def read_group(self, group_id: str) -> TakenGroup:
        """Return a stored group, decoded; see `StoreView.read_group`."""
        return whole_group(self.read_raw(group_id))

    def scan(self) -> Iterator[OutstandingGroup]:
        """Yield every group as the staleness rules see it; see `StoreView.scan`."""
        return map(outstanding_group, self.groups())

    def journal(self) -> tuple[JournalEntry, ...]:
        """Return every batch that was consumed and is not forgotten; see `StoreView.journal`."""
        return unpack_entries(self._server.run(scripts.ENTRIES, self._clock.wall_s())[0])

    def set_aside(self) -> tuple[SetAside, ...]:
        """Return the frames in quarantine; see `StoreView.set_aside`."""
        kept = pairs(self._server.read("HGETALL", self._key("quarantine")))
        places = ((*name.rpartition("/")[::2], frame) for name, frame in kept.items())
        return tuple(SetAside(group_id=name, member=int(index), frame=frame) for name, index, frame in places)

    def more(self, watch: int, first: int, last: int) -> list[Any]:
        """Return names and summaries of live groups by their places, or nothing if `watch` has moved on."""
        return self._server.run(scripts.MORE, self._clock.wall_s(), watch, first, last)

    def audit(self) -> tuple[str, ...]:
        """Recount everything from the records of one snapshot; see `StoreView.audit`.

        A key that nothing accounts for counts only if it was there before the snapshot and still is after it:
        others go on meanwhile.
        """
        before = self._names()
        totals_reply, names, groups, *rest = self._server.run(scripts.AUDIT, self._clock.wall_s())
        totals = unpack_totals(self._key("meta"), totals_reply)
        stats = unpack_stats(totals, self._settings, self._clock.wall_s())
        snapshot = read_snapshot(
            rest,
            totals,
            stats,
            (self._unpack(name.decode(), raw) for name, raw in zip(names, groups, strict=True) if raw),
        )
        unknown = strangers(before, snapshot.groups)
        left = sorted(unknown & self._names()) if unknown else []
        return (*contradictions(snapshot), *(f"a key that nothing accounts for: {name}" for name in left))

    def close(self) -> None:
        """Disconnect."""
        self._server.close()

    def _key(self, name: str) -> str:
        return self._server.prefix + name

    def _records(self, group_ids: Sequence[str]) -> list[Group | None]:
        found = self._server.read("MGET", *(self._key(f"g:{name}") for name in group_ids))
        return [
            None if raw is None else self._unpack(name, raw)
            for name, raw in zip(group_ids, found, strict=True)
        ]

    def _unpack(self, group_id: str, raw: bytes) -> Group:
        return unpack_group(self._server.prefix, group_id, raw)

    def _frames(self, wanted: Sequence[tuple[str, int]]) -> Iterator[bytes]:
        """Yield the values of keys of known sizes, in order; empty where there is none."""
        page: list[str] = []
        num_bytes = 0
        for key, size in wanted:
            if page and num_bytes + size > _PAGE_BYTES:
                yield from self._values(page)
                page, num_bytes = [], 0
            page.append(key)
            num_bytes += size
        if page:
            yield from self._values(page)

    def _values(self, keys: Sequence[str]) -> list[bytes]:
        found: list[bytes | None] = self._server.read("MGET", *keys)
        return [value or b"" for value in found]

    def _names(self) -> set[str]:
        """Return every key of the store, without the prefix."""
        names: set[str] = set()
        pattern = re.sub(r"([\[\]*?\\])", r"\\\1", self._server.prefix) + "*"
        cursor: Any = b"0"
        while True:
            cursor, found = self._server.read("SCAN", cursor, "MATCH", pattern, "COUNT", _SCAN_COUNT)
            names.update(name.decode().removeprefix(self._server.prefix) for name in found)
            if int(cursor) == 0:
                return names
