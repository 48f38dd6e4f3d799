from __future__ import annotations

import os
import socket

import msgspec
import pytest

from forebay.clock import ManualClock
from forebay.errors import ConfigError
from forebay.report.load import find_runs, load_run
from tests.unit.report.runs import BEGIN_S, line, make_run, make_trajectory

SCORES = [
    {
        "step": 0,
        "incarnation": 0,
        "reward": None,
        "reward_low": None,
        "reward_high": None,
        "num_tasks": 8,
        "num_failed": 8,
    },
    {
        "step": 4,
        "incarnation": 0,
        "reward": 0.5,
        "reward_low": 0.25,
        "reward_high": 0.75,
        "num_tasks": 8,
        "num_failed": 0,
    },
]


def test_a_whole_run_is_read(tmp_path) -> None:
    made = make_run(
        tmp_path / "run", [line(), line()], summary=True, evaluations=SCORES,
        actors=[{"live": 4, "claimed": 9}],
        trajectories={2: [make_trajectory()]},
    )  # fmt: skip
    run = load_run(made)
    assert (run.name, run.run_id, run.ending, run.created_s) == ("run", "run-1", "ended", BEGIN_S)
    assert [(e.step, e.reward, e.reward_low) for e in run.evaluations] == [(0, None, None), (4, 0.5, 0.25)]
    assert run.summary["busy"] == 0.75
    assert run.actors.counters == {"claimed": 9}
    assert [sample.version for sample in run.samples.samples] == [2]
    assert (run.setting("batching.groups"), run.setting("no.such", 7)) == (4, 7)
    assert run.problems == ()


def test_a_run_that_died_before_its_first_step_is_read(tmp_path) -> None:
    run = load_run(make_run(tmp_path / "run"), clock=ManualClock(BEGIN_S + 60))
    assert (run.ending, run.summary, run.history.num_steps) == ("ended without a summary", None, 0)


def test_a_run_whose_process_lives_goes_on(tmp_path) -> None:
    made = make_run(tmp_path / "run", [line()], summary=True)
    owner = {"pid": os.getpid(), "host": socket.gethostname()}
    (made / "run.lock").write_bytes(msgspec.json.encode(owner))
    assert load_run(made).ending == "goes on"
    (made / "run.lock").write_bytes(msgspec.json.encode(owner | {"host": "elsewhere"}))
    assert load_run(made).ending == "ended"
    (made / "run.lock").write_bytes(b"\xff")
    assert load_run(made).ending == "ended"


def test_damaged_files_are_named(tmp_path) -> None:
    made = make_run(tmp_path / "run", [line()])
    (made / "summary.json").write_bytes(b'{"busy": ')
    (made / "eval.jsonl").write_bytes(b'{"step": 1, "time_s": "x"}\n{"step": 2, "time_s": 3}\n')
    run = load_run(made)
    assert ["summary.json" in problem for problem in run.problems] == [True]
    assert [evaluation.step for evaluation in run.evaluations] == [2]


def test_a_damaged_manifest_is_refused_in_one_line(tmp_path) -> None:
    made = make_run(tmp_path / "run")
    (made / "manifest.json").write_bytes(b"{")
    with pytest.raises(ConfigError, match=r"manifest\.json is damaged"):
        load_run(made)
    (made / "manifest.json").unlink()
    with pytest.raises(ConfigError, match="not a run directory"):
        load_run(made)


def test_a_directory_of_a_comparison_holds_two_runs(tmp_path) -> None:
    sync, decoupled = make_run(tmp_path / "sync"), make_run(tmp_path / "decoupled")
    assert find_runs(tmp_path) == (sync, decoupled)
    assert find_runs(sync) == (sync,)
    (sync / "manifest.json").unlink()
    assert find_runs(tmp_path) == (decoupled,)
    with pytest.raises(ConfigError, match="not a run directory"):
        find_runs(sync)
    with pytest.raises(ConfigError, match="not a directory"):
        find_runs(tmp_path / "nowhere")
