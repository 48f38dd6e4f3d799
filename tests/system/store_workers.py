"""Processes that work on a store alone, and note what they know: putters, a learner without a model, a
settler, a compactor.

A line is on the disk before the next call is made. What a process is about to do is noted before it
(`will`), what the store has acknowledged after it. A process that was killed in between knows less than the
store, never more.
"""

from __future__ import annotations

import logging
import os
import random
import sys
import zlib
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import xxhash

from forebay.clock import SystemClock
from forebay.errors import FencedError, StoreError
from forebay.staleness import Choice, OutstandingGroup
from forebay.store import GroupSpec, Slot, StoreSettings, TakenGroup, open_store
from forebay.store.compaction import compact_store
from forebay.store.putting import receipt_of
from forebay.trajectory import PolicyVersion, Trajectory
from forebay.wire import encode
from tests.system.store_fates import Fate, Mortal, Role
from tests.unit.store.builders import RUN, make_entry, make_spec, make_trajectory

GROUP_SIZE = 3
GROUPS_PER_BATCH = 2
GROUPS_AHEAD = 10
LEASE_S = 0.3
DEADLINE_S = 1.0
FENCED, FAILED = 10, 11  # exit codes
DRAIN = "drain"
_NUM_TOKENS = (8, 200, 1500, 6000)  # the last is larger than what lies inside the store
CLOCK = SystemClock()

Line = dict[str, Any]


class Log:
    """Appends lines; each is on the disk when `write` returns."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, kind: str, **fields: Any) -> None:
        """Append one line."""
        line = {"kind": kind, "pid": os.getpid(), **fields}
        os.write(self._descriptor, msgspec.json.encode(line) + b"\n")
        os.fdatasync(self._descriptor)


def read_log(path: Path) -> list[Line]:
    """Return the lines of a log, in order."""
    return [msgspec.json.decode(line) for line in path.read_bytes().splitlines()] if path.exists() else []


def digest_of(trajectory: Trajectory) -> str:
    """Return what tells a trajectory from every other, by each byte of its frame."""
    return xxhash.xxh3_64_hexdigest(encode(trajectory))


def make(slot: Slot, name: str) -> Trajectory:
    """Make the result of a slot: of a name, always the same."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    trajectory = make_trajectory(
        slot, name=name, num_tokens=int(rng.choice(_NUM_TOKENS)), version=slot.min_version
    )
    (branch,) = trajectory.sequences
    tokens = rng.integers(0, 50_000, len(branch.tokens), np.int32)
    return msgspec.structs.replace(trajectory, sequences=(msgspec.structs.replace(branch, tokens=tokens),))


def is_stale(group_id: str) -> bool:
    """Return whether the learner finds a group too old: the same groups in every life."""
    return zlib.crc32(group_id.encode()) % 23 == 0


class Putter:
    """Claims, works, fails, gives back, forgets, comes late, and puts.

    Args:
        store: Where it works.
        log: What it notes.
        rng: Decides what it does.
        favorite: The verb in which it shall die, done more often.
    """

    def __init__(self, store: Any, log: Log, rng: random.Random, favorite: str) -> None:
        self._store, self._log, self._rng, self._favorite = store, log, rng, favorite

    def work(self, directory: Path) -> None:
        """Work until killed, or until nothing is left to do once `drain` is there."""
        for line in unanswered(read_log(directory / "putter.log"), os.getpid()):
            self._put(msgspec.convert(line["slot"], Slot), line["name"])
        while True:
            draining = (directory / DRAIN).exists()
            served = self._store.stats().published
            slots = self._store.claim(
                self._rng.randint(1, 4), ttl_s=LEASE_S, actor=f"a{os.getpid()}", version=served
            )
            if not slots:
                if draining and not self._store.stats().open_groups:
                    return
                CLOCK.sleep(0.005)
            results = [(slot, name) for slot in slots if (name := self._serve(slot, draining))]
            if self._likes("put_many", 0.5):
                self._put_many(results)
                continue
            for slot, name in results:
                self._put(slot, name)
                if self._rng.random() < 0.1:
                    self._put(slot, name)

    def _serve(self, slot: Slot, draining: bool) -> str:
        """Work on a slot; return the name of its result, or "" if there will be none."""
        if self._likes("heartbeat", 0.3):
            self._store.heartbeat([slot], ttl_s=LEASE_S)
        if not draining:
            if self._likes("fail", 0.08):
                self._store.fail(slot, reason="flaky")
                return ""
            if self._likes("release_slot", 0.05):
                self._store.release_slot(slot)
                return ""
            if self._rng.random() < 0.03:
                return ""  # forgotten: the lease runs out
            if self._rng.random() < 0.03:
                CLOCK.sleep(1.3 * LEASE_S)
        return f"{slot.group_id}.{slot.member}.{slot.attempt}.{os.getpid()}"

    def _likes(self, verb: str, chance: float) -> bool:
        return self._rng.random() < (0.5 if verb == self._favorite else chance)

    def _put(self, slot: Slot, name: str) -> None:
        trajectory = self._announce(slot, name)
        self._log.write("put", name=name, receipt=self._store.put(trajectory, slot))

    def _put_many(self, results: Sequence[tuple[Slot, str]]) -> None:
        """Put results together; what was acknowledged is noted one by one."""
        outcomes = self._store.put_many([(self._announce(*result), result[0]) for result in results])
        for (_, name), outcome in zip(results, outcomes, strict=True):
            self._log.write("put", name=name, receipt=receipt_of(outcome))

    def _announce(self, slot: Slot, name: str) -> Trajectory:
        trajectory = make(slot, name)
        self._log.write("will", name=name, digest=digest_of(trajectory), slot=msgspec.to_builtins(slot))
        return trajectory


