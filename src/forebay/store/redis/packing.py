"""Records as the scripts keep them on the server, and as Python reads them.

Each ends with a checksum over its key and itself: the beginning of a SHA-1, which is what the server's script
engine can compute.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple, get_args

import msgspec

from forebay.staleness import Fork, OutstandingGroup
from forebay.store.protocol import GroupSpec, JournalEntry, Slot, StoreStats
from forebay.store.records import (
    Gauges,
    Group,
    GroupState,
    Member,
    MemberState,
    damaged,
    decode_entry,
    decode_spec,
    journal_key,
    spec_key,
)
from forebay.store.settings import StoreSettings
from forebay.trajectory import PolicyVersion

FORMAT_VERSION: Final = 2
NO_VERSION: Final = -1
_CHECKSUM_BYTES: Final = 16
_GROUP_STATES: Final = get_args(GroupState)
_MEMBER_STATES: Final = get_args(MemberState)
_HEAD: Final = struct.Struct(">12d")
_MEMBER: Final = struct.Struct(">6d")
# In the order of `constants.lua`; two numbers for each fork follow.
_TOTALS: Final = (
    "begun", "incarnation", "published_incarnation", "published_version", "next_serial", "committed_step",
    "recorded_step", "replayed_step", "unpublished_groups", "watch", *Gauges._fields,
)  # fmt: skip


class PackedSummary(NamedTuple):
    """What `take` looks at, as `ledger.lua` packs it; the name is that of its field."""

    serial: int
    state: GroupState
    start: PolicyVersion | None
    num_bytes: int
    dispatched_s: float
    environment: str


class PackedSlots(NamedTuple):
    """The leased members of a group, as `claim.lua` packs them: in `leases`, member and attempt of each."""

    group_id: str
    group_size: int
    incarnation: int
    min_incarnation: int
    min_version: int
    lease_expires_s: float
    group_deadline_s: float
    leases: tuple[int, ...]


_decode_slots = msgspec.msgpack.Decoder(tuple[PackedSlots, ...]).decode


def seal(key: str, body: bytes) -> bytes:
    """Return a record as it lies under a key."""
    return body + _checksum(key, body)


def _checksum(key: str, body: bytes) -> bytes:
    digest = hashlib.sha1(key.encode() + body, usedforsecurity=False).hexdigest()
    return digest[:_CHECKSUM_BYTES].encode()


def _unseal(key: str, raw: bytes, name: str) -> bytes:
    body = raw[:-_CHECKSUM_BYTES]
    if _checksum(key, body) != raw[-_CHECKSUM_BYTES:]:
        raise damaged(name, key, "its checksum does not match")
    return body


pack_values: Final = msgspec.msgpack.Encoder().encode


def unpack_version(incarnation: int, version: int) -> PolicyVersion | None:
    """Return a version, or None where there is none."""
    return None if incarnation == NO_VERSION else PolicyVersion(incarnation, version)


def pack_version(version: PolicyVersion | None) -> tuple[int, int]:
    """Return a version as the scripts take it."""
    return (NO_VERSION, NO_VERSION) if version is None else (version.incarnation, version.version)


def unpack_slots(packed: bytes, specs: Sequence[bytes | None], run_id: str) -> tuple[Slot, ...]:
    """Return the slots of a claim.

    Args:
        packed: The slots, as `claim.lua` packs them.
        specs: The specification of each group, in their order; None if it is gone, which happens only when a
            claim is answered again.
        run_id: The run that dispatched them.
    """
    found: list[Slot] = []
    for group, raw in zip(_decode_slots(packed), specs, strict=True):
        if raw is None:
            continue
        task = decode_spec(spec_key(group.group_id), raw).task
        min_version = PolicyVersion(group.min_incarnation, group.min_version)
        found += (
            Slot(
                group_id=group.group_id,
                member=member,
                attempt=attempt,
                task=task,
                group_size=group.group_size,
                incarnation=group.incarnation,
                min_version=min_version,
                lease_expires_s=group.lease_expires_s,
                group_deadline_s=group.group_deadline_s,
                run_id=run_id,
            )
            for member, attempt in zip(group.leases[::2], group.leases[1::2], strict=True)
        )
    return tuple(found)


def unpack_group(prefix: str, group_id: str, raw: bytes) -> Group:
    """Return a group's record.

    Args:
        prefix: Of the store's keys.
        group_id: Its name.
        raw: As it lies on the server.

    Raises:
        DamagedError: It is not as it was written.
    """
    raw = _unseal(f"{prefix}g:{group_id}", raw, "record of a group")
    head = _HEAD.unpack_from(raw)
    size, serial, min_size, min_incarnation, min_version = map(int, head[:5])
    environment, at = _text(raw, _HEAD.size)
    members = []
    for _ in range(size):
        state, attempt, lease_expires_s, incarnation, version, num_bytes = _MEMBER.unpack_from(raw, at)
        trajectory_id, at = _text(raw, at + _MEMBER.size)
        actor, at = _text(raw, at)
        members.append(
            Member(
                state=_MEMBER_STATES[int(state) - 1],
                attempt=int(attempt),
                lease_expires_s=lease_expires_s,
                actor=actor,
                version=unpack_version(int(incarnation), int(version)),
                trajectory_id=trajectory_id,
                num_bytes=int(num_bytes),
            )
        )
    deadline_s, member_bytes, max_attempts, incarnation, dispatched_s, state, deadline_wall_s = head[5:]
    return Group(
        group_id=group_id,
        serial=serial,
        environment=environment,
        min_group_size=min_size,
        min_version=PolicyVersion(min_incarnation, min_version),
        deadline_s=deadline_s,
        member_bytes=int(member_bytes),
        max_attempts=int(max_attempts),
        incarnation=int(incarnation),
        dispatched_s=dispatched_s,
        members=members,
        state=_GROUP_STATES[int(state) - 1],
        deadline_wall_s=None if deadline_wall_s < 0.0 else deadline_wall_s,
    )


def unpack_entries(flat: Sequence[bytes]) -> tuple[JournalEntry, ...]:
    """Return the journal's entries.

    Args:
        flat: Steps, each followed by its entry.

    Raises:
        DamagedError: One is not as it was written.
    """
    return tuple(
        decode_entry(journal_key(int(step)), raw) for step, raw in zip(flat[::2], flat[1::2], strict=True)
    )


def unpack_summary(group_id: str, raw: bytes) -> PackedSummary:
    """Return the summary of a group.

    Raises:
        DamagedError: It is not as it was written.
    """
    raw = _unseal(group_id, raw, "index of groups")
    serial, state, incarnation, version, num_bytes, dispatched_s = _MEMBER.unpack_from(raw)
    return PackedSummary(
        serial=int(serial),
        state=_GROUP_STATES[int(state) - 1],
        start=unpack_version(int(incarnation), int(version)),
        num_bytes=int(num_bytes),
        dispatched_s=dispatched_s,
        environment=_text(raw, _MEMBER.size)[0],
    )


def _text(raw: bytes, at: int) -> tuple[str, int]:
    """Return the text that begins at a place, up to its zero byte, and where the next field begins."""
    end = raw.index(0, at)
    return raw[at:end].decode(), end + 1


def unpack_summaries(
    names: Sequence[bytes], summaries: Sequence[Sequence[bytes]]
) -> Iterator[OutstandingGroup]:
    """Yield the groups that are neither taken nor recorded, in order of dispatch.

    Args:
        names: Their names.
        summaries: Their summaries, in lists that follow one another.
    """
    for name, raw in zip(names, chain.from_iterable(summaries), strict=True):
        group_id = name.decode()
        summary = unpack_summary(group_id, raw)
        if summary.state != "taken":
            yield OutstandingGroup(
                group_id=group_id,
                serial=summary.serial,
                environment=summary.environment,
                settled=summary.state != "open",
                start=summary.start,
                num_bytes=summary.num_bytes,
            )


def spec_arguments(spec: GroupSpec, encoded: bytes) -> tuple[str | int | float | bytes, ...]:
    """Return a group to be dispatched as the scripts take it: SPEC_FIELDS of `groups.lua`."""
    return (
        spec.serial,
        spec.group_id,
        spec.task.environment,
        spec.group_size,
        spec.min_group_size,
        *spec.min_version,
        spec.deadline_s,
        spec.member_bytes,
        spec.max_attempts,
        encoded,
    )


def pairs(flat: Sequence[bytes]) -> dict[str, bytes]:
    """Return names and values that come in turn as a dictionary."""
    return {name.decode(): value for name, value in zip(flat[::2], flat[1::2], strict=True)}


def numbers(flat: Sequence[bytes]) -> dict[str, int]:
    """Return names and whole numbers that come in turn as a dictionary.

    Raises:
        DamagedError: One is no number.
    """
    found = pairs(flat)
    try:
        return {name: int(value) for name, value in found.items()}
    except ValueError as error:
        raise damaged("count", found, error) from error


class Totals(NamedTuple):
    """The answer of `stats.lua`."""

    run_id: str
    numbers: dict[str, int]
    forks: tuple[Fork, ...]
    counters: dict[str, int]
    environments: dict[str, int]
    live: dict[str, int]
    oldest: PackedSummary | None
    first_step: int | None

    def number(self, name: str) -> int:
        """Return one of the totals."""
        return self.numbers[name]


def empty_totals(meta_key: str) -> bytes:
    """Return the totals of a new store as they lie under its key."""
    return seal(meta_key, bytes(8 * len(_TOTALS)))


def unpack_totals(meta_key: str, reply: Sequence[Any]) -> Totals:
    """Return the totals of a store.

    Args:
        meta_key: Where they lie.
        reply: As `totals.lua` returns them.

    Raises:
        DamagedError: They are not as they were written.
    """
    run_id, packed, counters, environments, live, oldest_id, oldest, first_step = reply
    body = _unseal(meta_key, packed, "totals")
    values = [int(value) for (value,) in struct.iter_unpack(">d", body)]
    forks = values[len(_TOTALS) :]
    counted = numbers(counters)
    if "accepted" in counted:  # one counter for what is the same
        counted["trajectories.accepted"] = counted["accepted"]
    return Totals(
        run_id=run_id.decode(),
        numbers=dict(zip(_TOTALS, values, strict=False)),
        forks=tuple(Fork(*fork) for fork in zip(forks[::2], forks[1::2], strict=True)),
        counters=counted,
        environments=numbers(environments),
        live=numbers(live),
        oldest=unpack_summary(oldest_id.decode(), oldest) if oldest_id else None,
        first_step=int(first_step) if first_step else None,
    )


def unpack_stats(totals: Totals, settings: StoreSettings, now_s: float) -> StoreStats:
    """Return a snapshot of the store."""
    number = totals.number
    live = number("open") + number("settled") + number("taken")
    first = totals.first_step
    return StoreStats(
        run_id=totals.run_id,
        incarnation=number("incarnation"),
        forks=totals.forks,
        published=PolicyVersion(number("published_incarnation"), number("published_version")),
        next_serial=number("next_serial"),
        outstanding=live + number("unpublished_groups"),
        open_groups=number("open"),
        settled_groups=number("settled"),
        leased_slots=number("leased"),
        stored_trajectories=number("live_trajectories") + number("retained_trajectories"),
        live_bytes=number("live_bytes"),
        retained_bytes=number("retained_bytes"),
        capacity_groups=settings.capacity_groups,
        capacity_bytes=settings.capacity_bytes,
        retained_capacity_bytes=settings.retained_capacity_bytes,
        oldest_s=now_s - totals.oldest.dispatched_s if totals.oldest is not None else 0.0,
        journal_steps=(first, number("recorded_step")) if first is not None else None,
        counters=totals.counters,
        settled_by_environment={name: count for name, count in totals.environments.items() if count},
        live_by_environment={name: count for name, count in totals.live.items() if count},
    )
