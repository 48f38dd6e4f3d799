"""The store's verbs: what actors see, what the learner sees, and the records that pass between them.

Actors see `TaskSource` and `TrajectorySink`; the learner sees `TaskSink` and `TrajectorySource`. Every verb
is atomic and durable when it returns (at the engine's durability level), and safe to call again after a
crash. Who holds what alone may be forgotten with power loss (claims, renewals, what the learner has taken):
the holders go with it. Calls block for at most a disk write; an event loop calls them through a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, Protocol

import msgspec

from forebay.errors import StoreError
from forebay.staleness import Choice, Fork, OutstandingGroup
from forebay.trajectory import PolicyVersion, Task, Trajectory

Receipt = Literal["accepted", "duplicate", "late"]
Durability = Literal["fsync", "os"]
Chooser = Callable[[Sequence[OutstandingGroup]], Choice]


class GroupSpec(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A group to be dispatched.

    Args:
        group_id: Deterministic name: the same dispatch made again has the same id and is ignored.
        serial: Place in the run's endless stream of groups; the store remembers the next one.
        task: The problem that every member works on.
        group_size: Members.
        min_group_size: Members that suffice once the deadline has passed.
        min_version: No member may be sampled by an older version.
        deadline_s: Seconds from the first claim after which the group settles or is dropped.
        member_bytes: Bytes reserved for each member until it arrives.
        max_attempts: Tries per member before it counts as failed.
    """

    group_id: str
    serial: int
    task: Task
    group_size: int
    min_group_size: int
    min_version: PolicyVersion
    deadline_s: float
    member_bytes: int
    max_attempts: int = 3


