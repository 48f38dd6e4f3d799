"""A run that is stopped, damaged, or out of disk space goes on where it was."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from forebay.cli.runs import join_run
from forebay.learner.checkpoint_manifest import list_steps, step_directory
from forebay.trajectory import PolicyVersion
from forebay.weights.layout import read_marker
from tests.system.conftest import MakeDisk
from tests.system.harness import Harness, account, command, read_logs
from tests.system.told import Told

TRAIN_S = 240.0


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    with Harness(tmp_path, ("learner.steps=40",)) as harness:
        yield harness


def stop_at(harness: Harness, step: int, number: int) -> int:
    """Start, send a signal once a step is trained, and return the exit code."""
    harness.start()
    assert harness.wait_until(lambda: harness.step() >= step, f"step {step}"), harness.tail()
    assert harness.train is not None
    os.kill(harness.train.pid, number)
    return harness.train.wait(TRAIN_S)


def finish(harness: Harness) -> int:
    harness.start()
    harness.wait_until(lambda: False, "the end")
    assert harness.train is not None
    return harness.train.wait()


@pytest.mark.timeout(900)
def test_a_stopped_run_goes_on_where_it_was(harness: Harness) -> None:
    """C84, SIGTERM, C57 with damaged checkpoints, Ctrl-C, and the end of it all, in the life of one run."""
    harness.overrides = ("learner.steps=1",)  # shorter than the window of max_staleness 4
    assert finish(harness) == 0, harness.tail()
    assert read_marker(harness.run / "weights") == PolicyVersion(0, 1)

    harness.overrides = ("learner.steps=40",)
    assert stop_at(harness, 9, signal.SIGTERM) == 0, harness.tail()
    stopped = harness.step()
    checkpoints = harness.run / "checkpoints"
    assert list_steps(checkpoints)[-1] == stopped  # saved on the way out
    assert len(list_steps(checkpoints)) == 2

    older, newest = list_steps(checkpoints)
    state = next(step_directory(checkpoints, newest).glob("*.safetensors"))
    os.truncate(state, state.stat().st_size // 2)
    empty = step_directory(checkpoints, newest + 1)
    empty.mkdir()
    shutil.copytree(step_directory(checkpoints, older), checkpoints / f"{empty.name}.tmp")
    assert stop_at(harness, stopped + 3, signal.SIGINT) == 130, harness.tail()
    skipped = [line for line in read_logs(harness, "learner") if "skipped checkpoint" in line]
    assert any(step_directory(checkpoints, newest).name in line for line in skipped)
    assert any(empty.name in line for line in skipped)
    # The journal has what the damaged checkpoint had, and batches that were recorded ahead of their step.
    log = "\n".join(read_logs(harness, "learner"))
    replayed = [
        int(version) for version in re.findall(r"replayed \d+ batches; continuing at version (\d+)", log)
    ]
    assert max(replayed) >= stopped

    assert finish(harness) == 0, harness.tail()
    totals, wrong = account(harness)
    assert wrong == []
    assert (totals["steps"], totals["incarnations"]) == (40, 4)
    replay = command("store", "replay", str(harness.run))
    assert "40 batches replayed up to version 40: bit for bit equal" in replay.stdout, replay.stderr


@pytest.mark.timeout(600)
def test_replay_of_a_run_whose_weights_were_exchanged_fails(told: Told, tmp_path: Path) -> None:
    run = shutil.copytree(told.path, tmp_path / "told", symlinks=True)
    manifest = run / "weights" / "v-0-2" / "manifest.json"
    content = msgspec.json.decode(manifest.read_bytes())
    manifest.write_bytes(msgspec.json.encode(content | {"digest": "0" * 32}))
    outcome = command("store", "replay", str(run))
    assert outcome.returncode == 4
    assert "other weights than (0, 2)" in outcome.stderr.splitlines()[-1]


@pytest.mark.timeout(600)
def test_c39_a_run_in_which_nothing_moves_ends_with_3_and_says_what_it_waited_for(harness: Harness) -> None:
    """The environment answers after an hour."""
    harness.overrides = (
        "learner.no_progress_s=3.0", "environment.variety.latency.mean_s=3600.0",
        "environment.variety.step_timeout_s=7000.0", "environment.variety.episode_timeout_s=7000.0",
    )  # fmt: skip
    assert finish(harness) == 3
    last = (harness.directory / "train.log").read_text()
    assert "nothing moved" in last
    assert "learner waits for 4 more settled groups" in last


@pytest.fixture
def small_disk(make_disk: MakeDisk) -> Path:
    return make_disk(100)


@pytest.mark.timeout(900)
def test_a_full_disk_ends_the_run_with_a_clear_message_and_loses_nothing(small_disk: Path) -> None:
    with Harness(small_disk, ("learner.steps=400", "launch.max_restarts=1")) as harness:
        harness.start()
        assert harness.wait_until(lambda: harness.step() >= 3, "step 3"), harness.tail()
        ballast = small_disk / "ballast"
        fill(ballast)
        assert harness.train is not None
        assert harness.train.wait(TRAIN_S) == 4, harness.tail()
        reached = harness.step()
        ballast.unlink()
        message = (harness.directory / "train.log").read_text().splitlines()[-1]
        assert message.startswith("error: learner failed 2 times in a row")
        # Store, publisher or checkpoint: whichever wrote first names what it saw and the remedy.
        assert re.search(r"is full, or fails|No space left|bytes free", message), message
        assert re.search(r"Free (disk )?space", message), message
        assert command("store", "verify", str(harness.run)).returncode == 0
        harness.overrides = (f"learner.steps={reached + 10}",)
        assert finish(harness) == 0, harness.tail()
        totals, wrong = account(harness)
        assert wrong == []
        assert totals["steps"] == reached + 10


def fill(path: Path) -> None:
    """Write until the disk is full."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while file.write(b"\0" * size):
                    pass
            except OSError:
                continue


def test_a_run_without_its_journal_cannot_be_replayed(tmp_path: Path) -> None:
    from forebay.cli.runs import own_run
    from forebay.config import load_config
    from tests.system.harness import CONFIG

    directory, run = own_run(
        load_config(CONFIG, [f"run.directory={tmp_path}", "learner.keep_consumed=false"])
    )
    directory.close()
    assert join_run(run.layout.path).run_id == run.run_id
    outcome = command("store", "replay", str(run.layout.path))
    assert outcome.returncode == 2
    assert "learner.keep_consumed=true" in outcome.stderr
