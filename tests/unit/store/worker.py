"""Processes that work on a store until killed: `python -m tests.unit.store.worker ROLE PATH LOG SEED`.

Each line of the log is on disk's cache before the next call, so that what a killed process has seen is known.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

from forebay.clock import SystemClock
from forebay.errors import FencedError
from forebay.store import StoreSettings, open_store
from forebay.store.rules import RuleStore
from forebay.trajectory import PolicyVersion
from tests.unit.store.builders import FIRST, RUN, make_entry, make_spec, make_trajectory, oldest_first

GROUP_SIZE = 3
GROUPS_PER_BATCH = 2
LEASE_S = 1.0


class Log:
    """Appends lines, each with one system call."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, *words: object) -> None:
        os.write(self._descriptor, (" ".join(map(str, words)) + "\n").encode())


def settings_for(path: Path, **changes: object) -> StoreSettings:
    return StoreSettings(engine="lmdb", path=path, durability="os", side_file_bytes=40_000, **changes)


def act(store: RuleStore, log: Log, seed: int) -> None:
    """Claim and put, small trajectories and such as go to side files; log what was acknowledged."""
    chance = random.Random(seed)
    clock = SystemClock()
    while True:
        slots = store.claim(4, ttl_s=LEASE_S, actor=f"actor-{os.getpid()}", version=FIRST)
        if not slots:
            clock.sleep(0.01)
        for slot in slots:
            name = f"{slot.group_id}.{slot.member}.{os.getpid()}"
            num_tokens = chance.choice((8, 1000, 9000))
            if store.put(make_trajectory(slot, name=name, num_tokens=num_tokens), slot) == "accepted":
                log.write(name)


def learn(store: RuleStore, log: Log) -> None:
    """Dispatch, take, record, publish, commit; log each batch before it is recorded, and each replay."""
    committed = store.stats().journal_steps
    step = (
        committed[0] - 1 if committed else int(store.stats().counters.get("committed", 0)) // GROUPS_PER_BATCH
    )
    rewound = store.rewind(step)
    incarnation = rewound.incarnation
    for entry in rewound.journal:
        names = [t.trajectory_id for g in entry.group_ids for t in store.read_group(g).trajectories]
        log.write(entry.step, *names)
        store.record(entry, incarnation=incarnation)
        step = entry.step
        store.publish(PolicyVersion(incarnation, step), incarnation=incarnation)
    while True:
        stats = store.stats()
        wanted = 4 * GROUPS_PER_BATCH - stats.outstanding
        specs = [
            make_spec(stats.next_serial + i, group_size=GROUP_SIZE, max_attempts=100, deadline_s=1e6)
            for i in range(wanted)
        ]
        store.dispatch(specs, incarnation=incarnation)
        taken, _ = store.take(incarnation=incarnation, choose=oldest_first(GROUPS_PER_BATCH), timeout_s=0.5)
        if not taken:
            continue
        step += 1
        log.write(step, *(t.trajectory_id for group in taken for t in group.trajectories))
        store.record(make_entry(step, [group.spec.group_id for group in taken]), incarnation=incarnation)
        store.publish(PolicyVersion(incarnation, step), incarnation=incarnation)
        if step % 3 == 0:
            store.commit(step - 2, incarnation=incarnation)


def hang_in_a_read(store: RuleStore, log: Log) -> None:
    """Hold a snapshot open until killed."""

    def choose(groups: object) -> object:
        log.write("reading")
        while True:
            SystemClock().sleep(1.0)

    store.take(incarnation=store.stats().incarnation, choose=choose, timeout_s=0.0)


def main() -> None:
    role, path, log_path, seed = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
    log = Log(log_path)
    store = open_store(settings_for(path), RUN, SystemClock())
    log.write("#", "opened")
    if role == "actor":
        act(store, log, seed)
    elif role == "reader":
        hang_in_a_read(store, log)
    elif role == "opener":
        store.close()
    else:
        try:
            learn(store, log)
        except FencedError:
            log.write("#", "fenced")


if __name__ == "__main__":
    main()
