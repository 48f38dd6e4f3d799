"""A learner of several processes: whoever is killed, all start again from the checkpoint and lose nothing."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import psutil
import pytest

from forebay.learner.checkpoint_manifest import list_steps, read_manifest, step_directory
from tests.system.harness import Harness, account, command, read_logs

# Only process 0 may keep compiled programs: the others compile again at every start, so there is little to.
SMALL = ("model.num_layers=1", "batching.max_programs=1", "learner.checkpoint_every=3")
GANG = (*SMALL, "mesh.fsdp=2", "learner.processes=2")


def member(harness: Harness, number: int) -> psutil.Process:
    """Return one process of the learner."""
    for process in harness.processes().get("learner", []):
        words = process.cmdline()
        if words[words.index("--process-id") + 1] == str(number):
            return process
    raise AssertionError(f"process {number} does not run: {harness.tail()}")


def kill_at(harness: Harness, step: int, number: int) -> None:
    assert harness.wait_until(lambda: harness.step() >= step, f"step {step}"), harness.tail()
    member(harness, number).send_signal(signal.SIGKILL)


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
    overrides = (*SMALL, "learner.steps=30", "mesh.fsdp=2", "mesh.data=2", "learner.processes=4")
    with Harness(tmp_path, overrides) as harness:
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
