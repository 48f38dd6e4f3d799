"""A run whose checkpoints go to a bucket: killed in the middle of a save, resumed, exported."""

from __future__ import annotations

from pathlib import Path

import pytest

from forebay.cli.runs import join_run
from forebay.models.checkpoint_io import read_tensors
from tests.bucket_server import make_bucket, needs_buckets
from tests.system.harness import Harness, account
from tests.system.kill_plan import Kill
from tests.unit.cli.support import forebay

pytestmark = needs_buckets


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "kills",
    [
        (),
        # The manifest of step 4 is not written yet: the checkpoint of step 2 is the one to go on from.
        pytest.param((Kill(4, "learner", point="checkpoint_written"),), marks=pytest.mark.soak),
    ],
    ids=["whole", "killed"],
)
def test_a_run_saves_to_a_bucket_goes_on_and_is_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kills: tuple[Kill, ...]
) -> None:
    bucket = make_bucket().use(monkeypatch)
    settings = (
        f"learner.checkpoint_path={bucket.url}",
        "learner.checkpoint_every=2",
        "learner.steps=6",
        "model.num_layers=1",
        "batching.max_programs=1",
    )
    with Harness(tmp_path, settings) as harness:
        assert harness.run_through(kills) == 0, harness.tail()
        totals, wrong = account(harness)
        assert (wrong, totals["incarnations"]) == ([], 1 + len(kills))
        assert totals["replayed_batches"] >= 2 * len(kills)
        assert list((harness.run / "checkpoints").iterdir()) == []
        run = join_run(harness.run)
        assert str(run.checkpoints) == f"{bucket.url}/{run.run_id}"
        kept = list(run.checkpoints.folders())
        assert (len(kept), kept[-1]) == (2, 6)
        for name, *arguments in (("newest",), ("step", "--step", "6")):
            assert forebay("export", str(harness.run), "--to", str(tmp_path / name), *arguments).code == 0
        newest, of_step = read_tensors(tmp_path / "newest"), read_tensors(tmp_path / "step")
        assert {name: tensor.tobytes() for name, tensor in newest.items()} == {
            name: tensor.tobytes() for name, tensor in of_step.items()
        }
        moved = forebay("train", "tests/system/harness.toml", f"run.directory={tmp_path}", *settings[1:])
        assert (moved.code, "learner.checkpoint_path" in moved.text) == (2, True)
        nowhere = (f"run.directory={tmp_path}", "learner.checkpoint_path=s3://no-such-bucket/runs")
        refused = forebay("train", "tests/system/harness.toml", *nowhere, "run.name=other")
        assert (refused.code, "s3://no-such-bucket/runs refuses to list" in refused.text) == (2, True)
        assert not (tmp_path / "other").exists()
