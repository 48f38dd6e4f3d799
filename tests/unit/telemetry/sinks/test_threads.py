from __future__ import annotations

import threading
from pathlib import Path

import pytest

from forebay.clock import ManualClock
from forebay.telemetry.metrics import MetricsWriter, read_metrics
from forebay.telemetry.sinks import MetricSinks, SinkThread


class Memory:
    """A sink that keeps what it gets, and fails at the steps that it is told to."""

    def __init__(self, *, fail_at: tuple[int, ...] = (), gate: threading.Event | None = None) -> None:
        self.records: list[tuple[int, float, dict]] = []
        self.is_closed = False
        self._fail_at = fail_at
        self._gate = gate

    def write(self, step, time_s, values) -> None:
        if self._gate is not None:
            self._gate.wait(10.0)
        if step in self._fail_at:
            raise RuntimeError(f"the server hung up at {step}")
        self.records.append((step, time_s, dict(values)))

    def close(self) -> None:
        self.is_closed = True


def test_records_reach_the_file_and_every_sink_in_order(tmp_path: Path) -> None:
    one, two = Memory(), Memory()
    opened: list[int] = []

    def open_one(step: int) -> Memory:
        opened.append(step)
        return one

    with MetricsWriter(tmp_path / "metrics.jsonl", ManualClock(5.0)) as writer:
        sinks = MetricSinks(writer, [SinkThread("one", open_one), SinkThread("two", lambda _: two)])
        for step in (3, 4):
            sinks.write(step, {"reward": step / 2})
        sinks.write_elsewhere(4, 9.0, {"eval.reward": 1.0})
        sinks.close()
    assert one.records == two.records
    assert one.records == [
        (3, 5.0, {"reward": 1.5}), (4, 5.0, {"reward": 2.0}), (4, 9.0, {"eval.reward": 1.0}),
    ]  # fmt: skip
    assert one.is_closed
    assert opened == [3]
    assert [line["step"] for line in read_metrics(tmp_path / "metrics.jsonl")] == [3, 4]


def test_a_sink_that_fails_loses_its_records_and_is_named_once(tmp_path: Path, caplog) -> None:
    bad, good = Memory(fail_at=(1, 2)), Memory()
    with MetricsWriter(tmp_path / "metrics.jsonl", ManualClock()) as writer:
        broken = SinkThread("bad", lambda _: bad)
        sinks = MetricSinks(writer, [broken, SinkThread("good", lambda _: good)])
        for step in (1, 2, 3):
            sinks.write(step, {})
        sinks.close()
        sinks.write(4, {})
    assert [step for step, *_ in bad.records] == [3]
    assert [step for step, *_ in good.records] == [1, 2, 3]
    assert broken.num_lost == 2
    assert [record.message for record in caplog.records] == [
        "metrics to bad are lost: RuntimeError: the server hung up at 1"
    ]
    assert list(read_metrics(tmp_path / "metrics.jsonl"))[-1]["sink.bad.lost"] == 2


def test_a_sink_that_cannot_be_opened_is_tried_once(caplog) -> None:
    tries: list[int] = []

    def refuse(step: int) -> Memory:
        tries.append(step)
        raise SystemExit("no login")  # some packages do not stop at exceptions

    thread = SinkThread("far", refuse)
    for step in (1, 2, 3):
        thread.write(step, 0.0, {})
    thread.close()
    assert (tries, thread.num_lost, len(caplog.records)) == ([1], 3, 1)


def test_a_sink_that_hangs_holds_nobody_up(caplog) -> None:
    gate = threading.Event()
    thread = SinkThread("slow", lambda _: Memory(gate=gate), capacity=2)
    for step in range(10):
        thread.write(step, 0.0, {})
    assert thread.num_lost >= 7
    thread.close(timeout_s=0.05)
    assert "did not finish" in caplog.records[-1].message
    gate.set()


def test_the_thread_is_settled_before_anything_else() -> None:
    settled: list[str] = []

    def settle() -> None:
        settled.append(threading.current_thread().name)

    SinkThread("one", lambda _: Memory(), on_start=settle).close()
    assert settled == ["metrics to one"]


def test_the_disk_of_the_file_itself_still_ends_a_run(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path / "metrics.jsonl", ManualClock())
    writer.close()
    with pytest.raises(ValueError, match="closed"):
        MetricSinks(writer).write(1, {})
