import json
import math
import resource
import signal

import pytest

from forebay.clock import ManualClock
from forebay.telemetry.metrics import MetricsWriter, read_metrics


def test_records_are_appended_as_json_lines_with_step_and_time(tmp_path):
    clock = ManualClock(10.0)
    for step in (1, 2):
        with MetricsWriter(tmp_path / "run" / "metrics.jsonl", clock) as metrics:
            clock.advance(0.5)
            metrics.write(step, {"loss": 0.25 * step, "env": "web", "on": True})
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"step": 1, "time_s": 10.5, "loss": 0.25, "env": "web", "on": True},
        {"step": 2, "time_s": 11.0, "loss": 0.5, "env": "web", "on": True},
    ]


def test_numbers_that_are_not_finite_become_null_and_are_counted(tmp_path):
    with MetricsWriter(tmp_path / "m.jsonl", ManualClock()) as metrics:
        metrics.write(1, {"a": math.nan, "b": -math.inf, "c": 1.0, "d": None})
        assert metrics.num_nonfinite == 2
    assert list(read_metrics(tmp_path / "m.jsonl")) == [
        {"step": 1, "time_s": 0.0, "a": None, "b": None, "c": 1.0, "d": None}
    ]


def test_the_file_is_bounded_and_the_newest_records_are_kept(tmp_path):
    path = tmp_path / "m.jsonl"
    with MetricsWriter(path, ManualClock(), max_bytes=1000) as metrics:
        for step in range(100):
            metrics.write(step, {"loss": 1.5})
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["m.jsonl", "m.jsonl.1"]
    assert all(entry.stat().st_size <= 1000 for entry in tmp_path.iterdir())
    steps = [record["step"] for name in ("m.jsonl.1", "m.jsonl") for record in read_metrics(tmp_path / name)]
    assert steps == list(range(steps[0], 100))
    assert len(steps) > 20


def test_a_torn_line_spoils_neither_its_neighbors_nor_what_follows(tmp_path):
    path = tmp_path / "m.jsonl"
    with MetricsWriter(path, ManualClock()) as metrics:
        metrics.write(1, {})
    with path.open("ab") as file:
        file.write(b'{"step":2,"ti')
    with MetricsWriter(path, ManualClock()) as metrics:
        metrics.write(3, {})
    assert [record["step"] for record in read_metrics(path)] == [1, 3]


def test_c75_lines_that_are_no_json_are_skipped_and_not_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.jsonl").write_bytes(b"cos\nsystem\n(S'touch canary'\ntR.\n" + b'{"step":1}\n[1]\n')
    assert list(read_metrics(tmp_path / "m.jsonl")) == [{"step": 1}]
    assert not (tmp_path / "canary").exists()


def test_taken_names_and_huge_records_are_refused(tmp_path):
    with MetricsWriter(tmp_path / "m.jsonl", ManualClock()) as metrics:
        with pytest.raises(ValueError, match="names are taken: step"):
            metrics.write(1, {"step": 2})
        with pytest.raises(ValueError, match="must fit in 1048576 bytes"):
            metrics.write(1, {"text": "x" * 2**20})
    assert (tmp_path / "m.jsonl").read_bytes() == b""


def test_a_disk_that_becomes_full_within_a_line_is_an_error(tmp_path):
    """A write that takes a part of the line reports no error: only what follows does."""
    path = tmp_path / "m.jsonl"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with MetricsWriter(path, ManualClock()) as metrics:
        metrics.write(1, {})
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 7, limits[1]))
        with pytest.raises(OSError, match="File too large"):
            metrics.write(2, {})
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    signal.signal(signal.SIGXFSZ, handler)
    with MetricsWriter(path, ManualClock()) as metrics:
        metrics.write(2, {})
    assert [record["step"] for record in read_metrics(path)] == [1, 2]
