"""One store, several processes, and what is left when they are killed."""

from __future__ import annotations

import re
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from forebay.clock import SystemClock
from forebay.errors import StoreError
from forebay.store import Durability, Slot, StoreSettings, open_store
from forebay.store.rules import RuleStore
from forebay.trajectory import Trajectory
from tests.unit.store.builders import FIRST, RUN, make_entry, make_spec, make_trajectory, oldest_first
from tests.unit.store.worker import settings_for

ROOT = Path(__file__).parents[2]
HANG_S = 60.0
CLOCK = SystemClock()

Spawn = Callable[[str, Path], subprocess.Popen[bytes]]


@pytest.fixture
def spawn(tmp_path: Path) -> Iterator[Spawn]:
    """Start workers on the store of this test; none outlives it."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(role: str, log: Path) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.unit.store.worker", role, tmp_path / "store", log]
        processes.append(subprocess.Popen(command, cwd=ROOT))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.wait()


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline_s = CLOCK.monotonic_s() + HANG_S
    while not condition():
        assert CLOCK.monotonic_s() < deadline_s, f"waited {HANG_S} s for {what}"
        CLOCK.sleep(0.01)


def lines_of(*logs: Path) -> list[list[str]]:
    lines = [line.split() for log in logs if log.exists() for line in log.read_text().splitlines()]
    return [words for words in lines if words[0] != "#"]


def test_many_processes_make_one_store(tmp_path: Path, spawn: Spawn) -> None:
    processes = [spawn("opener", tmp_path / f"log{i}") for i in range(6)]
    assert [process.wait(HANG_S) for process in processes] == [0] * 6
    store = open_store(settings_for(tmp_path / "store"), RUN, CLOCK)
    assert store.stats().outstanding == 0
    assert sorted(path.name for path in (tmp_path / "store").iterdir()) == [
        "data.mdb",
        "lock.mdb",
        "payloads",
        "store.json",
    ]
    store.close()


def test_a_killed_reader_pins_nothing(tmp_path: Path, spawn: Spawn) -> None:
    """A snapshot held by a dead process would keep every freed page: the file must stay flat."""
    path = tmp_path / "store"
    store = open_store(settings_for(path, capacity_groups=100), RUN, CLOCK)
    cycle(store, 0)
    reader = spawn("reader", tmp_path / "reader.log")
    wait_for(lambda: lines_of(tmp_path / "reader.log") != [], "the reader")
    reader.kill()
    reader.wait()
    store.close()
    store = open_store(settings_for(path, capacity_groups=100), RUN, CLOCK)
    for i in range(1, 10):
        cycle(store, i)
    flat = (path / "data.mdb").stat().st_size
    for i in range(10, 40):
        cycle(store, i)
    # Thirty cycles of 0.6 MB each went through it.
    assert (path / "data.mdb").stat().st_size <= flat + 1_000_000
    store.close()


def cycle(store: RuleStore, serial: int) -> None:
    store.dispatch([make_spec(serial, group_size=20)], incarnation=0)
    for slot in store.claim(20, ttl_s=100.0, actor="actor", version=FIRST):
        store.put(make_trajectory(slot, num_tokens=5000), slot)
    taken, _ = store.take(incarnation=0, choose=oldest_first(1), timeout_s=0.0)
    store.record(make_entry(serial + 1, [taken[0].spec.group_id]), incarnation=0)
    store.commit(serial + 1, incarnation=0)


@contextmanager
def small_file_system(path: Path) -> Iterator[Callable[[], None]]:
    """A file system of 4 MB at `path`; yields what enlarges it."""
    path.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", path], capture_output=True)
    if mounted.returncode:
        pytest.skip("may not mount a file system here")
    try:
        yield lambda: subprocess.run(["mount", "-o", "remount,size=64m", path], check=True)
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)


@contextmanager
def small_files(path: Path) -> Iterator[Callable[[], None]]:
    """No file of this process may exceed 2 MB; yields what lifts the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, hard))
    try:
        yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize(
    ("limit", "side_file_bytes"),
    [(small_file_system, 1 << 20), (small_file_system, 0), (small_files, 1 << 20)],
    ids=["file-system-inside", "file-system-side-files", "file-size-inside"],
)
@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_a_full_disk_brakes_and_loses_nothing(
    tmp_path: Path,
    limit: Callable[[Path], AbstractContextManager[Callable[[], None]]],
    side_file_bytes: int,
    durability: Durability,
) -> None:
    settings = StoreSettings(
        path=tmp_path / "disk" / "store", durability=durability, side_file_bytes=side_file_bytes
    )
    with limit(tmp_path / "disk") as enlarge:
        store = open_store(settings, RUN, CLOCK)
        store.dispatch([make_spec(i, group_size=1) for i in range(400)], incarnation=0)
        slots = store.claim(400, ttl_s=1e6, actor="actor", version=FIRST)
        acknowledged = fill(store, slots)
        assert 10 < len(acknowledged) < 400
        # Full is not closed: what was acknowledged can be read, and what was refused left no trace.
        assert store.audit() == ()
        assert store.stats().settled_groups == len(acknowledged)
        enlarge()
        refused = slots[len(acknowledged) :]
        assert [store.put(large(slot), slot) for slot in refused] == ["accepted"] * len(refused)
        store.close()
        store = open_store(settings, RUN, CLOCK)
        taken, _ = store.take(incarnation=0, choose=oldest_first(400), timeout_s=0.0)
        names = [trajectory.trajectory_id for group in taken for trajectory in group.trajectories]
        assert names == [f"{slot.group_id}.0.0" for slot in slots]
        assert sum(1 for _ in (settings.path / "payloads").iterdir()) == (0 if side_file_bytes else 400)
        store.close()


