"""Leases: which member an actor works on, until when, and what happens when it does not come back."""

from __future__ import annotations

from collections.abc import Sequence

from forebay.store.groups import close_if_done
from forebay.store.ledger import Ledger
from forebay.store.protocol import Slot
from forebay.store.records import CLAIMABLE, DUE, Group, Member, parse_place, to_us
from forebay.trajectory import PolicyVersion


def has_due(ledger: Ledger) -> bool:
    """Return whether a lease or a deadline has ended: a look without a write."""
    first = ledger.txn.first(DUE)
    return first is not None and parse_place(first[0])[0] <= to_us(ledger.now_s)


def settle_due(ledger: Ledger) -> int:
    """Apply the lease expiries and group deadlines that have passed; return how many groups changed."""
    limit_us = to_us(ledger.now_s)
    due = []
    for key, _ in ledger.txn.scan(DUE):
        if parse_place(key)[0] > limit_us:
            break
        due.append(key)
    for key in due:
        group = ledger.listed(key)
        # The deadline of the group comes first: a lease that outlives it is not worth another attempt.
        if close_if_done(ledger, group):
            continue
        for member in group.members:
            if member.state == "leased" and member.lease_expires_s <= ledger.now_s:
                ledger.count("expired")
                _end_attempt(ledger, group, member)
        if not close_if_done(ledger, group):
            ledger.save(group)
    return len(due)


def _end_attempt(ledger: Ledger, group: Group, member: Member) -> None:
    member.attempt += 1
    member.lease_expires_s, member.version = 0.0, None
    if member.attempt >= group.max_attempts:
        member.state = "failed"
        ledger.count("members.failed")
    else:
        member.state = "free"
        ledger.count("retried")


def has_claimable(ledger: Ledger) -> bool:
    """Return whether a member is free: a look without a write."""
    return ledger.txn.first(CLAIMABLE) is not None


def claim(
    ledger: Ledger,
    max_slots: int,
    ttl_s: float,
    actor: str,
    version: PolicyVersion,
    environment: str | None = None,
) -> tuple[Slot, ...]:
    """Lease up to `max_slots` members: the oldest group first, all its members before the next group's.

    With an environment, as if there were no groups but its own.
    """
    slots: list[Slot] = []
    run_id = ledger.meta.run_id
    for key, _ in ledger.txn.scan(CLAIMABLE):
        group = ledger.listed(key)
        if environment not in (None, group.environment):
            continue
        spec = ledger.spec(group.group_id)
        start = max(version, group.min_version)
        if group.deadline_wall_s is None:
            group.deadline_wall_s = ledger.now_s + group.deadline_s
        for index, member in enumerate(group.members):
            if member.state != "free" or len(slots) >= max_slots:
                continue
            member.state, member.actor, member.version = "leased", actor, start
            member.lease_expires_s = ledger.now_s + ttl_s
            slots.append(
                Slot(
                    group_id=group.group_id,
                    member=index,
                    attempt=member.attempt,
                    task=spec.task,
                    group_size=len(group.members),
                    incarnation=group.incarnation,
                    min_version=start,
                    lease_expires_s=member.lease_expires_s,
                    group_deadline_s=group.deadline_wall_s,
                    run_id=run_id,
                )
            )
        ledger.save(group)
        if len(slots) >= max_slots:
            break
    ledger.count("claimed", len(slots))
    return tuple(slots)


def heartbeat(ledger: Ledger, slots: Sequence[Slot], ttl_s: float) -> tuple[Slot, ...]:
    """Renew leases; return the slots that are no longer held."""
    lost: list[Slot] = []
    by_group: dict[str, list[Slot]] = {}
    for slot in slots:
        by_group.setdefault(slot.group_id, []).append(slot)
    for group_id, mine in by_group.items():
        group = ledger.find(group_id)
        for slot in mine:
            member = _holder(group, slot)
            if member is None:
                lost.append(slot)
            else:
                member.lease_expires_s = ledger.now_s + ttl_s
        if group is not None:
            ledger.save(group)
    return tuple(lost)


def fail(ledger: Ledger, slot: Slot, reason: str) -> None:
    """End an attempt after an error; without effect if the lease is no longer held."""
    group = ledger.find(slot.group_id)
    member = _holder(group, slot)
    if group is None or member is None:
        return
    ledger.count_reason("errors", reason)
    _end_attempt(ledger, group, member)
    if not close_if_done(ledger, group):
        ledger.save(group)


def release_slot(ledger: Ledger, slot: Slot) -> None:
    """Give a member back untried; without effect if the lease is no longer held."""
    group = ledger.find(slot.group_id)
    member = _holder(group, slot)
    if group is None or member is None:
        return
    member.state, member.version, member.lease_expires_s = "free", None, 0.0
    ledger.count("released")
    ledger.save(group)


def _holder(group: Group | None, slot: Slot) -> Member | None:
    """Return the member whose current lease `slot` is."""
    if group is None or not 0 <= slot.member < len(group.members):
        return None
    member = group.members[slot.member]
    return member if member.state == "leased" and member.attempt == slot.attempt else None
