"""Power loss, simulated: what a disk holds if any of the writes that nobody waited for is missing.

A process works an lmdb store under strace, which notes each write to the store's file, each wait for the
disk, and each acknowledgment. For a crash at any place of these notes the file is made again: everything that
was waited for, and of the later writes a random part, page by page. The store is opened on it, audited, and
must hold whatever had been acknowledged.

    .venv/bin/python tests/system/power_loss.py --crashes 500

The model: a page (4 KB) of a write is on the disk or not; a write through O_DSYNC is, once it has returned;
so is every earlier write after fdatasync. Disks that lie, and pages torn within, are not in it; nor are side
files.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))

from forebay.errors import ForebayError
from forebay.store import Durability, Store, StoreSettings, open_store
from forebay.store.marker import DATA_NAME
from forebay.trajectory import PolicyVersion
from tests.unit.store.builders import FIRST, RUN, make_entry, make_spec, make_trajectory, oldest_first

STRACE = shutil.which("strace")
PAGE_BYTES: Final = 4096
_ROOT: Final = Path(__file__).parents[2]
_NUM_ROUNDS: Final = 12
_KEPT_STEPS: Final = 3
_CALL: Final = re.compile(r"^(\w+)\((?:AT_FDCWD[^,]*, )?(?:(\d+)<|\")")
_RESULT: Final = re.compile(r"= (-?\d+)(?:<|$| )")
_STRING: Final = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')


class Event(NamedTuple):
    """What the process did.

    Attributes:
        kind: It wrote to the store's file, waited for what it wrote, or noted something for the test.
        offset: Where it wrote.
        content: What it wrote, or noted.
        waits: Whether the write was on the disk when it returned.
    """

    kind: Literal["write", "sync", "note"]
    offset: int = 0
    content: bytes = b""
    waits: bool = False


def work(path: Path, notes: Path, durability: Durability) -> None:
    """Work a store; note each intent to forget, and each acknowledgment, as a line."""
    log = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(**what: Any) -> None:
        os.write(log, json.dumps(what).encode() + b"\n")

    store = open_store(_settings(path, durability), RUN)
    store.rewind(0)
    for step in range(1, _NUM_ROUNDS + 1):
        store.dispatch([make_spec(2 * step - 2), make_spec(2 * step - 1)], incarnation=0)
        for slot in store.claim(4, ttl_s=600.0, actor="actor", version=FIRST):
            trajectory = make_trajectory(slot, num_tokens=50 * step)
            store.put(trajectory, slot)
            note(stored=[slot.group_id, slot.member, trajectory.trajectory_id])
        taken, _ = store.take(incarnation=0, choose=oldest_first(2), timeout_s=0.0)
        names = [group.spec.group_id for group in taken]
        store.record(make_entry(step, names), incarnation=0)
        note(recorded=[step, names])
        store.publish(PolicyVersion(0, step), incarnation=0)
        note(published=step)
        if step > _KEPT_STEPS:
            note(forgets=step - _KEPT_STEPS)
            store.commit(step - _KEPT_STEPS, incarnation=0)
    store.close()


def _settings(path: Path, durability: Durability) -> StoreSettings:
    return StoreSettings(engine="lmdb", path=path, durability=durability, map_bytes=1 << 24)


def trace(directory: Path, durability: Durability) -> list[Event]:
    """Let another process work a store in a directory; return what it did, in order."""
    store, notes, log = directory / "store", directory / "notes", directory / "trace"
    store.mkdir(parents=True)
    command = [
        str(STRACE), "-y", "-xx", "-s", str(1 << 22), "-o", str(log),
        "-e", "trace=openat,lseek,write,writev,pwrite64,pwritev,fdatasync,fsync,ftruncate,truncate,msync",
        "-P", str(store / DATA_NAME), "-P", str(notes),
        sys.executable, __file__, "--work", str(store), str(notes), durability,
    ]  # fmt: skip
    subprocess.run(command, cwd=_ROOT, check=True)
    with log.open() as lines:
        return list(_events(lines, os.fsencode(notes)))


def _events(lines: Iterator[str] | Any, notes: bytes) -> Iterator[Event]:
    waiting: set[str] = set()  # descriptors whose writes are on the disk when they return
    noting: set[str] = set()
    places: dict[str, int] = {}
    for line in lines:
        call, result = _CALL.match(line), _RESULT.search(line[line.rfind(")") :])
        if call is None or result is None or int(result[1]) < 0:
            continue
        verb, descriptor = call[1], call[2]
        strings = [bytes.fromhex(text.replace("\\x", "")) for text in _STRING.findall(line)]
        if verb == "openat":
            (noting.add if strings[0] == notes else noting.discard)(result[1])
            (waiting.add if "O_DSYNC" in line or "O_SYNC" in line else waiting.discard)(result[1])
        elif verb == "write" and descriptor in noting:
            yield Event("note", content=strings[0])
        elif verb == "lseek":
            places[descriptor] = int(result[1])
        elif verb in ("pwrite64", "pwritev", "writev"):
            last = line[: line.rfind(")")].rpartition(", ")[2]
            offset = places[descriptor] if verb == "writev" else int(last, 0)
            if verb == "writev":
                places[descriptor] += int(result[1])
            content = b"".join(strings)[: int(result[1])]
            yield Event("write", offset, content, descriptor in waiting)
        elif verb in ("fdatasync", "fsync"):
            yield Event("sync")
        else:
            raise RuntimeError(f"a call that the model does not know: {line[:200]}")


def rebuild(events: list[Event], rng: random.Random) -> bytes:
    """Return a file that the disk may hold after these events."""
    durable, later = bytearray(), list[Event]()
    for event in events:
        if event.kind == "sync":
            for write in later:
                _apply(durable, write.offset, write.content)
            later.clear()
        elif event.waits:
            _apply(durable, event.offset, event.content)
        elif event.kind == "write":
            later.append(event)
    share = rng.choice((0.0, 0.1, 0.5, 0.9, 1.0))
    for write in later:
        for at in range(0, len(write.content), PAGE_BYTES):
            if rng.random() < share:
                _apply(durable, write.offset + at, write.content[at : at + PAGE_BYTES])
    return bytes(durable)


def _apply(file: bytearray, offset: int, content: bytes) -> None:
    if len(file) < offset:
        file.extend(bytes(offset - len(file)))
    file[offset : offset + len(content)] = content


def check(directory: Path, content: bytes, notes: list[dict[str, Any]]) -> list[str]:
    """Open the store on a file; return what is wrong with it, given all that had been noted."""
    path = directory / "after"
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(directory / "store", path, ignore=shutil.ignore_patterns("*.mdb"))
    (path / DATA_NAME).write_bytes(content)
    try:
        store = open_store(_settings(path, "os"), RUN)
    except ForebayError as error:
        return [f"it cannot be opened: {error}"]
    try:
        return [*store.audit(), *_missing(store, notes)]
    except ForebayError as error:
        return [f"it cannot be read: {error}"]
    finally:
        store.close()


def _missing(store: Store, notes: list[dict[str, Any]]) -> Iterator[str]:
    forgotten = max((note["forgets"] for note in notes if "forgets" in note), default=0)
    gone = {
        name
        for note in notes
        for name in note.get("recorded", (0, ()))[1]
        if note["recorded"][0] <= forgotten
    }
    journal = {entry.step: list(entry.group_ids) for entry in store.journal()}
    for note in notes:
        if "stored" in note and note["stored"][0] not in gone:
            group_id, member, trajectory_id = note["stored"]
            found = {t.member: t.trajectory_id for t in store.read_group(group_id).trajectories}
            if found.get(member) != trajectory_id:
                yield f"member {member} of {group_id} was acknowledged, and is not there"
        elif "recorded" in note:
            step, names = note["recorded"]
            if step > forgotten and journal.get(step) != names:
                yield f"step {step} was recorded, and is not in the journal"
        elif "published" in note and store.stats().published < PolicyVersion(0, note["published"]):
            yield f"version {note['published']} was published, and is not known"


def crash(directory: Path, events: list[Event], seed: int) -> list[str]:
    """Return what is wrong after one crash; where it happens follows from the seed."""
    rng = random.Random(seed)
    # Before the first acknowledgment there may be no store yet.
    first = next(place for place, event in enumerate(events) if event.kind == "note")
    until = events[: rng.randrange(first + 1, len(events) + 1)]
    notes = [json.loads(line) for e in until if e.kind == "note" for line in e.content.splitlines()]
    return check(directory, rebuild(until, rng), notes)


def main() -> int:
    """Crash a store many times; return 1 if anything acknowledged was ever lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--crashes", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        path, notes, durability = arguments.work
        work(Path(path), Path(notes), durability)
        return 0
    if STRACE is None:
        print("strace is not installed: apt-get install strace", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as directory:
        events = trace(Path(directory), "fsync")
        wrong = 0
        for seed in range(arguments.seed, arguments.seed + arguments.crashes):
            problems = crash(Path(directory), events, seed)
            wrong += bool(problems)
            for problem in problems[:3]:
                print(f"seed {seed}: {problem}")
    print(f"{arguments.crashes} crashes within {len(events)} events; {wrong} lost or damaged something")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
