"""A run whose episodes are judged by a critic, each alone, from the command line to the published weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from forebay.learner.checkpoint_manifest import list_steps, read_manifest, step_directory
from forebay.telemetry.metrics import read_metrics
from forebay.telemetry.summary import RunSummary, read_summary
from forebay.weights.reader import WeightReader
from tests.system.harness import Harness

SETTINGS = ("objective.preset=ppo-critic", "batching.group_size=1", "batching.groups=8")


def trained(harness: Harness, steps: int) -> list[dict[str, object]]:
    harness.overrides = (*SETTINGS, f"learner.steps={steps}")
    harness.start()
    assert harness.train is not None
    assert harness.train.wait(240.0) == 0, harness.tail()
    return list(read_metrics(harness.run / "metrics.jsonl"))


@pytest.mark.timeout(600)
@pytest.mark.soak
def test_a_run_with_a_critic_trains_resumes_and_publishes_the_model_alone(tmp_path: Path) -> None:
    with Harness(tmp_path, SETTINGS) as harness:
        (first,) = trained(harness, 1)
        assert first["value.mean"] == 0.0  # a new head says 0
        lines = trained(harness, 2)
        assert [line["step"] for line in lines] == [1, 2]
        assert [line["incarnation"] for line in lines] == [0, 1]
        assert lines[1]["value.mean"] != 0.0  # the head came back with the checkpoint
        for line in lines:
            assert line["value_loss"] > 0.0
            assert line["trajectories"] == 8
            assert line["zero_spread_groups"] == 0
        summary = read_summary(harness.run / "summary.json", RunSummary)
        assert (summary.compiles_after_warmup, summary.lost, summary.repeated) == (0, 0, 0)
        assert summary.group_size == 1
        newest = step_directory(harness.run / "checkpoints", list_steps(harness.run / "checkpoints")[-1])
        saved = {record.path for record in read_manifest(newest).arrays}
        assert {".params['value_head']", ".params['value_bias']"} <= saved
        _, tensors = WeightReader(harness.run / "weights").load()
        assert not [name for name in tensors if "value" in name]
