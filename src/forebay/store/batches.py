"""Batches: what the learner looks at, takes, gives back and discards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from forebay.errors import DamagedError, WireError
from forebay.staleness import Choice, OutstandingGroup
from forebay.store import refusals
from forebay.store.groups import add_group, check_spec, drop
from forebay.store.ledger import Ledger
from forebay.store.offer import Offer
from forebay.store.protocol import Chooser, GroupSpec, TakenGroup
from forebay.store.records import (
    GROUPS,
    LIVE,
    QUARANTINE,
    QUARANTINED_FILES,
    Group,
    decode_file,
    decode_group,
    decode_summary,
    derive,
    encode_record,
    parse_place,
    payload_key,
)
from forebay.trajectory import Trajectory
from forebay.wire import decode

MAX_QUARANTINED: Final = 64
MAX_QUARANTINED_BYTES: Final = 256 << 20
_MISSING: Final = "missing_file"


class RawGroup(NamedTuple):
    """A group as it lies in the store.

    Args:
        spec: What was dispatched.
        frames: Member and frame of each that arrived; an empty frame is one that could not be read.
        run_id: The run that owns the store; "" if that is not to be compared.
        errors: Why a frame could not be read, by member.
        dispatched_s: Wall clock at its dispatch; None if that is not known.
    """

    spec: GroupSpec
    frames: tuple[tuple[int, bytes], ...]
    run_id: str = ""
    errors: tuple[tuple[int, WireError], ...] = ()
    dispatched_s: float | None = None


class Look(NamedTuple):
    """What one look at the store told the learner.

    Args:
        choice: What it wants to do.
        groups: The groups it wants to take.
        num_live: Groups that are not recorded.
        watch: Changes whenever another look could tell something else.
    """

    choice: Choice
    groups: tuple[RawGroup, ...]
    num_live: int
    watch: int


def look(ledger: Ledger, incarnation: int, choose: Chooser) -> Look:
    """Let the learner choose among the groups that are neither taken nor recorded, and read what it chose."""
    ledger.fence(incarnation)
    choice = choose(Offer(available(ledger)))
    groups = tuple(read_raw(ledger, group_id) for group_id in choice.take)
    return Look(choice, groups, ledger.meta.gauges.live, ledger.meta.watch)


def available(ledger: Ledger) -> Iterator[OutstandingGroup]:
    """Yield the groups that are neither taken nor recorded, in order of dispatch."""
    for key, raw in ledger.txn.scan(LIVE):
        summary = decode_summary(key, raw)
        if summary.state != "taken":
            yield summary.outstanding(*parse_place(key))


def every_group(ledger: Ledger) -> list[OutstandingGroup]:
    """Return every group that is not forgotten, in order of dispatch."""
    groups = [decode_group(key, raw) for key, raw in ledger.txn.scan(GROUPS)]
    groups.sort(key=lambda group: (group.serial, group.group_id))
    return [derive(group).summary.outstanding(group.serial, group.group_id) for group in groups]


def read_raw(ledger: Ledger, group_id: str) -> RawGroup:
    """Read a group with its frames, whatever its state."""
    group = ledger.group(group_id)
    frames: list[tuple[int, bytes]] = []
    errors: list[tuple[int, WireError]] = []
    for index, member in enumerate(group.members):
        if member.state == "arrived":
            try:
                frames.append((index, ledger.read_payload(group, index)))
            except WireError as error:
                frames.append((index, b""))
                errors.append((index, error))
    return RawGroup(
        ledger.spec(group_id), tuple(frames), ledger.meta.run_id, tuple(errors), group.dispatched_s
    )


def whole_group(raw: RawGroup) -> TakenGroup:
    """Decode a group of which every member must be whole.

    Raises:
        DamagedError: A frame cannot be read back.
    """
    group, broken = decode_group_frames(raw)
    for member, error in broken.items():
        raise DamagedError(
            f"member {member} of group {raw.spec.group_id} cannot be read back: {error}"
        ) from error
    return group


def decode_group_frames(raw: RawGroup) -> tuple[TakenGroup, dict[int, WireError]]:
    """Decode a group's frames; return what is whole, and why each other member is not."""
    whole: list[Trajectory] = []
    broken: dict[int, WireError] = dict(raw.errors)
    for member, frame in raw.frames:
        if member in broken:
            continue
        try:
            trajectory = _decode_frame(frame)
            if raw.run_id not in ("", trajectory.run_id):
                raise WireError("foreign", "stored frame belongs to another run", got=trajectory.run_id)
            if (trajectory.group_id, trajectory.member) != (raw.spec.group_id, member):
                raise WireError("misplaced", "stored frame belongs elsewhere", got=trajectory.group_id)
        except WireError as error:
            broken[member] = error
        else:
            whole.append(trajectory)
    taken = TakenGroup(spec=raw.spec, trajectories=tuple(whole), dispatched_s=raw.dispatched_s)
    return taken, broken


