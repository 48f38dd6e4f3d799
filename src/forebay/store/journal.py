"""The journal: what was consumed, what may be forgotten, and where a resuming learner begins.

Outstanding are the groups that are not recorded, and the recorded ones whose step is not published. After a
rewind the entries that wait for their replay are of that second kind: the credit they hold is granted again
only as they are re-made, so that a crash never grants credit twice.
"""

from __future__ import annotations

from forebay.staleness import Fork
from forebay.store import refusals
from forebay.store.ledger import Ledger
from forebay.store.protocol import JournalEntry, Rewound
from forebay.store.records import (
    GROUPS,
    JOURNAL,
    Group,
    decode_entry,
    decode_group,
    encode_record,
    journal_key,
)
from forebay.trajectory import PolicyVersion


def record(ledger: Ledger, entry: JournalEntry, incarnation: int) -> None:
    """Write a consumed batch to the journal; the same entry again does nothing but mark its replay.

    Raises:
        StoreError: The step is not the next one, a group is not in the learner's hands, the replay differs
            from the journal, or the retained bytes would exceed their capacity.
    """
    ledger.fence(incarnation)
    meta = ledger.meta
    key = journal_key(max(entry.step, 0))
    raw = ledger.txn.get(key) if entry.step >= 0 else None
    if raw is not None:
        _confirm(ledger, decode_entry(key, raw), entry)
        return
    if entry.step <= meta.recorded_step:
        raise refusals.past(entry.step, meta.recorded_step)
    if meta.replayed_step < meta.recorded_step:
        raise refusals.not_replayed(entry.step, meta.replayed_step, meta.recorded_step)
    groups = _check_groups(ledger, entry)
    for group in groups:
        group.state = "recorded"
        ledger.save(group)
    ledger.txn.put(key, encode_record(key, entry))
    if entry.step > meta.published.version:
        meta.unpublished_groups += len(groups)
    meta.recorded_step = meta.replayed_step = entry.step
    ledger.count("recorded", len(groups))
    ledger.count("trajectories.recorded", sum(group.count("arrived") for group in groups))


def _confirm(ledger: Ledger, known: JournalEntry, entry: JournalEntry) -> None:
    if (known.group_ids, known.digest) != (entry.group_ids, entry.digest):
        raise refusals.other_batch(entry.step, entry.digest, known.digest)
    if entry.step > ledger.meta.replayed_step:
        following = next(ledger.journal(ledger.meta.replayed_step)).step
        if entry.step != following:
            raise refusals.out_of_order(entry.step, following)
        ledger.meta.replayed_step = entry.step
        ledger.count("replayed")


def _check_groups(ledger: Ledger, entry: JournalEntry) -> list[Group]:
    if not entry.group_ids or len(set(entry.group_ids)) != len(entry.group_ids):
        raise refusals.no_batch(entry.group_ids)
    groups = [ledger.group(group_id) for group_id in entry.group_ids]
    for group in groups:
        if group.state != "taken":
            raise refusals.not_taken(group.group_id, group.state)
    needed = sum(member.num_bytes for group in groups for member in group.members)
    retained, limit = ledger.meta.gauges.retained_bytes, ledger.settings.retained_capacity_bytes
    if retained + needed > limit:
        raise refusals.retained_full(entry.step, retained, needed, limit)
    return groups


def publish(ledger: Ledger, version: PolicyVersion, incarnation: int) -> None:
    """Note that a version is published; an older one than the newest does nothing.

    Raises:
        StoreError: The version belongs to another incarnation.
    """
    ledger.fence(incarnation)
    meta = ledger.meta
    if version.incarnation != incarnation:
        raise refusals.others_version(version, incarnation)
    if version.version <= meta.published.version:
        return
    for entry in ledger.journal(meta.published.version):
        if entry.step > version.version:
            break
        meta.unpublished_groups -= len(entry.group_ids)
    meta.published = version
    meta.watch += 1
    ledger.count("published")