def unanswered(lines: Sequence[Line], successor: int) -> list[Line]:
    """Return the puts of which nobody knows the outcome; each is tried again by one successor at random."""
    answered = {line["name"] for line in lines if line["kind"] == "put"}
    open_puts = {line["name"]: line for line in lines if line["kind"] == "will"}
    return [line for name, line in open_puts.items() if name not in answered and (successor + len(name)) % 2]


class Saved(NamedTuple):
    """A checkpoint of the learner: the step, and what training up to it made."""

    step: int
    weights: str


class Learner:
    """Dispatches, takes, records, trains a digest of everything it was given, publishes, saves and commits.

    Args:
        store: Where it works.
        log: What it notes.
        rng: Decides what it does.
        favorite: The verb in which it shall die, done more often.
    """

    def __init__(self, store: Any, log: Log, rng: random.Random, favorite: str) -> None:
        self._store, self._log, self._rng, self._favorite = store, log, rng, favorite
        self._incarnation = 0
        self._at = Saved(0, "")

    def work(self, directory: Path) -> None:
        """Resume, then train until killed, or until nothing is left once `drain` is there."""
        self._directory = directory
        self._at = read_checkpoints(directory)[-1]
        rewound = self._store.rewind(self._at.step)
        self._incarnation = rewound.incarnation
        self._log.write("rewound", incarnation=rewound.incarnation, step=self._at.step)
        for entry in rewound.journal:
            if self._likes("truncate_journal", 0.05):
                self._store.truncate_journal(entry.step - 1, incarnation=self._incarnation)
                self._log.write("truncated", step=entry.step - 1)
                break
            groups = [self._store.read_group(group_id) for group_id in entry.group_ids]
            self._store.record(entry, incarnation=self._incarnation)
            self._train(groups)
            if self._likes("advance_fork", 0.5):
                self._store.advance_fork(entry.step, incarnation=self._incarnation)
            self._publish()
        while not self._done():
            self._step()
        self._save()
        self._log.write("done", step=self._at.step, weights=self._at.weights)

    def _done(self) -> bool:
        if not (self._directory / DRAIN).exists():
            self._dispatch()
            return False
        return self._store.stats().outstanding == 0

    def _dispatch(self) -> None:
        stats = self._store.stats()
        wanted = GROUPS_AHEAD - stats.outstanding
        specs = [spec_of(stats.next_serial + i, stats.published) for i in range(wanted)]
        self._store.dispatch(specs, incarnation=self._incarnation)

    def _step(self) -> None:
        groups, choice = self._store.take(incarnation=self._incarnation, choose=choose, timeout_s=0.3)
        if choice.stale:
            self._log.write("stale", groups=choice.stale)
        for group in groups:
            name = group.spec.group_id
            if self._likes("reject", 0.04):
                self._reject(group)
            elif self._likes("release", 0.04):
                self._store.release(name, incarnation=self._incarnation)
            else:
                continue
            groups = tuple(kept for kept in groups if kept.spec.group_id != name)
        if not groups:
            return
        entry = make_entry(
            self._at.step + 1, [group.spec.group_id for group in groups], incarnation=self._incarnation,
            digest=weights_after("", groups),
        )  # fmt: skip
        self._store.record(entry, incarnation=self._incarnation)
        self._train(groups)
        self._publish()
        if self._at.step % 3 == 0 or self._favorite == "commit":
            self._save()

    def _reject(self, group: TakenGroup) -> None:
        names = [trajectory.trajectory_id for trajectory in group.trajectories]
        self._log.write("rejecting", group=group.spec.group_id, names=names)
        stats = self._store.stats()
        replaced = self._rng.random() < 0.5 and not (self._directory / DRAIN).exists()
        replacement = spec_of(stats.next_serial, stats.published) if replaced else None
        self._store.reject(
            group.spec.group_id, incarnation=self._incarnation, reason="unlucky", replacement=replacement
        )

    def _train(self, groups: Sequence[TakenGroup]) -> None:
        weights = weights_after(self._at.weights, groups)
        self._at = Saved(self._at.step + 1, weights)
        trained = {t.trajectory_id: digest_of(t) for group in groups for t in group.trajectories}
        self._log.write(
            "trained", incarnation=self._incarnation, step=self._at.step, weights=weights,
            groups=[group.spec.group_id for group in groups], trajectories=trained,
        )  # fmt: skip

    def _publish(self) -> None:
        version = PolicyVersion(self._incarnation, self._at.step)
        self._store.publish(version, incarnation=self._incarnation)
        self._log.write("published", version=version)

    def _save(self) -> None:
        saved = [old for old in read_checkpoints(self._directory) if old.step < self._at.step]
        kept = [*saved, self._at][-2:]
        part = self._directory / "checkpoints.part"
        part.write_bytes(msgspec.json.encode(kept))
        part.rename(self._directory / "checkpoints")
        self._store.commit(kept[0].step, incarnation=self._incarnation)
        self._log.write("committed", step=kept[0].step)

    def _likes(self, verb: str, chance: float) -> bool:
        return self._rng.random() < (0.5 if verb == self._favorite else chance)


