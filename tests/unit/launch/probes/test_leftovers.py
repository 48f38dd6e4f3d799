from __future__ import annotations

import fcntl
import os
from pathlib import Path

from forebay.launch.probes import leftovers


def process(proc: Path, pid: int, *words: str, parent: int | None = None) -> None:
    entry = proc / str(pid)
    entry.mkdir()
    (entry / "cmdline").write_bytes("\0".join(words).encode() + b"\0")
    environ = "HOME=/root\0" + (f"FOREBAY_PARENT={parent}\0" if parent else "")
    (entry / "environ").write_bytes(environ.encode())


def test_processes_are_found_by_their_command_and_orphans_by_their_parent(tmp_path: Path) -> None:
    process(tmp_path, 100, "/venv/bin/python", "/venv/bin/forebay", "train", "run.toml")
    process(tmp_path, 101, "/venv/bin/python", "-m", "forebay", "learn", "runs/a", parent=100)
    process(tmp_path, 102, "/usr/bin/vim", "notes/on/forebay", "forebay")
    [finding] = leftovers.look_at_processes(tmp_path)
    assert (finding.level, finding.seen) == (
        "note",
        "going on: 100 (train run.toml), 101 (learn runs/a)",
    )
    process(tmp_path, 1200, "/venv/bin/python", "-m", "forebay", "act", "runs/b", parent=1199)
    [finding] = leftovers.look_at_processes(tmp_path)
    assert (finding.level, finding.seen) == ("warn", "without their supervisor: 1200 (act runs/b)")
    assert finding.remedy == "kill 1200"


def test_no_process_is_nothing_to_say(tmp_path: Path) -> None:
    process(tmp_path, os.getpid(), "/venv/bin/python", "-m", "forebay", "doctor")
    assert leftovers.look_at_processes(tmp_path)[0].level == "ok"


def test_a_run_that_goes_on_is_named_without_touching_its_lock(tmp_path: Path) -> None:
    for name in ("live", "done"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_text("{}")
        (tmp_path / name / "run.lock").write_text("")
    with (tmp_path / "live" / "run.lock").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        [finding] = leftovers.look_at_runs(tmp_path)
        assert (finding.level, finding.seen) == ("note", f"2 in {tmp_path}, going on: live")
    assert leftovers.look_at_runs(tmp_path)[0].level == "ok"
    assert not leftovers.is_locked(tmp_path / "nowhere")