class Slot(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One member of a group, leased to an actor.

    Args:
        group_id: Its group.
        member: Its place in the group.
        attempt: 0 for the first try.
        task: The problem.
        group_size: Members of the group.
        incarnation: The learner's incarnation that dispatched the group.
        min_version: No token may be sampled by an older version.
        lease_expires_s: Wall clock at which the slot is given to somebody else.
        group_deadline_s: Wall clock at which the group settles without this member.
        run_id: The run that dispatched it.
    """

    group_id: str
    member: int
    attempt: int
    task: Task
    group_size: int
    incarnation: int
    min_version: PolicyVersion
    lease_expires_s: float
    group_deadline_s: float
    run_id: str


class TakenGroup(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A settled group in the learner's hands.

    Args:
        spec: What was dispatched.
        trajectories: The members that arrived, by ascending member.
        dispatched_s: Wall clock at its dispatch; None if that is not known.
    """

    spec: GroupSpec
    trajectories: tuple[Trajectory, ...]
    dispatched_s: float | None = None


class JournalEntry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One consumed batch: enough to make it again, bit for bit, from the stored frames.

    Args:
        step: The version that training on the batch makes.
        now: The version it was differentiated at first.
        forks: The forks known when it was packed.
        group_ids: Its groups, in order.
        digest: xxh3 of the packed arrays, hexadecimal.
        packing: What the packer needs besides the groups; opaque to the store.
    """

    step: int
    now: PolicyVersion
    forks: tuple[Fork, ...]
    group_ids: tuple[str, ...]
    digest: str
    packing: bytes = b""


class Rewound(msgspec.Struct, frozen=True, kw_only=True):
    """What a resuming learner gets.

    Args:
        incarnation: Its own, newer than any before.
        journal: Batches recorded after the step it resumed from, to be trained again in order.
    """

    incarnation: int
    journal: tuple[JournalEntry, ...]


class StoreStats(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of the store.

    Args:
        run_id: The run that owns it.
        incarnation: The newest learner.
        forks: Where each incarnation after the first began.
        published: The newest published version.
        next_serial: The first serial never dispatched.
        outstanding: Groups dispatched whose step is not yet published: those not recorded, and those recorded
            for a later step than `published`. The credit is computed from this.
        open_groups: Groups that wait for members.
        settled_groups: Groups that can be taken.
        leased_slots: Members that an actor works on.
        stored_trajectories: Acknowledged and not yet committed or rejected.
        live_bytes: Bytes stored or reserved for groups not yet recorded.
        retained_bytes: Bytes of recorded groups that no verified checkpoint covers yet.
        capacity_groups: Most groups outstanding, recorded ones excluded.
        capacity_bytes: Most live bytes.
        retained_capacity_bytes: Most retained bytes.
        oldest_s: Age of the oldest group that is not recorded; 0 if none.
        journal_steps: First and last step in the journal; None if it is empty.
        counters: Totals since the store was made, by name. Puts: `accepted`, `duplicate`, `late`, `timeouts`,
            `oversize`, `rejected.foreign`, `rejected.too_large`. Members: `claimed`, `released`, `expired`,
            `retried`, `errors.REASON`, `members.failed`, `members.missing`. Groups: `dispatched`, `settled`,
            `recorded`, `committed`, `rejected.REASON`, `dropped.REASON`. Trajectories that were acknowledged:
            `trajectories.accepted`, `.recorded` (less those that a truncated journal gave back, which
            `.unrecorded` counts), `.committed`, `.rejected.REASON`. At any time
            ``accepted = committed + rejected + stored_trajectories`` over trajectories. Frames that could not
            be read back: `corrupt.REASON`, `quarantine.kept`, `quarantine.full`. Others: `published`,
            `rewound`, `replayed`.
        settled_by_environment: Settled groups by environment.
        live_by_environment: Groups not recorded, by environment: open, settled, or in the learner's hands.
    """

    run_id: str
    incarnation: int
    forks: tuple[Fork, ...]
    published: PolicyVersion
    next_serial: int
    outstanding: int
    open_groups: int
    settled_groups: int
    leased_slots: int
    stored_trajectories: int
    live_bytes: int
    retained_bytes: int
    capacity_groups: int
    capacity_bytes: int
    retained_capacity_bytes: int
    oldest_s: float
    journal_steps: tuple[int, int] | None
    counters: dict[str, int]
    settled_by_environment: dict[str, int]
    live_by_environment: dict[str, int] = {}


class TaskSource(Protocol):
    """Where actors get work."""

    def claim(
        self,
        max_slots: int,
        *,
        ttl_s: float,
        actor: str,
        version: PolicyVersion,
        environment: str | None = None,
    ) -> tuple[Slot, ...]:
        """Lease up to `max_slots` members, oldest group first; expired leases are handed out again.

        Args:
            max_slots: Most slots wanted.
            ttl_s: Lease time; `heartbeat` renews it.
            actor: Name of the claimer, for inspection.
            version: The version that the claimer's generator serves; no token will be older than the larger
                of this and the group's min_version, which becomes the slot's `min_version`.
            environment: The only environment whose members are wanted; None for any.

        Returns:
            Slots; empty if there is nothing to do.
        """
        ...

    def heartbeat(self, slots: Sequence[Slot], *, ttl_s: float) -> tuple[Slot, ...]:
        """Renew leases; return the slots no longer held (settled, expired and re-issued, or dropped)."""
        ...

    def fail(self, slot: Slot, *, reason: str) -> None:
        """Give up an attempt after an error; the member is retried up to the group's max_attempts."""
        ...

    def release_slot(self, slot: Slot) -> None:
        """Give a slot back untried (drain); it does not count as an attempt."""
        ...


class TrajectorySink(Protocol):
    """Where actors put results."""

    def put(self, trajectory: Trajectory, slot: Slot) -> Receipt:
        """Store the result of a slot; the first result of a member wins.

        Returns:
            `accepted` once durable; `duplicate` for the same trajectory again; `late` (not stored, counted)
            if the member was settled otherwise.

        A result whose lease has expired is welcome while its member is open. A trajectory larger than its
        reservation is stored and counted as `oversize`: refusing finished work frees nothing.

        Raises:
            RefusedError: The trajectory does not belong to the slot (counted as `rejected.foreign`), or
                exceeds `store.max_trajectory_bytes` (`rejected.too_large`); trying again does not help.
            StoreError: The disk or the store's file is full; it was not stored, and may be tried again.
        """
        ...

    def put_many(self, results: Sequence[tuple[Trajectory, Slot]]) -> tuple[Receipt | StoreError, ...]:
        """Store results of slots together: one commit, or one round trip, for all of them.

        Each is judged as `put` would judge it, in order, and has an outcome of its own: one that is refused,
        or cannot be stored, harms none of the others. A crash may leave some of them stored, each of them
        whole or not at all.

        Returns:
            For each its receipt, or the error that `put` would have raised.
        """
        ...


class TaskSink(Protocol):
    """Where the learner puts work."""

    def dispatch(self, groups: Sequence[GroupSpec], *, incarnation: int) -> int:
        """Make groups claimable, in order, as far as the capacity goes; ids seen before are ignored.

        Returns:
            How many of the leading groups are now dispatched (accepted now or before); fewer than given
            when full.

        Raises:
            FencedError: A newer incarnation exists.
            StoreError: A serial would leave a hole in the stream, a group could never settle, or one group
                alone exceeds the capacity; none was dispatched.
        """
        ...


class TrajectorySource(Protocol):
    """Where the learner takes batches from, and where it accounts for them."""

    def take(
        self, *, incarnation: int, choose: Chooser, timeout_s: float
    ) -> tuple[tuple[TakenGroup, ...], Choice]:
        """Take the groups that `choose` picks, waiting for the store to change at most `timeout_s` seconds.

        `choose` sees every group that is outstanding and not taken or recorded; it runs inside a snapshot and
        must not call the store. Its `stale` groups are rejected with reason `stale` in the same transaction.
        Taken groups stay with this incarnation until `record`, `reject` or `release`.

        Returns:
            The groups, in the chosen order, and the last choice. No groups at timeout, and before it when one
            was rejected or dropped meanwhile, so that the caller can dispatch another.

        Raises:
            FencedError: A newer incarnation exists.
        """
        ...

    def record(self, entry: JournalEntry, *, incarnation: int) -> None:
        """Write a consumed batch to the journal; durable before the step runs.

        Its groups must be in this incarnation's hands. Recording a journaled step again with the same groups
        and digest is its replay and changes nothing else; entries that wait for their replay come first, in
        order.

        Raises:
            FencedError: A newer incarnation exists.
            StoreError: The step is not the next one, a replay differs from the journal, a group is not taken,
                or the retained bytes would exceed their capacity.
        """
        ...

    def reject(
        self, group_id: str, *, incarnation: int, reason: str, replacement: GroupSpec | None = None
    ) -> None:
        """Discard a taken group for a named reason; dispatch `replacement` in the same transaction.

        The replacement takes the place of what it replaces, so no capacity brakes it. Nothing happens if the
        group is already gone.
        """
        ...

    def release(self, group_id: str, *, incarnation: int) -> None:
        """Put a taken group back; nothing if it is gone or was put back before."""
        ...

    def publish(self, version: PolicyVersion, *, incarnation: int) -> None:
        """Note that `version` is published: groups of steps up to it stop being outstanding."""
        ...

    def commit(self, step: int, *, incarnation: int) -> None:
        """Forget what was consumed up to and including `step`; no rewind can go before it any more."""
        ...

    def rewind(self, step: int) -> Rewound:
        """Begin a new incarnation at `step`: fence older learners, free what they held, return the journal.

        The first learner of a store begins incarnation 0 without a fork; each later one adds a fork at
        `step`. `published` becomes `step` of the new incarnation, or the last published version if that is
        earlier. Groups recorded after `step` stay recorded, and outstanding, until their replay is
        published: a resume never grants credit twice. Open groups get their whole deadline again.

        Raises:
            StoreError: What was consumed after `step` is already forgotten.
        """
        ...

    def read_group(self, group_id: str) -> TakenGroup:
        """Return a stored group whatever its state; for replay and inspection.

        Raises:
            StoreError: There is none; a `DamagedError` if a frame cannot be read back.
        """
        ...

    def advance_fork(self, version: int, *, incarnation: int) -> None:
        """Move this incarnation's fork forward: replay re-made exactly the published weights of `version`.

        The forks of earlier incarnations that had replayed the same batch, or died before, move along.
        """
        ...

    def truncate_journal(self, step: int, *, incarnation: int) -> None:
        """Drop journal entries after `step`; their groups are takeable again (replay could not be exact)."""
        ...


class Store(TaskSource, TrajectorySink, TaskSink, TrajectorySource, Protocol):
    """Everything an engine offers to the processes of one run."""

    def stats(self) -> StoreStats:
        """Return a snapshot."""
        ...

    def settle_expired(self) -> int:
        """Apply group deadlines and lease expiries that have passed; return how many groups changed."""
        ...

    def journal(self) -> tuple[JournalEntry, ...]:
        """Return the journal's entries in order: every consumed batch that is not forgotten."""
        ...

    def scan(self) -> Iterator[OutstandingGroup]:
        """Yield every group that is not yet forgotten, in order of dispatch."""
        ...

    def audit(self) -> tuple[str, ...]:
        """Recount everything from the records; return each contradiction, an empty tuple if there is none."""
        ...

    def close(self) -> None:
        """Release the engine's resources."""
        ...
