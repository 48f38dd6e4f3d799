"""Compaction: a smaller file that holds the same, or the old one; never while somebody uses it."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from forebay.clock import ManualClock
from forebay.errors import ConfigError, StoreError, StoreVersionError
from forebay.store import StoreSettings, open_store, view_store
from forebay.store.compaction import compact_store
from forebay.store.rules import RuleStore
from forebay.wire import encode
from tests.unit.store.builders import FIRST, RUN, make_entry, make_spec, make_trajectory, oldest_first

ROOT = Path(__file__).parents[3]
TOKENS = 8000


def settings_at(path: Path) -> StoreSettings:
    return StoreSettings(path=path, durability="os", side_file_bytes=100_000)


def open_at(path: Path) -> RuleStore:
    return open_store(settings_at(path), RUN, ManualClock(1000.0))


def fill(path: Path, num_groups: int, num_consumed: int) -> RuleStore:
    """A store of groups of two, one trajectory small and one in a side file; the oldest are consumed."""
    store = open_at(path)
    store.rewind(0)
    store.dispatch([make_spec(i) for i in range(num_groups)], incarnation=0)
    for slot in store.claim(2 * num_groups, ttl_s=100.0, actor="actor", version=FIRST):
        store.put(make_trajectory(slot, num_tokens=TOKENS * (1 + 3 * slot.member)), slot)
    taken, _ = store.take(incarnation=0, choose=oldest_first(num_consumed), timeout_s=0.0)
    store.record(make_entry(1, [group.spec.group_id for group in taken]), incarnation=0)
    store.commit(1, incarnation=0)
    return store


def content(path: Path) -> object:
    with view_store(settings_at(path), RUN, ManualClock(1000.0)) as view:
        assert view.audit() == ()
        frames = [[encode(t) for t in view.read_group(g.group_id).trajectories] for g in view.scan()]
        return view.stats(), view.journal(), frames


def test_compaction_gives_free_pages_back_and_keeps_everything(tmp_path: Path) -> None:
    fill(tmp_path, num_groups=20, num_consumed=16).close()
    before = content(tmp_path)
    done = compact_store(tmp_path, RUN)
    assert content(tmp_path) == before
    assert done.before_bytes > 20 * 6 * TOKENS
    assert 4 * 6 * TOKENS < done.after_bytes < 8 * 6 * TOKENS
    assert done.after_bytes == (tmp_path / "data.mdb").stat().st_size
    assert not (tmp_path / "compacting").exists()
    store = open_at(tmp_path)
    assert len(store.take(incarnation=0, choose=oldest_first(4), timeout_s=0.0)[0]) == 4
    assert store.rewind(1).incarnation == 1
    store.close()


def test_compaction_refuses_while_a_process_uses_the_store(tmp_path: Path) -> None:
    store = fill(tmp_path, num_groups=2, num_consumed=1)
    with pytest.raises(StoreError, match=r"processes use the store in .*\. Stop the run first"):
        compact_store(tmp_path, RUN)
    store.close()
    with (
        view_store(settings_at(tmp_path), RUN) as view,
        pytest.raises(StoreError, match="processes use the store"),
    ):
        compact_store(tmp_path, RUN)
    assert view.stats is not None
    compact_store(tmp_path, RUN)


def test_compaction_touches_nothing_that_is_not_this_runs_store(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no store in"):
        compact_store(tmp_path, RUN)
    assert list(tmp_path.iterdir()) == []
    fill(tmp_path, num_groups=2, num_consumed=1).close()
    before = (tmp_path / "data.mdb").read_bytes()
    with pytest.raises(StoreVersionError, match="belongs to another run"):
        compact_store(tmp_path, "run-2")
    assert (tmp_path / "data.mdb").read_bytes() == before


PROGRAM = """
import sys
from pathlib import Path
from forebay.store.compaction import compact_store
while True:
    compact_store(Path(sys.argv[1]), "run-1")
    print("done", flush=True)
"""


def test_a_compaction_killed_anywhere_leaves_a_whole_store(tmp_path: Path) -> None:
    fill(tmp_path, num_groups=6, num_consumed=4).close()
    before = content(tmp_path)
    chance = random.Random(7)
    for _ in range(4):
        with subprocess.Popen(
            [sys.executable, "-c", PROGRAM, tmp_path], cwd=ROOT, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            for _ in range(chance.randrange(1, 4)):
                assert process.stdout.readline() == "done\n"
            os.kill(process.pid, signal.SIGKILL)
        assert content(tmp_path) == before
    # What the last one left is gone as soon as the store is opened.
    (tmp_path / "compacting").mkdir(exist_ok=True)
    open_at(tmp_path).close()
    assert not (tmp_path / "compacting").exists()
    assert content(tmp_path) == before
