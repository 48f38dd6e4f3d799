"""What only the lmdb engine has: a file that fills, sharing within a process, frames that rot on disk."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lmdb
import pytest

from forebay.clock import ManualClock
from forebay.errors import ConfigError, DamagedError, StoreError
from forebay.store import Slot, StoreSettings, count_lost, open_store
from forebay.store.kv import Txn
from forebay.store.records import payload_key
from forebay.store.rules import RuleStore
from forebay.store.side_files import SideFiles
from tests.unit.store.builders import FIRST, RUN, make_entry, make_spec, make_trajectory, oldest_first

MIB = 1 << 20
ROOT = Path(__file__).parents[3]


def open_at(path: Path, **settings: Any) -> RuleStore:
    return open_store(StoreSettings(path=path, durability="os", **settings), RUN, ManualClock(1000.0))


def claim(store: RuleStore, num: int = 1000) -> tuple[Slot, ...]:
    return store.claim(num, ttl_s=100.0, actor="actor", version=FIRST)


def test_c85_reopened_with_other_capacities_obeys_the_new_ones(tmp_path: Path) -> None:
    store = open_at(tmp_path, capacity_groups=8)
    specs = [make_spec(i) for i in range(64)]
    assert store.dispatch(specs, incarnation=0) == 8
    store.close()
    store = open_at(tmp_path, capacity_groups=64)
    assert store.dispatch(specs, incarnation=0) == 64
    store.close()


def test_everything_survives_a_reopening(tmp_path: Path) -> None:
    store = open_at(tmp_path)
    store.rewind(0)
    store.dispatch([make_spec(i) for i in range(3)], incarnation=0)
    slots = claim(store, 5)
    for slot in slots[:4]:
        store.put(make_trajectory(slot), slot)
    taken, _ = store.take(incarnation=0, choose=oldest_first(1), timeout_s=0.0)
    entry = make_entry(1, [taken[0].spec.group_id])
    store.record(entry, incarnation=0)
    before = store.stats()
    store.close()
    store = open_at(tmp_path)
    assert store.stats() == before
    assert store.heartbeat(slots[4:], ttl_s=10.0) == ()
    assert store.rewind(0).journal == (entry,)
    store.close()


def test_the_map_grows_by_itself(tmp_path: Path) -> None:
    """Whatever it begins with, the capacity is the only limit, and a larger trajectory than the map fits."""
    store = open_at(tmp_path, map_bytes=MIB, side_file_bytes=64 * MIB)
    store.rewind(0)
    store.dispatch([make_spec(i, group_size=1) for i in range(60)], incarnation=0)
    slots = claim(store)
    for slot in slots:
        num_tokens = 2_000_000 if slot.group_id == "g59" else 16_000
        assert store.put(make_trajectory(slot, num_tokens=num_tokens), slot) == "accepted"
    assert (tmp_path / "data.mdb").stat().st_size > 16 * MIB
    taken, _ = store.take(incarnation=0, choose=oldest_first(60), timeout_s=0.0)
    assert [group.trajectories[0].num_tokens for group in taken][-2:] == [16_000, 2_000_000]
    assert count_lost(store.stats()) == 0
    assert store.audit() == ()
    store.close()


def test_a_map_that_cannot_grow_is_explained_and_nothing_is_lost(tmp_path: Path) -> None:
    """In a process whose addresses are limited: the message says so; the next process goes on."""
    program = """
import resource, sys
from pathlib import Path
from forebay.errors import StoreError
from tests.unit.store.test_lmdb import *
store = open_at(Path(sys.argv[1]), map_bytes=MIB)
store.rewind(0)
store.dispatch([make_spec(i, group_size=1) for i in range(100)], incarnation=0)
slots = claim(store)
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 12 * MIB, resource.RLIM_INFINITY))
accepted = 0
try:
    for slot in slots:
        store.put(make_trajectory(slot, num_tokens=16_000), slot)
        accepted += 1
except StoreError as error:
    print(accepted, error)
