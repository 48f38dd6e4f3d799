"""A learner of several processes: whoever is killed, all start again from the checkpoint and lose nothing."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from forebay.learner.checkpoint_manifest import list_steps, read_manifest, step_directory
from tests.system.harness import Harness, account, command, read_logs
from tests.system.kill_plan import Kill
from tests.system.soak import soak

# Only process 0 may keep compiled programs: the others compile again at every start, so there is little to.
SMALL = ("model.num_layers=1", "batching.max_programs=1", "learner.checkpoint_every=3")
GANG = (*SMALL, "mesh.fsdp=2", "learner.processes=2")
FOUR = (*SMALL, "mesh.data=2", "mesh.fsdp=2", "learner.processes=4")
SEED = 11


def kill_at(harness: Harness, step: int, number: int) -> None:
    assert harness.wait_until(lambda: harness.step() >= step, f"step {step}"), harness.tail()
    harness.kill("learner", number)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", [1, pytest.param(0, marks=pytest.mark.soak)])
def test_p2_any_process_of_the_learner_may_be_killed(tmp_path: Path, number: int) -> None:
    with Harness(tmp_path, (*GANG, "learner.steps=8")) as harness:
        harness.start()
        kill_at(harness, 4, number)
        harness.wait_until(lambda: False, "the end")
        assert harness.train is not None
        assert harness.train.wait() == 0, harness.tail()
        totals, wrong = account(harness)
        said = (tmp_path / "train.log").read_text()
        log = "\n".join(read_logs(harness, "learner"))
    assert wrong == []
    assert (totals["steps"], totals["lost"], totals["repeated"], totals["incarnations"]) == (8, 0, 0, 2)
    # The one that was killed is named to the user, and the other one says whom it missed.
    name = "learner" if number == 0 else f"learner-{number}"
    assert re.search(
        rf"^{name} was killed by SIGKILL.*; starting all 2 processes of the learner again", said, re.M
    )
    assert re.search(rf"error: learner process {number} \(pid \d+ on .*\) is gone", log)
    checkpoints = harness.run / "checkpoints"
    newest = read_manifest(step_directory(checkpoints, list_steps(checkpoints)[-1]))
    files = {f"state-0000{part}-of-00002.safetensors" for part in (1, 2)}
    assert {file.path for file in newest.files} == files
    exported = command("export", str(harness.run), "--to", str(tmp_path / "hf"), "--step", "8")
    assert exported.returncode == 0, exported.stderr


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_four_processes_stop_in_order_and_go_on_as_two_and_as_one(tmp_path: Path) -> None:
    with Harness(tmp_path, (*FOUR, "learner.steps=30"), hang_s=900.0) as harness:
        harness.start()
        assert harness.wait_until(lambda: harness.step() >= 5, "step 5"), harness.tail()
        assert harness.train is not None
        os.kill(harness.train.pid, signal.SIGTERM)
        assert harness.train.wait(240) == 0, harness.tail()
        for more in (
            ("learner.steps=12", "mesh.fsdp=2", "learner.processes=2"),
            ("learner.steps=16",),
        ):
            harness.overrides = (*SMALL, *more)
            harness.start()
            harness.wait_until(lambda: False, "the end")
            assert harness.train.wait() == 0, harness.tail()
            _, wrong = account(harness)
            assert wrong == []


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_p2_killed_as_four_a_run_goes_on_as_two_as_one_and_as_two_of_another_mesh(tmp_path: Path) -> None:
    """Everything dies in the middle of a step; what was journaled after a checkpoint is packed for others."""
    shapes = (
        ("mesh.context=2", "learner.processes=2"),
        (),
        ("mesh.fsdp=2", "learner.processes=2"),
    )
    steps = ("learner.steps=24",)
    kills = (Kill(5, "all"), Kill(10, "learner", member=1), Kill(12, "all"), Kill(17, "all"))
    with Harness(tmp_path, (*FOUR, *steps), hang_s=900.0) as harness:
        code = harness.run_through(kills, iter((*SMALL, *shape, *steps) for shape in shapes))
        assert code == 0, harness.tail()
        totals, wrong = account(harness)
    assert wrong == []
    assert [kill["role"] for kill in harness.done] == ["all", "learner", "all", "all"]
    assert (totals["steps"], totals["lost"], totals["repeated"], totals["incarnations"]) == (24, 0, 0, 5)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_p2_kills_of_four_processes_and_of_everybody_else_lose_nothing(tmp_path: Path) -> None:
    outcome = soak(tmp_path, 8, SEED, processes=4)
    assert outcome["wrong"] == [], outcome
    assert {kill["member"] for kill in outcome["kills"]} - {None}
