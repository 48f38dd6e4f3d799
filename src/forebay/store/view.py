"""The store as it is looked at: records and the protocol of inspection, the same for every engine.

Looking changes nothing: nothing expires, is settled or swept, and no counter moves. A live store is not
disturbed either: what is long is read in pages, each a snapshot of its own, so that no look holds on to what
the run's processes want to free. What went away between two pages is simply not there any more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, Self

import msgspec

from forebay.staleness import OutstandingGroup
from forebay.store.batches import RawGroup
from forebay.store.protocol import JournalEntry, StoreStats, TakenGroup
from forebay.store.records import Group, GroupState, MemberState, derive
from forebay.trajectory import PolicyVersion

PAGE_GROUPS = 256


class StoredMember(msgspec.Struct, frozen=True, kw_only=True):
    """A member of a group, without its payload.

    Args:
        state: free to claim, leased, arrived, failed for good, or missing when its group settled.
        attempt: Attempts that ended without a result.
        actor: Who holds, or held last, its lease; "" if nobody ever did.
        lease_expires_s: Wall clock at which the lease ends; 0 without one.
        version: The oldest version that sampled, or may yet sample, one of its tokens; None before that.
        trajectory_id: What arrived; "" before that.
        num_bytes: Size of its frame; 0 before it arrived.
    """

    state: MemberState
    attempt: int
    actor: str
    lease_expires_s: float
    version: PolicyVersion | None
    trajectory_id: str
    num_bytes: int


class StoredGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group, without its task and its payloads.

    Args:
        group_id: Its name.
        serial: Its place in the order of dispatch.
        environment: The environment of its task.
        state: open, settled, taken by the learner, or recorded in the journal.
        start: The oldest version that sampled, or may yet sample, one of its tokens; None if no member has
            begun.
        num_bytes: Bytes stored or reserved for it.
        incarnation: The learner that dispatched it.
        dispatched_s: Wall clock at dispatch.
        deadline_wall_s: Wall clock of its deadline; None until the first claim.
        members: Its members, in order.
    """

    group_id: str
    serial: int
    environment: str
    state: GroupState
    start: PolicyVersion | None
    num_bytes: int
    incarnation: int
    dispatched_s: float
    deadline_wall_s: float | None
    members: tuple[StoredMember, ...]

    @property
    def num_arrived(self) -> int:
        """Members whose trajectory is stored."""
        return sum(member.state == "arrived" for member in self.members)


class SetAside(msgspec.Struct, frozen=True, kw_only=True):
    """A frame that could not be read back when its group was taken, kept for inspection.

    Args:
        group_id: Its group; it may be gone.
        member: Its place in the group.
        frame: The bytes as they lay in the store.
    """

    group_id: str
    member: int
    frame: bytes


class StoreView(Protocol):
    """Snapshots of a store that other processes may be using; made by `view_store`."""

    def __enter__(self) -> Self:
        """Return itself."""
        ...

    def __exit__(self, *_: object) -> None:
        """Close it."""
        ...

    def stats(self) -> StoreStats:
        """Return a snapshot; leases and deadlines that have passed count until somebody settles them."""
        ...

    def groups(self) -> Iterator[StoredGroup]:
        """Yield every group that is not forgotten, by name, which is the order of dispatch.

        Payloads and tasks are not read. Pages of at most `PAGE_GROUPS`.
        """
        ...

    def find_group(self, group_id: str) -> StoredGroup | None:
        """Return a group, or None if there is none of that name."""
        ...

    def read_raw(self, group_id: str) -> RawGroup:
        """Return what was dispatched and the frames as they lie there; an unreadable one is empty.

        Raises:
            StoreError: There is no such group.
        """
        ...

    def read_group(self, group_id: str) -> TakenGroup:
        """Return a stored group, decoded.

        Raises:
            StoreError: There is none; a `DamagedError` if a frame cannot be read back.
        """
        ...

    def scan(self) -> Iterator[OutstandingGroup]:
        """Yield every group that is not forgotten, as the staleness rules see it."""
        ...

    def journal(self) -> tuple[JournalEntry, ...]:
        """Return every batch that was consumed and is not forgotten, in order."""
        ...

    def set_aside(self) -> tuple[SetAside, ...]:
        """Return the frames in quarantine; the store keeps a bounded number."""
        ...

    def audit(self) -> tuple[str, ...]:
        """Recount everything from the records of one snapshot; return each contradiction."""
        ...

    def close(self) -> None:
        """Release what the view holds."""
        ...


def stored_group(group: Group) -> StoredGroup:
    """Return a group's record as it is shown."""
    summary = derive(group).summary
    return StoredGroup(
        group_id=group.group_id,
        serial=group.serial,
        environment=group.environment,
        state=group.state,
        start=summary.start,
        num_bytes=summary.num_bytes,
        incarnation=group.incarnation,
        dispatched_s=group.dispatched_s,
        deadline_wall_s=group.deadline_wall_s,
        members=tuple(
            StoredMember(
                state=member.state,
                attempt=member.attempt,
                actor=member.actor,
                lease_expires_s=member.lease_expires_s,
                version=member.version,
                trajectory_id=member.trajectory_id,
                num_bytes=member.num_bytes,
            )
            for member in group.members
        ),
    )


def outstanding_group(group: StoredGroup) -> OutstandingGroup:
    """Return a shown group as the staleness rules see it."""
    return OutstandingGroup(
        group_id=group.group_id,
        serial=group.serial,
        environment=group.environment,
        settled=group.state != "open",
        start=group.start,
        num_bytes=group.num_bytes,
    )
