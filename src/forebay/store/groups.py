"""Groups: how they are dispatched, how their members arrive, and when they settle or are dropped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from forebay.errors import RecordError, RefusedError, StoreError
from forebay.store import refusals
from forebay.store.ledger import Ledger
from forebay.store.protocol import GroupSpec, Receipt, Slot
from forebay.store.records import Group, Member
from forebay.trajectory import PolicyVersion, Trajectory, check_name

Verdict = Literal["open", "settled", "deadline", "failed"]
_UNFINISHED = ("free", "leased")


class Arrival(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A trajectory on its way in, encoded.

    Args:
        trajectory_id: Its name.
        oldest_version: The oldest version that sampled one of its tokens; None if nothing was sampled.
        timed_out: Whether a deadline ended the episode.
        num_bytes: Size of its frame.
        frame: The frame; empty if it lies in a side file.
        side_file: Name of the side file, or "".
    """

    trajectory_id: str
    oldest_version: PolicyVersion | None
    timed_out: bool
    num_bytes: int
    frame: bytes
    side_file: str


def check_spec(spec: GroupSpec) -> None:
    """Refuse a group that could never settle.

    Raises:
        StoreError: A number is out of range, or the name is not safe.
    """
    try:
        check_name(spec.group_id, "group_id")
    except RecordError as error:
        raise StoreError(str(error)) from error
    if not 1 <= spec.min_group_size <= spec.group_size:
        raise StoreError(
            f"group {spec.group_id} could never settle",
            got=f"min_group_size={spec.min_group_size}",
            limit=f"1 to group_size={spec.group_size}",
        )
    if spec.serial < 0 or spec.member_bytes < 1 or spec.max_attempts < 1 or not spec.deadline_s > 0.0:
        raise StoreError(
            f"group {spec.group_id} needs serial >= 0, member_bytes >= 1, max_attempts >= 1, deadline_s > 0",
            got=f"{spec.serial}, {spec.member_bytes}, {spec.max_attempts}, {spec.deadline_s}",
        )


def dispatch(ledger: Ledger, specs: Sequence[GroupSpec], incarnation: int) -> int:
    """Make groups claimable, in order, until one does not fit; return how many leading ones are dispatched.

    A group whose serial or name was seen before counts as dispatched and is ignored.

    Raises:
        StoreError: A serial would leave a hole, or one group alone exceeds the capacity.
    """
    ledger.fence(incarnation)
    _check_serials(specs, ledger.meta.next_serial)
    num_dispatched = 0
    for spec in specs:
        if spec.serial >= ledger.meta.next_serial:
            if ledger.find(spec.group_id) is None:
                if not _fits(ledger, spec):
                    break
                add_group(ledger, spec, incarnation)
            ledger.meta.next_serial = spec.serial + 1
        num_dispatched += 1
    return num_dispatched


def _check_serials(specs: Sequence[GroupSpec], next_serial: int) -> None:
    for spec in specs:
        check_spec(spec)
        if spec.serial > next_serial:
            raise refusals.hole(spec.group_id, spec.serial, next_serial)
        next_serial = max(next_serial, spec.serial + 1)


def _fits(ledger: Ledger, spec: GroupSpec) -> bool:
    needed = spec.group_size * spec.member_bytes
    settings, gauges = ledger.settings, ledger.meta.gauges
    if needed > settings.capacity_bytes:
        raise refusals.too_large_alone(
            spec.group_id, spec.group_size, spec.member_bytes, settings.capacity_bytes
        )
    return gauges.live < settings.capacity_groups and gauges.live_bytes + needed <= settings.capacity_bytes


def add_group(ledger: Ledger, spec: GroupSpec, incarnation: int) -> None:
    """Make one group claimable, whatever the capacity."""
    group = Group(
        group_id=spec.group_id,
        serial=spec.serial,
        environment=spec.task.environment,
        min_group_size=spec.min_group_size,
        min_version=spec.min_version,
        deadline_s=spec.deadline_s,
        member_bytes=spec.member_bytes,
        max_attempts=spec.max_attempts,
        incarnation=incarnation,
        dispatched_s=ledger.now_s,
        members=[Member() for _ in range(spec.group_size)],
    )
    ledger.insert(group, spec)
    ledger.count("dispatched")


