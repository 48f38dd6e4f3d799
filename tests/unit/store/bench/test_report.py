from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest

from forebay.errors import ConfigError
from forebay.store.bench import Demand, Plan, Report, judge, markdown, run_bench, to_json
from forebay.store.bench.figures import Figures, Latency
from forebay.store.bench.report import _available

KIB = 1024


def figures(puts_per_s: float, **more: object) -> Figures:
    times = Latency(samples=1000, p50=2.0, p99=8.0, p999=None)
    made = Figures(puts_per_s=puts_per_s, put_ms=times, take_ms=times, cpu_ms=0.2, slowest_writer=0.9)
    return msgspec.structs.replace(made, **more)


@pytest.fixture
def report() -> Report:
    rows = {
        52 * KIB: {"lmdb_fsync": figures(4000.0, drained_puts_per_s=5000.0, paced=figures(1000.0))},
        1024 * KIB: {"lmdb_fsync": figures(200.0), "lmdb_os": figures(300.0)},
    }
    return Report(
        rows=rows,
        ratios={"lmdb_fsync_to_bare_lmdb": 0.81},
        flatness=None,
        left_out={"redis_always": "no redis-server"},
        plan=Plan(directory=Path(), engines=("lmdb_fsync",), sizes=(52 * KIB, 1024 * KIB)),
    )


@pytest.mark.parametrize(
    ("per_s", "num_bytes", "sentence"),
    [
        (100.0, 52 * KIB, "lmdb_fsync carries the learner's 100.0 .* it does 4,000/s here, 40.0 times that"),
        (5000.0, 50 * KIB, "lmdb_fsync does not carry the learner's 5,000.0 .* 0.8 times that"),
        (100.0, 53 * KIB, r"carries .*\(5.4 MB/s\): it does 200/s here, 2.0 times"),
        (100.0, 4096 * KIB, "does not carry .* it does 50/s here, 0.5 times"),
    ],
)
def test_the_verdict_goes_by_the_next_larger_size(
    report: Report, per_s: float, num_bytes: int, sentence: str
) -> None:
    verdict = judge(report, Demand("lmdb_fsync", per_s, num_bytes))
    assert re.search(sentence, verdict), verdict
    assert verdict.count(".\n") == 0 and verdict.endswith(".")


def test_a_verdict_needs_the_engine_that_is_asked_about(report: Report) -> None:
    with pytest.raises(ConfigError, match=r"not measured \(got lmdb_os, limit lmdb_fsync\)"):
        judge(report, Demand("lmdb_os", 1.0, KIB))
    assert judge(report, None) == (
        "lmdb_fsync carries up to 4,000 trajectories/s of 53,248 bytes; no demand was given."
    )


def test_json_has_the_first_size_at_its_top(report: Report) -> None:
    tree = json.loads(json.dumps(to_json(report)))
    assert tree["lmdb_fsync"]["puts_per_s"] == 4000.0
    assert tree["lmdb_fsync"]["put_ms"] == {"samples": 1000, "p50": 2.0, "p99": 8.0, "p999": None}
    assert tree["lmdb_fsync"]["take_ms"]["p99"] == 8.0
    assert tree["lmdb_fsync"]["cpu_ms"] == 0.2
    assert tree["lmdb_fsync"]["paced"]["puts_per_s"] == 1000.0
    assert tree["by_bytes"]["1048576"]["lmdb_os"]["puts_per_s"] == 300.0
    assert tree["ratios"] == {"lmdb_fsync_to_bare_lmdb": 0.81}


def test_tables_say_what_is_missing(report: Report) -> None:
    text = markdown(report)
    assert "| `lmdb_fsync` | 4,000 | 5,000 | 2 | 8 |  | 2 | 8 | 0.200 | 2 | 8 |  | 1,000 |" in text
    assert "| `lmdb_fsync_to_bare_lmdb` | 0.81 | ≥ 0.7 |" in text
    assert "Left out: redis_always: no redis-server." in text
    assert len({line.count("|") for line in text.splitlines() if line.startswith("| `lmdb_fsync` ")}) == 1


def test_a_whole_run_of_one_engine(tmp_path: Path) -> None:
    """Real processes, one writer, for a blink: what goes in comes out, and nothing is left on disk."""
    told: list[str] = []
    plan = Plan(
        directory=tmp_path,
        engines=("lmdb_os",),
        sizes=(4 * KIB,),
        writers=1,
        in_flight=2,
        window_s=0.5,
        warm_s=0.2,
        resident=(8, 16),
        cycles=(8, 16),
    )
    report = run_bench(plan, told.append)
    rows = report.rows[4 * KIB]
    assert list(rows) == [
        *("raw_memcpy", "raw_append", "raw_append_fdatasync", "bare_lmdb_os", "bare_lmdb_fsync", "lmdb_os"),
    ]
    assert len(told) == 7
    assert rows["lmdb_os"].puts_per_s > 0.0 and rows["lmdb_os"].paced is not None
    assert {"lmdb_os_to_bare_lmdb", "index_100k_to_1k", "file_growth"} <= report.ratios.keys()
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_measured_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no such engine \(got sqlite"):
        run_bench(Plan(directory=tmp_path, engines=("sqlite",)), print)
    with pytest.raises(ConfigError, match="no directory"):
        run_bench(Plan(directory=tmp_path / "none", engines=("lmdb_os",)), print)


@pytest.mark.parametrize("engine", ["redis_everysec", "redis_always"])
def test_redis_is_left_out_where_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    """An empty PATH has no server."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert _available((engine, "mp_queue")) == (
        ("mp_queue",),
        {engine: "no redis-server or valkey-server on PATH"},
    )
