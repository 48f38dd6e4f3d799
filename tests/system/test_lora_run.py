"""A run that trains adapters on a frozen model, from the command line to what others load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forebay.learner.checkpoint_manifest import list_steps, read_manifest, step_directory
from forebay.models.checkpoint_io import read_file, read_tensors
from forebay.models.lora_files import TENSOR_FILE, read_adapter_settings
from forebay.telemetry.metrics import read_metrics
from forebay.telemetry.summary import RunSummary, read_summary
from forebay.trajectory import PolicyVersion
from forebay.weights.adapters import merge
from forebay.weights.reader import WeightReader
from tests.system.harness import Harness
from tests.system.soak import soak
from tests.system.soak_models import LORA
from tests.unit.cli.support import forebay

SETTINGS = LORA
SEED = 3


def trained(harness: Harness, steps: int) -> list[dict[str, Any]]:
    """Train up to a step; return the lines of metrics."""
    harness.overrides = (*SETTINGS, f"learner.steps={steps}")
    harness.start()
    assert harness.train is not None
    assert harness.train.wait(240.0) == 0, harness.tail()
    summary = read_summary(harness.run / "summary.json", RunSummary)
    assert (summary.compiles_after_warmup, summary.lost, summary.repeated) == (0, 0, 0)
    return list(read_metrics(harness.run / "metrics.jsonl"))


@pytest.mark.timeout(600)
def test_adapters_are_trained_published_and_exported(tmp_path: Path) -> None:
    with Harness(tmp_path, SETTINGS) as harness:
        first, second = trained(harness, 2)
        # The reference is the model without what was added to it: no distance at all, which no line tells.
        assert "reference_kl" not in first
        assert second["reference_kl"] > 0.0

        newest = step_directory(harness.run / "checkpoints", list_steps(harness.run / "checkpoints")[-1])
        saved = [record.path for record in read_manifest(newest).arrays if record.path.startswith(".params")]
        assert {path[-4:-2] for path in saved} == {"_a", "_b"}

        reader = WeightReader(harness.run / "weights")
        (_, begun), (version, published) = reader.load(PolicyVersion(0, 0)), reader.load()
        assert version == PolicyVersion(0, 2)
        moved = {name for name in begun if not np.array_equal(begun[name], published[name])}
        assert moved == {name for name in begun if "_proj" in name}

        for name, *arguments in (("whole",), ("step", "--step", "2"), ("adapters", "--adapter")):
            assert forebay("export", str(harness.run), "--to", str(tmp_path / name), *arguments).code == 0
        whole, of_step = read_tensors(tmp_path / "whole"), read_tensors(tmp_path / "step")
        assert {name: tensor.tobytes() for name, tensor in whole.items()} == {
            name: tensor.tobytes() for name, tensor in of_step.items()
        }
        adapters = read_file(tmp_path / "adapters" / TENSOR_FILE)
        again = merge(begun, adapters, read_adapter_settings(tmp_path / "adapters").scale)
        assert all(np.array_equal(again[name], whole[name]) for name in whole)
        other = ("--to", str(tmp_path / "other"), "--adapter", "--version", "2")
        refused = forebay("export", str(harness.run), *other)
        assert (refused.code, "exported from checkpoints" in refused.text) == (2, True)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_resumed_run_goes_on_with_its_adapters(tmp_path: Path) -> None:
    with Harness(tmp_path, SETTINGS) as harness:
        trained(harness, 1)
        lines = trained(harness, 2)
        assert [(line["step"], line["incarnation"]) for line in lines] == [(1, 0), (2, 1)]
        assert lines[1]["reference_kl"] > 0.0
        reader = WeightReader(harness.run / "weights")
        assert reader.digest(PolicyVersion(1, 1)) == reader.digest(PolicyVersion(0, 1))
        assert reader.digest(PolicyVersion(1, 2)) != reader.digest(PolicyVersion(1, 1))


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("processes", [1, 2])
def test_p2_kills_lose_nothing_and_repeat_nothing_of_adapters(tmp_path: Path, processes: int) -> None:
    outcome = soak(tmp_path, 8, SEED, model="lora", processes=processes)
    assert outcome["wrong"] == [], outcome
    assert outcome["num_kills"] >= 6