def _decode_frame(frame: bytes) -> Trajectory:
    if not frame:
        raise WireError(_MISSING, "stored frame is missing")
    return decode(frame)


def quarantine(ledger: Ledger, group_id: str, reasons: Mapping[int, str]) -> None:
    """Set members aside whose frames cannot be read back; drop the group if too few are left.

    Args:
        ledger: The records.
        group_id: Their group; nothing happens unless it is settled.
        reasons: Why each of them is refused, counted as `corrupt.REASON`.
    """
    group = ledger.find(group_id)
    if group is None or group.state != "settled":
        return
    for index, reason in reasons.items():
        member = group.members[index]
        if member.state != "arrived":
            continue
        if reason == _MISSING or not _set_aside(ledger, group, index):
            ledger.remove_payload(group, index)
        member.state, member.version = "failed", None
        member.num_bytes, member.side_file = 0, ""
        ledger.count_reason("corrupt", reason)
        ledger.count_reason("trajectories.rejected", "corrupt")
    if group.count("arrived") < group.min_group_size:
        drop(ledger, group, "dropped", "corrupt")
    else:
        ledger.save(group)


def _set_aside(ledger: Ledger, group: Group, index: int) -> bool:
    """Keep what cannot be read back, for inspection; return False if the quarantine is full."""
    txn, member = ledger.txn, group.members[index]
    sizes = [len(frame) for _, frame in txn.scan(QUARANTINE)]
    sizes += [decode_file(key, raw)[1] for key, raw in txn.scan(QUARANTINED_FILES)]
    if len(sizes) >= MAX_QUARANTINED or sum(sizes) + member.num_bytes > MAX_QUARANTINED_BYTES:
        ledger.count("quarantine.full")
        return False
    if member.side_file:
        key = payload_key(group.group_id, index, QUARANTINED_FILES)
        txn.put(key, encode_record(key, (member.side_file, member.num_bytes)))
    else:
        txn.put(payload_key(group.group_id, index, QUARANTINE), ledger.read_payload(group, index))
        ledger.remove_payload(group, index)
    ledger.count("quarantine.kept")
    return True


def seize(ledger: Ledger, incarnation: int, take: Sequence[str], stale: Sequence[str]) -> bool:
    """Take groups and reject stale ones; return False, with nothing done, if one has changed meanwhile."""
    ledger.fence(incarnation)
    wanted = [ledger.find(group_id) for group_id in take]
    rejected = [ledger.find(group_id) for group_id in stale]
    if any(group is None or group.state != "settled" for group in (*wanted, *rejected)):
        return False
    for group in filter(None, rejected):
        drop(ledger, group, "rejected", "stale")
    for group in filter(None, wanted):
        group.state = "taken"
        ledger.save(group)
    return True


def reject(
    ledger: Ledger, group_id: str, incarnation: int, reason: str, replacement: GroupSpec | None
) -> None:
    """Discard a taken group, and dispatch another in its place; nothing if the group is already gone."""
    ledger.fence(incarnation)
    if replacement is not None:
        check_spec(replacement)
    group = _taken(ledger, group_id)
    if group is None:
        return
    if replacement is not None and ledger.find(replacement.group_id) is not None:
        raise refusals.old_name(replacement.group_id)
    drop(ledger, group, "rejected", reason)
    if replacement is not None:
        add_group(ledger, replacement, incarnation)
        ledger.meta.next_serial = max(ledger.meta.next_serial, replacement.serial + 1)


def release(ledger: Ledger, group_id: str, incarnation: int) -> None:
    """Put a taken group back; nothing if it is not in the learner's hands any more."""
    ledger.fence(incarnation)
    group = ledger.find(group_id)
    if group is None or group.state == "settled":
        return
    group = _taken(ledger, group_id)
    if group is not None:
        group.state = "settled"
        ledger.save(group)


def _taken(ledger: Ledger, group_id: str) -> Group | None:
    group = ledger.find(group_id)
    if group is not None and group.state != "taken":
        raise refusals.not_taken(group_id, group.state)
    return group
