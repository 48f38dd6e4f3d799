from __future__ import annotations

import io
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


def test_a_rotated_file_is_read_from_its_beginning(tmp_path: Path) -> None:
    path, stream = tmp_path / "metrics.jsonl", io.StringIO()
    follower = Follower(path, ProgressPrinter(None, ManualClock(), stream=stream, every_s=0.0))
    follower.look()
    path.write_text('{"step": 10, "reward": 0.5}\n')
    follower.look()
    path.write_text('{"step": 11}\n')
    follower.look()
    assert stream.getvalue() == "step 10  reward 0.5\nstep 11\n"