def mismatch(trajectory: Trajectory, slot: Slot, run_id: str) -> StoreError | None:
    """Return why a trajectory is not the result of a slot of this run, or None if it is."""
    for what, got, limit in (
        ("run_id of the slot", slot.run_id, run_id),
        ("run_id", trajectory.run_id, run_id),
        ("group_id", trajectory.group_id, slot.group_id),
        ("member", trajectory.member, slot.member),
        ("group_size", trajectory.group_size, slot.group_size),
        ("task_id", trajectory.task_id, slot.task.task_id),
    ):
        if got != limit:
            return RefusedError(
                f"trajectory does not belong to its slot: {what} differs", got=got, limit=limit
            )
    return None


def put(ledger: Ledger, slot: Slot, arrival: Arrival) -> Receipt | StoreError:
    """Store the result of a slot: the first result of a member wins, whoever holds the lease.

    A frame larger than its reservation is work already done: it is stored, and counted as `oversize`.

    Returns:
        The receipt, to be counted with those of its neighbors, or the error to raise once its counter is
        durable.
    """
    group = ledger.find(slot.group_id)
    if group is None:
        return "late"
    if len(group.members) != slot.group_size or not 0 <= slot.member < slot.group_size:
        ledger.count("rejected.foreign")
        return refusals.foreign(slot.group_id, slot.member, slot.group_size, len(group.members))
    member = group.members[slot.member]
    if member.state == "arrived" and member.trajectory_id == arrival.trajectory_id:
        return "duplicate"
    if member.state not in _UNFINISHED:
        return "late"
    _store(ledger, group, slot.member, arrival)
    return "accepted"


def _store(ledger: Ledger, group: Group, index: int, arrival: Arrival) -> None:
    member = group.members[index]
    member.state, member.version = "arrived", arrival.oldest_version
    member.trajectory_id, member.num_bytes = arrival.trajectory_id, arrival.num_bytes
    member.side_file, member.lease_expires_s = arrival.side_file, 0.0
    if not arrival.side_file:
        ledger.put_payload(group, index, arrival.frame)
    if arrival.timed_out:
        ledger.count("timeouts")
    if arrival.num_bytes > group.member_bytes:
        ledger.count("oversize")
    if not close_if_done(ledger, group):
        ledger.save(group)


def verdict(group: Group, now_s: float) -> Verdict:
    """Return what the group rule makes of an open group: it stays open, settles, or is dropped and why.

    Done is: every member arrived or failed, or the deadline has passed. Then the members that arrived
    settle the group if they suffice; else it is dropped.

    Args:
        group: An open group.
        now_s: Wall clock.
    """
    overdue = group.deadline_wall_s is not None and group.deadline_wall_s <= now_s
    unfinished = _has_unfinished(group)
    if not overdue and unfinished:
        return "open"
    if group.count("arrived") >= group.min_group_size:
        return "settled"
    return "deadline" if unfinished else "failed"


def close_if_done(ledger: Ledger, group: Group) -> bool:
    """Settle or drop an open group if the group rule says so; return whether it did."""
    found = verdict(group, ledger.now_s)
    if found == "open":
        return False
    if found != "settled":
        drop(ledger, group, "dropped", found)
        return True
    unfinished = group.count("free") + group.count("leased")
    for member in group.members:
        if member.state in _UNFINISHED:
            member.state, member.version, member.lease_expires_s = "missing", None, 0.0
    group.state = "settled"
    ledger.count("settled")
    ledger.count("members.missing", unfinished)
    ledger.save(group)
    return True


def _has_unfinished(group: Group) -> bool:
    # Asked for each result of a group; results tend to arrive in order, so the last are still at work.
    for member in reversed(group.members):  # noqa: SIM110 - any() takes three times as long
        if member.state in _UNFINISHED:
            return True
    return False


def drop(ledger: Ledger, group: Group, kind: str, reason: str) -> None:
    """Remove a group that will not be trained; `kind`: `dropped` by a rule, `rejected` by the learner."""
    ledger.count_reason(kind, reason)
    ledger.count_reason("trajectories.rejected", reason, group.count("arrived"))
    ledger.forget(group)
