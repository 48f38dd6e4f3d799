"""What the store keeps, under which keys, and what follows from a group's record.

Keys::

    m                       the one `Meta`
    g/GROUP                 a `Group`: the state of its members
    t/GROUP                 its `GroupSpec`, as dispatched
    p/GROUP/MEMBER          a payload frame, unless it lies in a side file
    o/SERIAL GROUP          a `Summary` of every group that is not recorded, in order of dispatch
    c/SERIAL GROUP          groups with a member to claim
    d/TIME GROUP            open groups by the time at which a lease or their deadline ends
    j/STEP                  a `JournalEntry`
    q/GROUP/MEMBER          a payload that could not be read back
    x/GROUP/MEMBER          name and size of a side file that could not be read back

`o`, `c` and `d` and every total in `Meta` follow from the group records: `derive` is their one definition.
Every record ends with a checksum over its key and itself, so that one which a disk changed, or put elsewhere,
is an error and never read as something else.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Final, Literal, NamedTuple, TypeVar

import msgspec
import xxhash

from forebay.errors import DamagedError
from forebay.staleness import Fork, OutstandingGroup
from forebay.store.protocol import GroupSpec, JournalEntry
from forebay.trajectory import PolicyVersion

T = TypeVar("T")

FORMAT_VERSION: Final = 2

MemberState = Literal["free", "leased", "arrived", "failed", "missing"]
GroupState = Literal["open", "settled", "taken", "recorded"]

META_KEY: Final = b"m"
GROUPS: Final = b"g/"
SPECS: Final = b"t/"
PAYLOADS: Final = b"p/"
LIVE: Final = b"o/"
CLAIMABLE: Final = b"c/"
DUE: Final = b"d/"
JOURNAL: Final = b"j/"
QUARANTINE: Final = b"q/"
QUARANTINED_FILES: Final = b"x/"
_INT_BYTES: Final = 8
_CHECKSUM_BYTES: Final = 8


class Meta(msgspec.Struct, kw_only=True):
    """Totals and cursors of the store; a working copy inside one transaction.

    Args:
        format: Format of the store.
        run_id: The run that owns it.
        begun: Whether a learner has ever begun.
        incarnation: The newest learner.
        forks: Where each incarnation after the first began.
        published: The newest published version.
        next_serial: The first serial never dispatched.
        committed_step: Steps up to this one are forgotten.
        recorded_step: The last step in the journal, or the last one forgotten.
        replayed_step: Journal entries after this one wait for their replay.
        unpublished_groups: Recorded groups whose step is not published.
        watch: Changes whenever `take` could decide otherwise.
        gauges: Totals over the groups; see `Gauges`.
        settled_by_environment: Settled groups by environment.
        live_by_environment: Groups that are not recorded, by environment; None where nobody has counted yet.
        counters: Totals since the store was made.
    """

    format: int = FORMAT_VERSION
    run_id: str
    begun: bool = False
    incarnation: int = 0
    forks: tuple[Fork, ...] = ()
    published: PolicyVersion = PolicyVersion(0, 0)
    next_serial: int = 0
    committed_step: int = 0
    recorded_step: int = 0
    replayed_step: int = 0
    unpublished_groups: int = 0
    watch: int = 0
    gauges: Gauges
    settled_by_environment: dict[str, int] = {}
    live_by_environment: dict[str, int] | None = None
    counters: dict[str, int] = {}


class Member(msgspec.Struct, array_like=True, gc=False):
    """One member of a group; a working copy inside one transaction.

    Args:
        state: free to claim, leased, arrived, failed for good, or missing when its group settled.
        attempt: Attempts that ended without a result; with it a lease is told from an earlier one.
        lease_expires_s: Wall clock at which a lease ends.
        actor: Who holds or held the lease.
        version: The oldest version that sampled, or may yet sample, one of its tokens.
        trajectory_id: What arrived.
        num_bytes: Its frame's size.
        side_file: Where the frame lies; "" if inside the store.
    """

    state: MemberState = "free"
    attempt: int = 0
    lease_expires_s: float = 0.0
    actor: str = ""
    version: PolicyVersion | None = None
    trajectory_id: str = ""
    num_bytes: int = 0
    side_file: str = ""


class Group(msgspec.Struct, array_like=True, gc=False):
    """The state of a group; a working copy inside one transaction.

    Args:
        group_id: Its name.
        serial: Its place in the order of dispatch.
        environment: The environment of its task.
        min_group_size: Members that suffice once the deadline has passed.
        min_version: No member may be sampled by an older version.
        deadline_s: Seconds from the first claim to the deadline.
        member_bytes: Bytes reserved for each member until it arrives.
        max_attempts: Tries per member.
        incarnation: The learner that dispatched it.
        dispatched_s: Wall clock at dispatch.
        members: Its members.
        state: open, settled, taken by the learner, or recorded in the journal.
        deadline_wall_s: Wall clock of the deadline; None until the first claim.
    """

    group_id: str
    serial: int
    environment: str
    min_group_size: int
    min_version: PolicyVersion
    deadline_s: float
    member_bytes: int
    max_attempts: int
    incarnation: int
    dispatched_s: float
    members: list[Member]
    state: GroupState = "open"
    deadline_wall_s: float | None = None

    def count(self, state: MemberState) -> int:
        """Return how many members are in `state`."""
        return [member.state for member in self.members].count(state)


class Summary(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What `take` looks at, kept beside the order of dispatch."""

    environment: str
    state: GroupState
    start: PolicyVersion | None
    num_bytes: int
    dispatched_s: float

    def outstanding(self, serial: int, group_id: str) -> OutstandingGroup:
        """Return the group as the staleness rules see it."""
        return OutstandingGroup(
            group_id=group_id,
            serial=serial,
            environment=self.environment,
            settled=self.state != "open",
            start=self.start,
            num_bytes=self.num_bytes,
        )