def large(slot: Slot) -> Trajectory:
    return make_trajectory(slot, num_tokens=8000)


def fill(store: RuleStore, slots: Sequence[Slot]) -> list[str]:
    """Put until the disk is full, and once more; return what was acknowledged."""
    acknowledged: list[str] = []
    for slot in slots:
        try:
            store.put(large(slot), slot)
        except StoreError as error:
            # The message says what is full, that nothing was lost, and what to do.
            assert re.search(
                r"disk of the store in .* is full|cannot write a trajectory of \d+ bytes", str(error)
            )
            assert re.search(r"Free space on .*; nothing was lost", str(error))
            with pytest.raises(StoreError):
                store.put(large(slot), slot)
            break
        acknowledged.append(slot.group_id)
    return acknowledged


def test_a_file_that_another_process_enlarged_is_followed(tmp_path: Path) -> None:
    """A process with a small map meets pages beyond it; it reads and writes on."""
    sizes = {"capacity_bytes": 1 << 20, "retained_capacity_bytes": 1 << 20, "side_file_bytes": 1 << 20}
    settings = StoreSettings(path=tmp_path, durability="os", map_bytes=2 << 20, **sizes)
    store = open_store(settings, RUN, CLOCK)
    store.dispatch([make_spec(i, group_size=1) for i in range(100)], incarnation=0)
    program = """
import sys
from pathlib import Path
from forebay.clock import SystemClock
from forebay.store import StoreSettings, open_store
from tests.unit.store.builders import FIRST, RUN, make_trajectory
store = open_store(StoreSettings(path=Path(sys.argv[1]), durability="os"), RUN, SystemClock())
for slot in store.claim(98, ttl_s=1e6, actor="other", version=FIRST):
    store.put(make_trajectory(slot, num_tokens=8000), slot)
store.close()
"""
    subprocess.run([sys.executable, "-c", program, tmp_path], cwd=ROOT, timeout=HANG_S, check=True)
    assert (tmp_path / "data.mdb").stat().st_size > 3 << 20
    assert store.stats().settled_groups == 98
    taken, _ = store.take(incarnation=0, choose=oldest_first(20), timeout_s=0.0)
    assert len(taken) == 20
    for slot in store.claim(2, ttl_s=1e6, actor="actor", version=FIRST):
        assert store.put(large(slot), slot) == "accepted"
    store.record(make_entry(1, [group.spec.group_id for group in taken]), incarnation=0)
    store.commit(1, incarnation=0)
    assert store.audit() == ()
    store.close()


def test_a_store_is_not_used_across_a_fork(tmp_path: Path) -> None:
    program = """
import os, sys
from pathlib import Path
from forebay.errors import ConfigError, StoreError
from forebay.store import StoreSettings, open_store
settings = StoreSettings(path=Path(sys.argv[1]))
store = open_store(settings, "run-1")
child = os.fork()
if child == 0:
    try:
        store.stats()
    except StoreError as error:
        refused = "opened before a fork" in str(error)
    try:
        open_store(settings, "run-1")
    except ConfigError as error:
        refused = refused and "Start processes with spawn" in str(error)
    os._exit(0 if refused else 1)
assert os.waitpid(child, 0)[1] == 0
assert store.rewind(0).incarnation == 0
store.close()
"""
    command = [sys.executable, "-W", "ignore", "-c", program, tmp_path / "store"]
    assert subprocess.run(command, cwd=ROOT, timeout=HANG_S, check=False).returncode == 0
