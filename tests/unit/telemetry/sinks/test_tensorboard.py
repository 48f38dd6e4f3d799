from __future__ import annotations

from pathlib import Path

import pytest

from forebay.telemetry.sinks.tensorboard import TensorBoardSink

pytest.importorskip("tensorboardX")


def scalars(directory: Path) -> dict[str, list[tuple[int, float, float]]]:
    """Read events as TensorBoard itself does."""
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    accumulator = accumulators.EventAccumulator(str(directory))
    accumulator.Reload()
    return {
        tag: [(event.step, event.wall_time, event.value) for event in accumulator.Scalars(tag)]
        for tag in accumulator.Tags()["scalars"]
    }


@pytest.mark.filterwarnings("ignore")
def test_tensorboard_reads_every_number_back(tmp_path: Path) -> None:
    sink = TensorBoardSink(tmp_path / "tensorboard", 1)
    sink.write(1, 100.0, {"busy": 0.5, "life.buffer_s": 2, "groups": "g1 g2", "reward": None})
    sink.write(2, 103.5, {"busy": 0.75, "latency.web.step_s.p95": 1.5})
    sink.close()
    assert scalars(tmp_path / "tensorboard") == {
        "busy": [(1, 100.0, 0.5), (2, 103.5, 0.75)],
        "life/buffer_s": [(1, 100.0, 2.0)],
        "latency/web.step_s.p95": [(2, 103.5, 1.5)],
    }


@pytest.mark.filterwarnings("ignore")
def test_steps_that_are_trained_again_replace_those_before(tmp_path: Path) -> None:
    for first, value in ((1, 0.0), (3, 1.0)):
        sink = TensorBoardSink(tmp_path / "tensorboard", first)
        for step in range(first, first + 4):
            sink.write(step, float(step), {"reward": value})
        sink.close()
    found = scalars(tmp_path / "tensorboard")["reward"]
    assert [(step, value) for step, _, value in found] == [
        (1, 0.0), (2, 0.0), (3, 1.0), (4, 1.0), (5, 1.0), (6, 1.0),
    ]  # fmt: skip