class Gauges(NamedTuple):
    """What the groups add up to.

    Args:
        open: Groups that wait for members.
        settled: Groups that can be taken.
        taken: Groups in the learner's hands.
        recorded: Groups in the journal.
        leased: Members that an actor works on.
        live_trajectories: Trajectories of groups that are not recorded.
        retained_trajectories: Trajectories of recorded groups.
        live_bytes: Bytes stored or reserved for groups that are not recorded.
        retained_bytes: Bytes of recorded groups.
    """

    open: int = 0
    settled: int = 0
    taken: int = 0
    recorded: int = 0
    leased: int = 0
    live_trajectories: int = 0
    retained_trajectories: int = 0
    live_bytes: int = 0
    retained_bytes: int = 0

    @property
    def live(self) -> int:
        """Groups that are not recorded."""
        return self.open + self.settled + self.taken

    def moved(self, before: Gauges, after: Gauges) -> Gauges:
        """Return the totals after one group went from `before` to `after`."""
        return Gauges._make(map(operator.add, self, map(operator.sub, after, before)))


class Derived(NamedTuple):
    """Everything that follows from a group's record: its share of the totals, and its index entries."""

    gauges: Gauges
    summary: Summary
    indexes: dict[bytes, bytes]


NOTHING: Final = Gauges()


def derive(group: Group) -> Derived:
    """Return what follows from a group's record."""
    leased = arrived = free = stored = 0
    start: PolicyVersion | None = None
    due_s = math.inf if group.deadline_wall_s is None else group.deadline_wall_s
    for member in group.members:
        state, version = member.state, member.version
        if state == "arrived":
            arrived += 1
            stored += member.num_bytes
        elif state == "leased":
            leased += 1
            if member.lease_expires_s < due_s:
                due_s = member.lease_expires_s
        elif state == "free":
            free += 1
        if version is not None and (start is None or version < start):
            start = version
    reserved = stored + (free + leased) * group.member_bytes
    gauges = _gauges(group.state, leased, arrived, reserved)
    place = _place(group.serial, group.group_id)
    indexes: dict[bytes, bytes] = {}
    summary = Summary(group.environment, group.state, start, reserved, group.dispatched_s)
    if group.state != "recorded":
        key = LIVE + place
        indexes[key] = encode_record(key, summary)
    if free:
        indexes[CLAIMABLE + place] = b""
    if group.state == "open" and due_s < math.inf:
        indexes[DUE + _place(to_us(due_s), group.group_id)] = b""
    return Derived(gauges, summary, indexes)


