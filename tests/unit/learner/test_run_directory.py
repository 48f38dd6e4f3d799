import os
import subprocess
import sys

import pytest

from forebay.clock import ManualClock
from forebay.errors import ConfigError, RunLockedError
from forebay.learner.run_directory import RunLayout, git_state, open_run, read_run_manifest


def start(path, mode="auto", **changes):
    arguments = {"config": {"steps": 3}, "seeds": {"run": 7}, "clock": ManualClock(1000.0), "mode": mode}
    return open_run(path, **(arguments | changes))


def test_a_new_run_records_what_it_was_started_with(tmp_path):
    with start(tmp_path / "demo") as run:
        assert not run.resumed
        assert run.run_id.startswith("demo-")
        manifest = read_run_manifest(tmp_path / "demo")
        assert manifest == run.manifest
        assert (manifest.config, manifest.seeds, manifest.created_s) == ({"steps": 3}, {"run": 7}, 1000.0)
        assert manifest.versions["python"] == ".".join(map(str, sys.version_info[:3]))
        assert manifest.versions["jax"].count(".") == 2
    layout = RunLayout(tmp_path / "demo")
    assert all(path.is_dir() for path in (layout.store, layout.weights, layout.checkpoints, layout.logs))
    assert layout.metrics.name == "metrics.jsonl"
    assert layout.summary.name == "summary.json"


def test_a_second_start_resumes_the_run_with_its_own_id_and_configuration(tmp_path):
    start(tmp_path / "demo", run_id="first").close()
    with start(tmp_path / "demo", config={"steps": 9}, run_id="second") as run:
        assert (run.resumed, run.run_id, run.manifest.config) == (True, "first", {"steps": 3})


def test_new_refuses_an_old_run_and_resume_refuses_a_new_one(tmp_path):
    with pytest.raises(ConfigError, match="no run to resume"):
        start(tmp_path / "demo", mode="resume")
    assert not (tmp_path / "demo").exists()
    start(tmp_path / "demo").close()
    with pytest.raises(ConfigError, match="holds a run already"):
        start(tmp_path / "demo", mode="new")
    start(tmp_path / "demo", mode="resume").close()


def test_a_second_run_in_the_same_directory_is_refused_with_the_process_that_has_it(tmp_path):
    with start(tmp_path / "demo"):
        with pytest.raises(RunLockedError, match=rf"live run: process {os.getpid()} on ") as caught:
            start(tmp_path / "demo")
        assert caught.value.exit_code == 2
    start(tmp_path / "demo").close()


HOLDER = """
import sys, time
from pathlib import Path
from forebay.clock import SystemClock
from forebay.learner.run_directory import open_run
run = open_run(Path(sys.argv[1]), config={}, seeds={}, clock=SystemClock())
print(run.run_id, flush=True)
time.sleep(60)
"""


def test_the_lock_of_a_killed_run_is_free(tmp_path):
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "demo")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        run_id = holder.stdout.readline().strip()
        with pytest.raises(RunLockedError, match=f"process {holder.pid} on "):
            start(tmp_path / "demo")
        holder.kill()
        holder.wait()
    with start(tmp_path / "demo") as run:
        assert (run.resumed, run.run_id) == (True, run_id)


@pytest.mark.parametrize("name", ["-rf", "a b", ".hidden", "x" * 129, "naïve"])
def test_names_that_are_not_identifiers_are_refused(tmp_path, name):
    with pytest.raises(ConfigError, match="name of the run directory"):
        start(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"{}", b"cos\nsystem\n(S'touch canary'\ntR."])
def test_c75_a_damaged_manifest_is_one_clear_error_and_frees_the_lock(tmp_path, content):
    start(tmp_path / "demo").close()
    manifest = tmp_path / "demo" / "manifest.json"
    whole = manifest.read_bytes()
    manifest.write_bytes(content)
    with pytest.raises(ConfigError, match=r"manifest\.json is damaged"):
        start(tmp_path / "demo")
    manifest.write_bytes(whole)
    start(tmp_path / "demo").close()


def test_a_directory_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="is not a run directory"):
        read_run_manifest(tmp_path)


def test_git_state_names_the_commit_and_tells_changes(tmp_path):
    assert git_state(tmp_path) is None

    def git(*arguments):
        identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
        return subprocess.run(
            ["git", "-C", tmp_path, *identity, *arguments], check=True, capture_output=True, text=True
        ).stdout.strip()

    git("init")
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "-m", "first")
    clean = git_state(tmp_path)
    assert (clean.commit, clean.dirty) == (git("rev-parse", "HEAD"), False)
    (tmp_path / "file").write_text("two")
    assert git_state(tmp_path).dirty
