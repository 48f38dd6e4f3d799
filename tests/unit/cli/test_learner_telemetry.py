from __future__ import annotations

from pathlib import Path

from forebay.cli.learner_telemetry import EvaluationRelay
from forebay.clock import ManualClock
from forebay.telemetry.metrics import MetricsWriter
from forebay.telemetry.sinks import MetricSinks, SinkThread


class Memory:
    """A sink that keeps what it gets."""

    def __init__(self) -> None:
        self.records: list[tuple[int, float, dict]] = []

    def write(self, step, time_s, values) -> None:
        self.records.append((step, time_s, dict(values)))

    def close(self) -> None:
        pass


def test_evaluations_of_another_process_are_passed_on_once(tmp_path: Path) -> None:
    memory, path = Memory(), tmp_path / "eval.jsonl"
    path.write_text('{"step":0,"time_s":1.0,"reward":0.1}\n')  # before this learner began
    with MetricsWriter(tmp_path / "metrics.jsonl", ManualClock()) as writer:
        sinks = MetricSinks(writer, [SinkThread("memory", lambda _: memory)])
        relay = EvaluationRelay(path, sinks)
        relay.add()
        with path.open("a") as file:
            file.write('{"step":20,"time_s":5.0,"reward":0.5,"num_tasks":8}\n{"step":40,"ti')
        relay.add("batch", "version", (), 1.0)
        with path.open("a") as file:
            file.write('me_s":9.0,"reward":null}\n')
        relay.add()
        relay.add()
        sinks.close()
    assert memory.records == [
        (20, 5.0, {"eval.reward": 0.5, "eval.num_tasks": 8}),
        (40, 9.0, {"eval.reward": None}),
    ]


def test_a_run_without_evaluations_has_none(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path / "metrics.jsonl", ManualClock()) as writer:
        EvaluationRelay(tmp_path / "eval.jsonl", MetricSinks(writer)).add()