def _gauges(state: GroupState, leased: int, arrived: int, reserved: int) -> Gauges:
    if state == "recorded":
        return Gauges(0, 0, 0, 1, leased, 0, arrived, 0, reserved)
    is_open, is_settled, is_taken = state == "open", state == "settled", state == "taken"
    return Gauges(int(is_open), int(is_settled), int(is_taken), 0, leased, arrived, 0, reserved, 0)


def to_us(time_s: float) -> int:
    """Return a time in whole microseconds: the unit of the index by time."""
    return max(0, int(time_s * 1e6))


def _place(number: int, group_id: str) -> bytes:
    return number.to_bytes(_INT_BYTES, "big") + group_id.encode()


def parse_place(key: bytes) -> tuple[int, str]:
    """Return the number and the group of a key of one of the ordered indexes."""
    body = key[2:]
    return int.from_bytes(body[:_INT_BYTES], "big"), body[_INT_BYTES:].decode(errors="replace")


def group_key(group_id: str) -> bytes:
    """Return the key of a group's state."""
    return GROUPS + group_id.encode()


def spec_key(group_id: str) -> bytes:
    """Return the key of a group's specification."""
    return SPECS + group_id.encode()


def payloads_key(group_id: str, prefix: bytes = PAYLOADS) -> bytes:
    """Return what the keys of all payloads of a group begin with, and no others."""
    return prefix + group_id.encode() + b"/"


def payload_key(group_id: str, member: int, prefix: bytes = PAYLOADS) -> bytes:
    """Return the key of a member's payload."""
    return payloads_key(group_id, prefix) + member.to_bytes(4, "big")


def parse_payload_key(key: bytes) -> tuple[str, int]:
    """Return the group and the member of a payload's key, in the store or in quarantine."""
    return key[2:-5].decode(), int.from_bytes(key[-4:], "big")


def journal_key(step: int) -> bytes:
    """Return the key of a journal entry."""
    return JOURNAL + step.to_bytes(_INT_BYTES, "big")


_encode = msgspec.msgpack.Encoder().encode


def encode_record(key: bytes, record: object) -> bytes:
    """Return a record as it lies under a key: MessagePack, and xxh3-64 of the key and that."""
    body = _encode(record)
    return body + xxhash.xxh3_64_digest(key + body)


def damaged(name: str, key: object, why: object) -> DamagedError:
    """Return the error of a record that is not as it was written."""
    return DamagedError(
        f"the store's {name} is damaged: {why}",
        got=key,
        remedy="Check its disk; restore the store from a copy, or start a new run.",
    )


def _decoder(kind: type[T], name: str) -> Callable[[bytes, bytes], T]:
    """Return what reads records of one kind from key and bytes; damage is an error that says so."""
    decode = msgspec.msgpack.Decoder(kind).decode

    def read(key: bytes, raw: bytes) -> T:
        body = raw[:-_CHECKSUM_BYTES]
        if xxhash.xxh3_64_digest(key + body) != raw[-_CHECKSUM_BYTES:]:
            raise damaged(name, key, "its checksum does not match")
        try:
            return decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise damaged(name, key, error) from error

    return read


decode_meta = _decoder(Meta, "record of its run")
decode_group = _decoder(Group, "record of a group")
decode_spec = _decoder(GroupSpec, "record of a task")
decode_summary = _decoder(Summary, "index of groups")
decode_file = _decoder(tuple[str, int], "record of a quarantined file")
decode_entry = _decoder(JournalEntry, "journal")
