from __future__ import annotations

from pathlib import Path

import pytest

from forebay.cli.runs import own_run
from forebay.config import load_config
from tests.unit.cli.support import forebay
from tests.unit.store.builders import FIRST, make_entry, make_spec, make_trajectory, oldest_first

TOKENS = 16_000


def make_run(path: Path, *overrides: str) -> Path:
    """A run whose store has held nine groups and holds one."""
    directory, run = own_run(load_config(None, [f"run.directory={path}", "run.name=x", *overrides]))
    with directory:
        store = run.open_store()
        store.rewind(0)
        store.dispatch([make_spec(i, group_size=1) for i in range(9)], incarnation=0)
        for slot in store.claim(9, ttl_s=1e6, actor="a", version=FIRST):
            store.put(make_trajectory(slot, run_id=run.run_id, num_tokens=TOKENS), slot)
        taken, _ = store.take(incarnation=0, choose=oldest_first(8), timeout_s=0.0)
        store.record(make_entry(1, [group.spec.group_id for group in taken]), incarnation=0)
        store.commit(1, incarnation=0)
        store.close()
    return path / "x"


def test_free_pages_are_given_back(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    data = run / "store" / "data.mdb"
    before = data.stat().st_size
    code, text = forebay("store", "compact", str(run))
    assert code == 0
    assert " before, " in text and " now" in text and str(run / "store") in text
    assert data.stat().st_size < before / 4
    assert forebay("store", "verify", str(run)).code == 0


def test_a_store_in_use_is_left_alone(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    data = run / "store" / "data.mdb"
    before = data.read_bytes()
    directory, opened = own_run(load_config(None, [f"run.directory={tmp_path}", "run.name=x"]))
    with directory:
        store = opened.open_store()
        code, text = forebay("store", "compact", str(run))
        store.close()
    assert code == 4
    assert "processes use the store" in text and "Stop the run first." in text
    assert data.read_bytes() == before


def test_only_an_lmdb_store_has_a_file(tmp_path: Path) -> None:
    server = ("store.engine=redis", "store.url=redis://127.0.0.1:1/0")
    config = load_config(None, [f"run.directory={tmp_path}", "run.name=x", *server])
    own_run(config)[0].close()
    code, text = forebay("store", "compact", str(tmp_path / "x"))
    assert code == 2
    assert "only an lmdb store has a file to compact (got store.engine=redis)" in text


@pytest.mark.parametrize("command", ["compact", "bench"])
def test_a_directory_that_is_no_run_is_one_clear_line(tmp_path: Path, command: str) -> None:
    code, text = forebay("store", command, str(tmp_path))
    assert code == 2
    assert len(text.strip().splitlines()) == 1 and str(tmp_path) in text
