from __future__ import annotations

import io
import os
import pty
from pathlib import Path

from forebay.cli.following import Follower
from forebay.clock import ManualClock
from forebay.telemetry.progress import ProgressPrinter


def test_only_whole_new_lines_are_shown(tmp_path: Path) -> None:
    path, stream = tmp_path / "metrics.jsonl", io.StringIO()
    path.write_text('{"step": 1, "busy": 0.5}\n')
    follower = Follower(path, ProgressPrinter(9, ManualClock(), stream=stream, every_s=0.0))
    follower.look()
    assert stream.getvalue() == ""
    with path.open("a") as file:
        file.write('{"step": 2, "busy": null, "reward": 0.25, "loss": 3.5}\n{"step": 3')
    follower.look()
    assert stream.getvalue() == "step 2/9  reward 0.25\n"
    with path.open("a") as file:
        file.write(', "compiles": 0}\n')
    follower.look()
    assert stream.getvalue().splitlines()[1:] == ["step 3/9  compiles 0"]


def test_how_long_the_last_steps_took_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    follower = Follower(path, ProgressPrinter(9, ManualClock(), stream=io.StringIO()))
    assert list(follower.step_s) == []
    for line in (
        '"step_s": 4.0',
        '"step_s": 1.5',
        '"reward": 1.0',
        '"step_s": null',
        '"step_s": 3',
        '"step_s": 2',
    ):
        with path.open("a") as file:
            file.write(f'{{"step": 1, {line}}}\n')
        follower.look()
    assert list(follower.step_s) == [1.5, 3.0, 2.0]


def test_the_newest_step_does_not_go_back_when_steps_are_trained_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    follower = Follower(path, ProgressPrinter(9, ManualClock(), stream=io.StringIO()))
    assert follower.newest_step == 0
    for step in (4, 5, 3, 4):
        with path.open("a") as file:
            file.write(f'{{"step": {step}}}\n')
        follower.look()
    assert follower.newest_step == 5


def test_a_rotated_file_is_read_from_its_beginning(tmp_path: Path) -> None:
    path, stream = tmp_path / "metrics.jsonl", io.StringIO()
    follower = Follower(path, ProgressPrinter(None, ManualClock(), stream=stream, every_s=0.0))
    follower.look()
    path.write_text('{"step": 10, "reward": 0.5}\n')
    follower.look()
    path.write_text('{"step": 11}\n')
    follower.look()
    assert stream.getvalue() == "step 10  reward 0.5\nstep 11\n"


def test_on_a_terminal_the_table_is_redrawn_and_the_cursor_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal:
        with ProgressPrinter(9, ManualClock(), stream=terminal, refresh_s=0.0) as printer:
            follower = Follower(path, printer)
            path.write_text('{"step": 1, "reward": 0.5}\n')
            follower.look()
            path.write_text('{"step": 1, "reward": 0.5}\n{"step": 2, "reward": 0.75}\n')
            follower.look()
        shown = ""
        while "\x1b[?25h" not in shown:  # a terminal may hand over what was written piece by piece
            shown += os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert shown.startswith("\x1b[?25l") and shown.rstrip().endswith("\x1b[?25h")
    assert shown.index("1/9") < shown.index("\x1b[1A") < shown.index("2/9")
    assert "reward" in shown and "0.75" in shown