def spec_of(serial: int, published: PolicyVersion) -> GroupSpec:
    """Return the group of a serial, as the learner dispatches it."""
    return make_spec(
        serial,
        group_size=GROUP_SIZE,
        min_group_size=2,
        min_version=published,
        deadline_s=DEADLINE_S,
        member_bytes=10_000,
    )


def choose(groups: Sequence[OutstandingGroup]) -> Choice:
    """Take the oldest settled groups, fewer than a batch if no others are to come; reject the stale ones."""
    settled = [group.group_id for group in groups if group.settled]
    stale = tuple(name for name in settled if is_stale(name))
    fresh = tuple(name for name in settled if name not in stale)[:GROUPS_PER_BATCH]
    enough = len(fresh) == GROUPS_PER_BATCH or all(group.settled for group in groups)
    return Choice(take=fresh if enough and not stale else (), stale=stale, missing=0 if enough else 1)


def weights_after(weights: str, groups: Sequence[TakenGroup]) -> str:
    """Return what training makes of a batch: a digest of every byte it was given, in order."""
    state = xxhash.xxh3_128(weights.encode())
    for group in groups:
        for trajectory in group.trajectories:
            state.update(encode(trajectory))
    return state.hexdigest()


def read_checkpoints(directory: Path) -> list[Saved]:
    """Return the checkpoints, oldest first; that of step 0 if none was saved."""
    path = directory / "checkpoints"
    return msgspec.json.decode(path.read_bytes(), type=list[Saved]) if path.exists() else [Saved(0, "")]


def settle(store: Any, log: Log, directory: Path) -> None:
    """Apply what has expired, and look at everything, until killed: a snapshot is true at any time."""
    while not (directory / DRAIN).exists():
        store.settle_expired()
        store.stats()
        for problem in store.audit():
            log.write("untrue", problem=problem)
        store.journal()
        CLOCK.sleep(0.01)


def live(
    role: Role, directory: Path, options: dict[str, Any], fate: Fate, seed: str, opened: Connection
) -> None:
    """Be one process of a role, from the opening of the store, which it announces, to its end."""
    logging.disable(logging.WARNING)
    log = Log(directory / f"{role}.log")
    rng = random.Random(seed)
    try:
        if role == "compactor":
            Mortal(None, fate).do("compact", compact_store, Path(options["path"]), RUN)
            return
        store = Mortal(open_store(StoreSettings(**options), RUN, CLOCK), fate)
        opened.send_bytes(b"opened")
        works: dict[Role, Callable[[], None]] = {
            "putter": lambda: Putter(store, log, rng, fate.verb).work(directory),
            "learner": lambda: Learner(store, log, rng, fate.verb).work(directory),
            "settler": lambda: settle(store, log, directory),
        }
        works[role]()
    except FencedError:
        sys.exit(FENCED)
    except StoreError as error:
        log.write("failed", error=str(error))
        sys.exit(FAILED)
    store.close()
