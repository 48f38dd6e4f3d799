from __future__ import annotations

import json
from pathlib import Path

import pytest

from forebay.cli.runs import own_run
from forebay.cli.store_summary import COUNTERS, meaning_of, summarize_store
from forebay.config import load_config
from forebay.staleness import OutstandingGroup
from forebay.store import StoreStats
from forebay.trajectory import PolicyVersion
from tests.house.sources import ROOT
from tests.unit.cli.support import forebay
from tests.unit.store.builders import FIRST, make_spec, make_trajectory

MIB = 2**20


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with one stored trajectory and a group that nobody has begun."""
    directory, run = own_run(load_config(None, [f"run.directory={tmp_path}", "run.name=x"]))
    with directory:
        store = run.open_store()
        store.rewind(0)
        store.dispatch([make_spec(0), make_spec(1, environment="sums")], incarnation=0)
        [slot] = store.claim(1, ttl_s=1e6, actor="a", version=FIRST)
        store.put(make_trajectory(slot, run_id=run.run_id), slot)
        store.close()
    return tmp_path / "x"


def test_stats_are_for_people_and_json_for_programs(run: Path) -> None:
    code, text = forebay("store", "stats", str(run))
    assert code == 0
    lines = [line.strip() for line in text.splitlines()]
    assert "groups         2 wait for members, 0 can be taken" in lines
    assert "trajectories   1 stored, 0 lost" in lines
    assert any(line.startswith("sums") and "1 open, 0 settled" in line for line in lines)
    assert any(line.split() == ["dispatched", "2", "made", "claimable"] for line in lines)
    assert forebay("store", "show", str(run)).text.splitlines()[0] == text.splitlines()[0]
    tree = json.loads(forebay("store", "stats", str(run), "--json").text)
    assert (tree["open_groups"], tree["stored_trajectories"], tree["lost"]) == (2, 1, 0)
    assert tree["counters"]["dispatched"] == 2
    assert tree["live_by_environment"] == {"calculator": 1, "sums": 1}


def test_a_run_that_was_never_started_has_no_store(tmp_path: Path) -> None:
    own_run(load_config(None, [f"run.directory={tmp_path}", "run.name=x"]))[0].close()
    code, text = forebay("store", "stats", str(tmp_path / "x"))
    assert code == 2 and "no store in" in text and "Start the run first" in text


def test_bytes_ages_and_counters_have_units_and_meanings() -> None:
    stats = StoreStats(
        run_id="r",
        incarnation=1,
        forks=(),
        published=PolicyVersion(1, 20),
        next_serial=9,
        outstanding=5,
        open_groups=3,
        settled_groups=2,
        leased_slots=7,
        stored_trajectories=8,
        live_bytes=3 * MIB // 2,
        retained_bytes=0,
        capacity_groups=64,
        capacity_bytes=4096 * MIB,
        retained_capacity_bytes=16384 * MIB,
        oldest_s=400.0,
        journal_steps=(18, 20),
        counters={"trajectories.accepted": 8, "errors.environment": 2, "odd": 1},
        settled_by_environment={},
    )
    groups = [
        OutstandingGroup(group_id="a", serial=0, environment="e", settled=True, start=None, num_bytes=MIB)
    ]
    text = summarize_store(stats, groups, "runs/r/store")
    assert "1.5 MiB of 4.0 GiB" in text and "6.7 min since" in text and "steps 18 to 20" in text
    assert "version 20 of incarnation 1 published" in text
    assert "0 open, 1 settled, 1.0 MiB" in text
    errors = next(line for line in text.splitlines() if "errors.environment" in line)
    assert errors.split(maxsplit=2) == ["errors.environment", "2", "attempts that failed"]
    assert text.splitlines()[-2:] == ["others", f"  {'odd':<32} {1:>10}"]


def test_every_counter_of_the_summary_is_in_the_reference() -> None:
    page = (ROOT / "docs" / "reference" / "store.md").read_text()
    names = [name for counters in COUNTERS.values() for name in counters]
    assert [name for name in names if f"`{name}" not in page and name != "rejected."] == []
    assert meaning_of("rejected.something_new") == ("groups", "rejected by the learner")