"""
    found = subprocess.run(
        [sys.executable, "-c", program, tmp_path], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    accepted = int(found.split()[0])
    assert "its map cannot grow (got 8388608 bytes mapped). Nothing was lost; raise the limit" in found
    store = open_at(tmp_path)
    assert store.stats().settled_groups == accepted > 10
    assert store.audit() == ()
    store.close()


def test_space_of_consumed_work_is_used_again(tmp_path: Path) -> None:
    """Many times the file's size goes through it, in trajectories of mixed sizes; it does not grow."""
    store = open_at(tmp_path)
    incarnation = store.rewind(0).incarnation
    sizes = []
    for step in range(1, 61):
        store.dispatch([make_spec(8 * step + i - 8) for i in range(8)], incarnation=incarnation)
        for number, slot in enumerate(claim(store)):
            store.put(make_trajectory(slot, num_tokens=2_000 * (1 + number % 5)), slot)
        taken, _ = store.take(incarnation=incarnation, choose=oldest_first(8), timeout_s=0.0)
        store.record(make_entry(step, [group.spec.group_id for group in taken]), incarnation=incarnation)
        store.commit(step, incarnation=incarnation)
        sizes.append((tmp_path / "data.mdb").stat().st_size)
    bytes_per_step = 16 * 6_000 * 6
    assert sizes[-1] < 6 * bytes_per_step
    assert sizes[-1] <= 1.25 * sizes[9]
    store.close()