def forget_first(ledger: Ledger, step: int, incarnation: int) -> bool:
    """Forget the oldest journal entry if its step is at most `step`; return whether there may be more.

    One entry a transaction, so that a commit of many steps keeps no actor waiting.

    Raises:
        StoreError: The step waits for its replay.
    """
    ledger.fence(incarnation)
    meta = ledger.meta
    if step > meta.replayed_step < meta.recorded_step:
        raise refusals.waits_for_replay(step, meta.replayed_step)
    first = ledger.txn.first(JOURNAL)
    entry = decode_entry(*first) if first is not None else None
    if first is None or entry is None or entry.step > step:
        return False
    groups = [ledger.group(group_id) for group_id in entry.group_ids]
    ledger.count("committed", len(groups))
    ledger.count("trajectories.committed", sum(group.count("arrived") for group in groups))
    for group in groups:
        ledger.forget(group)
    if entry.step > meta.published.version:
        meta.unpublished_groups -= len(groups)
    ledger.txn.delete(first[0])
    meta.committed_step = entry.step
    return True


def rewind(ledger: Ledger, step: int) -> Rewound:
    """Begin a new incarnation at `step`.

    The first learner of a store begins incarnation 0, which has no fork. Every later one adds a fork at
    `step`; what older ones held is takeable again; the newest published version becomes `step` of the new
    incarnation, or the last published one if that is earlier; open groups get their whole deadline again,
    since nobody may have worked while the learner was away.

    Raises:
        StoreError: What was consumed after `step` is already forgotten.
    """
    meta = ledger.meta
    if step < meta.committed_step:
        raise refusals.forgotten(step, meta.committed_step)
    version = min(step, meta.published.version) if meta.begun else step
    if meta.begun:
        meta.incarnation += 1
        meta.forks = (*meta.forks, Fork(meta.incarnation, step))
        ledger.count("rewound")
    meta.begun = True
    meta.published = PolicyVersion(meta.incarnation, version)
    entries = tuple(ledger.journal())
    meta.recorded_step = max([step, *(entry.step for entry in entries)])
    meta.replayed_step = step
    meta.unpublished_groups = sum(len(entry.group_ids) for entry in entries if entry.step > version)
    meta.watch += 1
    _resume_groups(ledger)
    return Rewound(
        incarnation=meta.incarnation, journal=tuple(entry for entry in entries if entry.step > step)
    )


def _resume_groups(ledger: Ledger) -> None:
    unfinished = []
    for key, raw in ledger.txn.scan(GROUPS):
        group = decode_group(key, raw)
        if group.state in ("open", "taken"):
            unfinished.append(group.group_id)
    for group_id in unfinished:
        group = ledger.group(group_id)
        if group.state == "taken":
            group.state = "settled"
        elif group.deadline_wall_s is not None:
            group.deadline_wall_s = ledger.now_s + group.deadline_s
        ledger.save(group)


def truncate(ledger: Ledger, step: int, incarnation: int) -> None:
    """Drop journal entries after `step` and make their groups takeable again.

    Raises:
        StoreError: Entries after `step` are already forgotten.
    """
    ledger.fence(incarnation)
    meta = ledger.meta
    if step < meta.committed_step:
        raise refusals.forgotten(step, meta.committed_step)
    for entry in tuple(ledger.journal(step)):
        groups = [ledger.group(group_id) for group_id in entry.group_ids]
        for group in groups:
            group.state = "settled"
            ledger.save(group)
        num_trajectories = sum(group.count("arrived") for group in groups)
        ledger.count("recorded", -len(groups))
        ledger.count("trajectories.recorded", -num_trajectories)
        ledger.count("trajectories.unrecorded", num_trajectories)
        if entry.step > meta.published.version:
            meta.unpublished_groups -= len(groups)
        ledger.txn.delete(journal_key(entry.step))
    meta.recorded_step = min(meta.recorded_step, step)
    meta.replayed_step = min(meta.replayed_step, step)


def advance_fork(ledger: Ledger, version: int, incarnation: int) -> None:
    """Move forks forward to `version`: its weights were re-made as they had been published.

    The forks moved are this incarnation's and those of all others since the version was first made: a learner
    that died before it had replayed anything must not leave its fork behind, where versions count as older
    than they are.

    Raises:
        StoreError: The version is not re-made yet.
    """
    ledger.fence(incarnation)
    meta = ledger.meta
    if version > meta.replayed_step:
        raise refusals.not_remade(version, meta.replayed_step)
    key = journal_key(max(version, 0))
    raw = ledger.txn.get(key) if version >= 0 else None
    if raw is None:
        return
    made_by = decode_entry(key, raw).now.incarnation
    forks = tuple(
        Fork(fork.incarnation, max(fork.version, version)) if fork.incarnation > made_by else fork
        for fork in meta.forks
    )
    if forks != meta.forks:
        meta.forks = forks
        meta.watch += 1
