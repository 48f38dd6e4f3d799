"""The redis engine: every verb one script, one round trip, and safe to be sent twice.

A connection that breaks leaves open whether the server has acted, so every call may reach it twice. Verbs
whose second time would do harm (claim, take, rewind, release) carry a token, and the server keeps their
answer for an hour: the second time gets the first one's answer. The others are idempotent by themselves.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from forebay.clock import Clock
from forebay.errors import StoreError
from forebay.staleness import Choice, OutstandingGroup
from forebay.store import batches, refusals
from forebay.store.groups import check_spec
from forebay.store.protocol import (
    Chooser,
    GroupSpec,
    JournalEntry,
    Receipt,
    Rewound,
    Slot,
    StoreStats,
    TakenGroup,
)
from forebay.store.putting import Outcome, Refusal, encode_result, receipt_of
from forebay.store.records import encode_record, journal_key, spec_key
from forebay.store.redis import scripts
from forebay.store.redis.packing import (
    pack_values,
    pack_version,
    spec_arguments,
    unpack_entries,
    unpack_slots,
)
from forebay.store.redis.server import Server
from forebay.store.redis.taking import Taking
from forebay.store.redis.view import RedisView
from forebay.store.redis.wire import Argument
from forebay.store.settings import StoreSettings
from forebay.trajectory import PolicyVersion, Trajectory

RECEIPTS: Final[dict[int, Receipt]] = {1: "accepted", 2: "duplicate", 3: "late"}


class RedisStore:
    """A `Store` on a Redis or Valkey server; made by `open_redis`.

    Args:
        server: The server; closed with the store.
        settings: Capacities.
        run_id: The run that owns the store.
        clock: Time of leases and deadlines, as in every engine; the server's own time decides nothing.
    """

    def __init__(self, server: Server, settings: StoreSettings, run_id: str, clock: Clock) -> None:
        self._server, self._settings, self._run_id, self._clock = server, settings, run_id, clock
        self._view = RedisView(server, settings, clock)
        # The last step that the server has acknowledged to this learner: it must never be seen to be missing.
        self._known_step = -1

    def claim(
        self,
        max_slots: int,
        *,
        ttl_s: float,
        actor: str,
        version: PolicyVersion,
        environment: str | None = None,
    ) -> tuple[Slot, ...]:
        """Lease members; see `TaskSource.claim`."""
        who, serves = actor.replace("\0", ""), pack_version(version)
        packed, *encoded = self._server.run(
            scripts.CLAIM, self._now_s(), max_slots, ttl_s, who, *serves, _token(), environment or ""
        )
        return unpack_slots(packed, encoded, self._run_id)

    def heartbeat(self, slots: Sequence[Slot], *, ttl_s: float) -> tuple[Slot, ...]:
        """Renew leases; see `TaskSource.heartbeat`."""
        if not slots:
            return ()
        leases = (part for slot in slots for part in (slot.group_id, slot.member, slot.attempt))
        return tuple(
            slots[place] for place in self._server.run(scripts.HEARTBEAT, self._now_s(), ttl_s, *leases)
        )

    def fail(self, slot: Slot, *, reason: str) -> None:
        """End an attempt; see `TaskSource.fail`."""
        self._server.run(scripts.FAIL, self._now_s(), slot.group_id, slot.member, slot.attempt, reason)

    def release_slot(self, slot: Slot) -> None:
        """Give a slot back; see `TaskSource.release_slot`."""
        lease = (slot.group_id, slot.member, slot.attempt)
        self._server.run(scripts.RELEASE_SLOT, self._now_s(), *lease, _token())

    def put(self, trajectory: Trajectory, slot: Slot) -> Receipt:
        """Store a result; see `TrajectorySink.put`."""
        return receipt_of(self.put_many(((trajectory, slot),))[0])

    def put_many(self, results: Sequence[tuple[Trajectory, Slot]]) -> tuple[Outcome, ...]:
        """Store results together; see `TrajectorySink.put_many`."""
        limit = self._settings.max_trajectory_bytes
        frames = [encode_result(*result, run_id=self._run_id, max_bytes=limit) for result in results]
        puts = [
            (self._arguments(*result, len(frame)), frame)
            for result, (frame, refusal) in zip(results, frames, strict=True)
            if refusal is None
        ]
        answers = iter(self._server.put_many(scripts.PUT, puts))
        return tuple(
            _outcome(next(answers)) if refusal is None else self._refused(refusal) for _, refusal in frames
        )

    def _arguments(self, trajectory: Trajectory, slot: Slot, num_bytes: int) -> tuple[Argument, ...]:
        """Return a put as the script takes it: PUT_FIELDS without the name that the frame is staged under."""
        place = (slot.group_id, slot.member, slot.group_size)
        version = pack_version(trajectory.oldest_version)
        timed_out = int(trajectory.finish == "timeout")
        return self._now_s(), pack_values((*place, trajectory.trajectory_id, *version, timed_out, num_bytes))

    def dispatch(self, groups: Sequence[GroupSpec], *, incarnation: int) -> int:
        """Make groups claimable; see `TaskSink.dispatch`."""
        for spec in groups:
            check_spec(spec)
        limits = (self._settings.capacity_groups, self._settings.capacity_bytes)
        fields: list[Argument] = []
        for spec in groups:
            fields += _fields(spec)
        (done,) = self._learn(scripts.DISPATCH, incarnation, *limits, *fields)
        return int(done)

    def take(
        self, *, incarnation: int, choose: Chooser, timeout_s: float
    ) -> tuple[tuple[TakenGroup, ...], Choice]:
        """Take the groups that `choose` picks; see `TrajectorySource.take`."""
        return Taking(self._learn, self._quarantine, self._view, self._clock, incarnation, choose).wait(
            timeout_s
        )

    def record(self, entry: JournalEntry, *, incarnation: int) -> None:
        """Write a batch to the journal; see `TrajectorySource.record`."""
        if not entry.group_ids or len(set(entry.group_ids)) != len(entry.group_ids):
            raise refusals.no_batch(entry.group_ids)
        limit = self._settings.retained_capacity_bytes
        batch = (entry.now.incarnation, entry.digest, encode_record(journal_key(entry.step), entry))
        self._learn(scripts.RECORD, incarnation, entry.step, limit, *batch, *entry.group_ids)
        self._known_step = max(self._known_step, entry.step)

    def reject(
        self, group_id: str, *, incarnation: int, reason: str, replacement: GroupSpec | None = None
    ) -> None:
        """Discard a taken group; see `TrajectorySource.reject`."""
        fields: tuple[Argument, ...] = ()
        if replacement is not None:
            check_spec(replacement)
            fields = _fields(replacement)
        self._learn(scripts.REJECT, incarnation, group_id, reason, *fields)

    def release(self, group_id: str, *, incarnation: int) -> None:
        """Put a taken group back; see `TrajectorySource.release`."""
        self._learn(scripts.RELEASE, incarnation, group_id, _token())

    def publish(self, version: PolicyVersion, *, incarnation: int) -> None:
        """Note a published version; see `TrajectorySource.publish`."""
        if version.incarnation != incarnation:
            raise refusals.others_version(version, incarnation)
        self._learn(scripts.PUBLISH, incarnation, version.version)

    def commit(self, step: int, *, incarnation: int) -> None:
        """Forget consumed work; see `TrajectorySource.commit`."""
        while self._learn(scripts.COMMIT, incarnation, step)[0]:
            pass

    def rewind(self, step: int) -> Rewound:
        """Begin a new incarnation; see `TrajectorySource.rewind`."""
        incarnation, last_step, entries = self._server.run(scripts.REWIND, self._now_s(), step, _token())
        self._known_step = last_step
        return Rewound(incarnation=incarnation, journal=unpack_entries(entries))

    def advance_fork(self, version: int, *, incarnation: int) -> None:
        """Move this incarnation's fork; see `TrajectorySource.advance_fork`."""
        self._learn(scripts.ADVANCE_FORK, incarnation, version)

    def truncate_journal(self, step: int, *, incarnation: int) -> None:
        """Drop journal entries after `step`; see `TrajectorySource.truncate_journal`."""
        # Before the call, which may reach the server twice: the second time finds the steps gone.
        self._known_step = min(self._known_step, step)
        self._learn(scripts.TRUNCATE, incarnation, step)

    def journal(self) -> tuple[JournalEntry, ...]:
        """Return every batch that was consumed and is not forgotten, in order; see `Store.journal`."""
        return self._view.journal()

    def read_group(self, group_id: str) -> TakenGroup:
        """Return a stored group; see `TrajectorySource.read_group`."""
        return self._view.read_group(group_id)

    def stats(self) -> StoreStats:
        """Return a snapshot; see `Store.stats`."""
        self.settle_expired()
        return self._view.stats()

    def settle_expired(self) -> int:
        """Apply what has expired; see `Store.settle_expired`."""
        total = 0
        while True:
            num_changed, more = self._server.run(scripts.SETTLE, self._now_s())
            total += int(num_changed)
            if not more:
                return total

    def scan(self) -> Iterator[OutstandingGroup]:
        """Yield every group; see `Store.scan`."""
        return self._view.scan()

    def audit(self) -> tuple[str, ...]:
        """Recount everything from the records; return each contradiction, an empty tuple if there is none."""
        return self._view.audit()

    def close(self) -> None:
        """Disconnect."""
        self._server.close()

    def _now_s(self) -> float:
        return self._clock.wall_s()

    def _learn(self, script: scripts.Script, incarnation: int, *arguments: Argument) -> list[Any]:
        """Run a script of the learner's, which is fenced."""
        return self._server.run(script, self._now_s(), incarnation, self._known_step, *arguments)

    def _quarantine(self, group_id: str, reasons: Mapping[int, str]) -> None:
        limits = (batches.MAX_QUARANTINED, batches.MAX_QUARANTINED_BYTES)
        refused = (part for member, reason in reasons.items() for part in (member, reason))
        self._server.run(scripts.QUARANTINE, self._now_s(), group_id, *limits, *refused)

    def _refused(self, refusal: Refusal) -> StoreError:
        """Count a refusal; return what its caller is told."""
        try:
            self._server.run(scripts.REFUSE, self._now_s(), refusal.reason)
        except StoreError as error:
            return error
        return refusal.error


def _outcome(answer: int | StoreError) -> Outcome:
    return answer if isinstance(answer, StoreError) else RECEIPTS[answer]


def _fields(spec: GroupSpec) -> tuple[Argument, ...]:
    return spec_arguments(spec, encode_record(spec_key(spec.group_id), spec))


def _token() -> str:
    return secrets.token_hex(12)