class HeldDisk(SideFiles):
    """Writes a file only once it is let; tells that somebody tries."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, sync=True)
        self.busy, self.free = threading.Event(), threading.Event()

    def write(self, frame: bytes) -> str:
        self.busy.set()
        assert self.free.wait(60.0)
        return super().write(frame)


def test_c55_small_puts_are_acknowledged_while_a_large_one_is_on_its_way(tmp_path: Path) -> None:
    store = open_at(tmp_path)
    store._transactions.engine._files = disk = HeldDisk(tmp_path / "payloads")
    store.dispatch([make_spec(0, group_size=1001)], incarnation=0)
    large, *small = claim(store, 1001)
    with ThreadPoolExecutor(1) as pool:
        trajectory = make_trajectory(large, num_tokens=64 * MIB // 6)
        pending = pool.submit(store.put, trajectory, large)
        assert disk.busy.wait(60.0)
        receipts = [store.put(make_trajectory(slot, num_tokens=128), slot) for slot in small]
        assert receipts == ["accepted"] * 1000
        assert not pending.done()
        assert store.stats().counters["accepted"] == 1000
        disk.free.set()
        assert pending.result(60.0) == "accepted"
    assert [path.stat().st_size >= 63 * MIB for path in (tmp_path / "payloads").iterdir()] == [True]
    assert store.stats().settled_groups == 1
    store.close()


def test_an_operation_that_fails_halfway_leaves_its_neighbors_in_the_same_commit(tmp_path: Path) -> None:
    store = open_at(tmp_path)
    engine = store._transactions.engine
    entered, gathered = threading.Event(), threading.Event()

    def hold(txn: Txn) -> None:
        entered.set()
        assert gathered.wait(10.0)

    def write(txn: Txn, i: int) -> int:
        txn.put(b"x/%d" % i, b"")
        if i % 3 == 0:
            raise ZeroDivisionError(i)
        return i

    with ThreadPoolExecutor(10) as pool:
        first = pool.submit(engine.write, hold)
        assert entered.wait(10.0)
        rest = [pool.submit(engine.write, functools.partial(write, i=i)) for i in range(9)]
        while len(engine._committer._waiting) < 9:
            threading.Event().wait(0.001)
        gathered.set()
        first.result(10.0)
        errors = [future.exception(10.0) for future in rest]
    assert [type(error) for error in errors] == [ZeroDivisionError, type(None), type(None)] * 3
    assert [future.result() for future in rest if not future.exception()] == [1, 2, 4, 5, 7, 8]
    kept = engine.read(lambda txn: [key for key, _ in txn.scan(b"x/")])
    assert kept == [b"x/1", b"x/2", b"x/4", b"x/5", b"x/7", b"x/8"]
    store.close()


def test_one_environment_serves_a_whole_process(tmp_path: Path) -> None:
    first, second = open_at(tmp_path), open_at(tmp_path, capacity_groups=8)
    first.dispatch([make_spec(0)], incarnation=0)
    assert [slot.group_id for slot in claim(second)] == ["g0", "g0"]
    first.close()
    first.close()
    assert second.stats().leased_slots == 2
    second.close()
    with pytest.raises(StoreError, match="the store is closed"):
        second.stats()
    with pytest.raises(StoreError, match="the store is closed"):
        second.rewind(0)


def test_one_process_has_one_durability(tmp_path: Path) -> None:
    store = open_at(tmp_path)
    with pytest.raises(ConfigError, match=r"one durability .got fsync, limit os"):
        open_store(StoreSettings(path=tmp_path, durability="fsync"), RUN)
    store.close()
    open_store(StoreSettings(path=tmp_path, durability="fsync"), RUN).close()


class Disk:
    """An environment whose waits for the disk are counted, and fail on demand.

    Args:
        store: Whose environment it takes the place of.
    """

    def __init__(self, store: RuleStore) -> None:
        engine: Any = store._transactions.engine
        self.num_waits, self.fails = 0, False
        self._env, engine._env = engine._env, self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def sync(self, force: bool) -> None:
        self.num_waits += 1
        if self.fails:
            raise lmdb.DiskError("mdb_env_sync: Input/output error")
        self._env.sync(force)


def test_only_what_power_loss_must_not_undo_waits_for_the_disk(tmp_path: Path) -> None:
    store = open_store(StoreSettings(path=tmp_path), RUN, ManualClock(1000.0))
    disk = Disk(store)
    store.dispatch([make_spec(0), make_spec(1)], incarnation=0)
    assert disk.num_waits == 1
    slots = claim(store)
    store.heartbeat(slots, ttl_s=50.0)
    store.release_slot(slots[3])
    assert disk.num_waits == 1
    store.put_many([(make_trajectory(slot), slot) for slot in slots[:2]])
    assert disk.num_waits == 2
    store.take(incarnation=0, choose=oldest_first(1), timeout_s=0.0)
    assert disk.num_waits == 2
    store.record(make_entry(1, ["g0"]), incarnation=0)
    assert disk.num_waits == 3
    store.close()


def test_c79_a_disk_that_loses_a_commit_ends_the_writing(tmp_path: Path) -> None:
    """Nobody can tell whether it is there: no file that it names goes away, and nothing is built on it."""
    settings = StoreSettings(path=tmp_path, side_file_bytes=0)
    store = open_store(settings, RUN, ManualClock(1000.0))
    store.dispatch([make_spec(0)], incarnation=0)
    slots = claim(store)
    disk = Disk(store)
    disk.fails = True
    with pytest.raises(StoreError, match=r"the disk of the store in .* is full, or fails"):
        store.put(make_trajectory(slots[0]), slots[0])
    disk.fails = False
    with pytest.raises(DamagedError, match=r"failed to keep a commit.* start again"):
        store.put(make_trajectory(slots[1]), slots[1])
    store.close()
    store = open_store(settings, RUN, ManualClock(1000.0))
    assert store.put(make_trajectory(slots[0]), slots[0]) == "duplicate"
    assert store.put(make_trajectory(slots[1]), slots[1]) == "accepted"
    assert len(store.read_group("g0").trajectories) == 2
    assert store.audit() == ()
    store.close()


@pytest.mark.parametrize("side_file_bytes", [MIB, 0])
def test_c75_a_frame_that_rots_on_disk_is_set_aside_and_the_run_goes_on(
    tmp_path: Path, side_file_bytes: int
) -> None:
    store = open_at(tmp_path, side_file_bytes=side_file_bytes)
    store.dispatch(
        [make_spec(0, min_group_size=1), make_spec(1, min_group_size=2), make_spec(2)], incarnation=0
    )
    for slot in claim(store):
        store.put(make_trajectory(slot), slot)
    for group_id in ("g0", "g1"):
        spoil(tmp_path, store, group_id, member=1)
    with pytest.raises(StoreError, match=r"member 1 of group g0 cannot be read back: frame"):
        store.read_group("g0")
    taken, _ = store.take(incarnation=0, choose=oldest_first(2), timeout_s=0.0)
    assert [(g.spec.group_id, [t.member for t in g.trajectories]) for g in taken] == [
        ("g0", [0]),
        ("g2", [0, 1]),
    ]
    stats = store.stats()
    assert (stats.counters["trajectories.rejected.corrupt"], stats.counters["dropped.corrupt"]) == (3, 1)
    assert count_lost(stats) == 0
    assert store.audit() == ()
    store.close()


def spoil(path: Path, store: RuleStore, group_id: str, member: int) -> None:
    """Flip bits of a stored frame, wherever it lies."""
    engine = store._transactions.engine
    frames = {p: p.read_bytes() for p in (path / "payloads").iterdir()}
    key = payload_key(group_id, member)
    inside = engine.read(lambda txn: txn.get(key))
    if inside is not None:
        engine.write(lambda txn: txn.put(key, inside[:-70] + bytes(70)))
        return
    wanted = f'"{group_id}",2,{member},'.encode()
    for file, frame in frames.items():
        if wanted in frame:
            file.write_bytes(frame[:-70] + bytes(70))


def test_side_files_of_a_late_or_refused_put_are_removed(tmp_path: Path) -> None:
    store = open_at(tmp_path, side_file_bytes=0)
    store.dispatch([make_spec(0)], incarnation=0)
    slot = claim(store)[0]
    store.put(make_trajectory(slot, name="a"), slot)
    store.put(make_trajectory(slot, name="b"), slot)
    assert len(list((tmp_path / "payloads").iterdir())) == 1
    store.close()


def test_memory_that_cannot_be_mapped_is_explained(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot open the store .* lower store\.map_bytes"):
        open_at(tmp_path, map_bytes=1 << 60)


@pytest.mark.parametrize("share", [0.5, 0.1])
def test_a_file_that_was_cut_is_an_error_and_not_the_end_of_the_process(tmp_path: Path, share: float) -> None:
    store = open_at(tmp_path)
    store.dispatch([make_spec(i, group_size=1) for i in range(40)], incarnation=0)
    for slot in claim(store):
        store.put(make_trajectory(slot, num_tokens=2000), slot)
    store.close()
    data = tmp_path / "data.mdb"
    os.truncate(data, int(share * data.stat().st_size))
    program = """
