from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from forebay.clock import SystemClock
from forebay.learner.run_directory import open_run
from forebay.telemetry.trace import Tracer
from tests.unit.cli.support import forebay
from tests.unit.telemetry import timeline


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    open_run(path, config={}, seeds={}, clock=SystemClock()).close()
    return path


def record(run: Path) -> None:
    tracer = Tracer(run / "trace" / "learner-1.jsonl", "learner", SystemClock())
    with tracer.span("pack", members=("g1.0",)), tracer.span("inner"):
        pass
    tracer.close()


def test_the_timeline_lies_in_the_run_and_is_compressed(run: Path) -> None:
    record(run)
    result = forebay("trace", str(run))
    assert result.code == 0
    assert "2 slices of 1 processes, 0 trajectories followed" in result.text
    found = timeline.read(gzip.decompress((run / "trace.json.gz").read_bytes()))
    assert [name for slices in found.slices.values() for name, *_ in slices] == ["pack", "inner"]


def test_it_may_go_elsewhere_as_plain_text(run: Path, tmp_path: Path) -> None:
    record(run)
    target = tmp_path / "here.json"
    assert forebay("trace", str(run), "--to", str(target)).code == 0
    assert len(timeline.read(target.read_bytes()).slices) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here.json", "run"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere is not a run directory"),
        (["RUN"], "RUN has no trace. Start a run with telemetry.trace=true"),
        (["RUN", "--to", "RUN"], "RUN is a directory. Name a file."),
        (["RUN", "--to", "/proc/x.json"], "cannot write /proc/x.json (got No such file"),
    ],
)
def test_what_cannot_work_is_one_clear_line(run: Path, arguments, message) -> None:
    result = forebay("trace", *(argument.replace("RUN", str(run)) for argument in arguments))
    assert result.code == 2
    assert result.text.startswith(message.replace("RUN", str(run)))
    assert "\n" not in result.text
    assert not list(run.glob("*.gz")) + list(run.glob(".partial*"))
