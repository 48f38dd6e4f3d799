"""A run that trains a mixture of experts: by one process, by two that share the experts, and exported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forebay.learner.checkpoint_manifest import list_steps, read_manifest, step_directory
from forebay.models.checkpoint_io import load_model, read_tensors
from forebay.models.experts import Experts
from forebay.telemetry.metrics import read_metrics
from forebay.telemetry.summary import RunSummary, read_summary
from tests.system.harness import Harness, account, command
from tests.system.soak import soak
from tests.system.soak_models import settings_of

NUM_EXPERTS, PER_TOKEN = 4, 2
SEED = 5

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]


def trained(harness: Harness, steps: int, processes: int) -> list[dict[str, Any]]:
    """Train up to a step; return the lines of metrics."""
    harness.overrides = (*settings_of("moe", processes, harness.directory), f"learner.steps={steps}")
    harness.start()
    assert harness.train is not None
    assert harness.train.wait(300.0) == 0, harness.tail()
    summary = read_summary(harness.run / "summary.json", RunSummary)
    assert (summary.compiles_after_warmup, summary.lost, summary.repeated) == (0, 0, 0)
    return list(read_metrics(harness.run / "metrics.jsonl"))


def test_experts_are_trained_resumed_by_other_processes_and_exported(tmp_path: Path) -> None:
    with Harness(tmp_path) as harness:
        trained(harness, 2, 1)
        lines = trained(harness, 5, 2)
        _, wrong = account(harness)
        assert wrong == []
        assert [line["step"] for line in lines] == [1, 2, 3, 4, 5]
        for line in lines:
            # Of a router that sends all tokens alike, its loss is the experts of a token.
            assert line["router.balance_loss"] == pytest.approx(PER_TOKEN, rel=0.2)
            assert 1.0 <= line["router.imbalance"] <= line["router.imbalance_max"] <= NUM_EXPERTS / PER_TOKEN
            assert 0.0 < line["router.entropy"] <= np.log(NUM_EXPERTS) + 1e-6
        assert all(line["router.spilled"] == 0.0 for line in lines[:2])  # nobody to exchange with

        checkpoints = harness.run / "checkpoints"
        newest = read_manifest(step_directory(checkpoints, list_steps(checkpoints)[-1]))
        assert len(newest.files) == 2
        for name, arguments in (("published", ()), ("step", ("--step", "5"))):
            done = command("export", str(harness.run), "--to", str(tmp_path / name), *arguments)
            assert done.returncode == 0, done.stderr
    published, of_step = read_tensors(tmp_path / "published"), read_tensors(tmp_path / "step")
    assert {name: tensor.tobytes() for name, tensor in published.items()} == {
        name: tensor.tobytes() for name, tensor in of_step.items()
    }
    begun = read_tensors(tmp_path / "experts")
    assert begun.keys() == published.keys()
    still = {name for name in begun if np.array_equal(begun[name], published[name])}
    assert not {name for name in still if ".experts." in name or ".mlp.gate." in name}
    config, _ = load_model(tmp_path / "published")
    assert config.experts == Experts(NUM_EXPERTS, PER_TOKEN, 32)


def test_p2_kills_lose_nothing_and_repeat_nothing(tmp_path: Path) -> None:
    outcome = soak(tmp_path, 6, SEED, model="moe")
    assert outcome["wrong"] == [], outcome
    assert outcome["num_kills"] >= 4