import sys
from pathlib import Path
from forebay.errors import StoreError
from forebay.store import StoreSettings, open_store
from tests.unit.store.builders import RUN, oldest_first
try:
    store = open_store(StoreSettings(path=Path(sys.argv[1]), durability="os"), RUN)
    store.take(incarnation=0, choose=oldest_first(40), timeout_s=0.0)
except StoreError as error:
    print(error)
"""
    outcome = subprocess.run(
        [sys.executable, "-c", program, tmp_path], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert outcome.returncode == 0, outcome.stderr
    assert re.match(r"the file of the store in .* is damaged: .*|the store's .* is damaged", outcome.stdout)


@pytest.mark.parametrize("kind", ["store", "view"])
def test_a_file_that_is_cut_under_a_process_is_an_error_at_the_next_call(tmp_path: Path, kind: str) -> None:
    """The other process has read every page; at each line that it is sent it makes the calls again."""
    store = open_at(tmp_path)
    store.dispatch([make_spec(i, group_size=1) for i in range(40)], incarnation=0)
    for slot in claim(store):
        store.put(make_trajectory(slot, num_tokens=2000), slot)
    store.close()
    program = """
import sys
from pathlib import Path
from forebay.errors import DamagedError
from forebay.store import StoreSettings, open_store, view_store
from tests.unit.store.builders import RUN, make_spec
settings = StoreSettings(path=Path(sys.argv[1]), durability="os")
if sys.argv[2] == "view":
    calls = (view_store(settings, RUN).audit,)
else:
    store = open_store(settings, RUN)
    calls = (store.audit, lambda: store.dispatch([make_spec(0)], incarnation=0))
for line in sys.stdin:
    said = []
    for call in calls:
        try:
            said.append(call())
        except DamagedError as error:
            said.append(error)
    print(*said, sep="|", flush=True)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program, tmp_path, kind],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert ask(other) == {"store": ["()", "1"], "view": ["()"]}[kind]
        os.truncate(tmp_path / "data.mdb", 3 * 4096)
        for said in ask(other):
            assert re.match(r"the file of the store, .*, was cut while it was in use \(got 12288 bytes", said)
        other.communicate(timeout=60)
        assert other.returncode == 0


def ask(other: subprocess.Popen[str]) -> list[str]:
    assert other.stdin is not None
    assert other.stdout is not None
    other.stdin.write("go\n")
    other.stdin.flush()
    return other.stdout.readline().strip().split("|")
