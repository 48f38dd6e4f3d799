"""A frame that rots while its run is away: the run resumes without it."""

from __future__ import annotations

from pathlib import Path

import pytest

from forebay.cli.runs import join_run
from tests.system.harness import Harness, account, command, read_logs
from tests.unit.store.frames import KeptFrames


def spoil_a_journaled_frame(run: Path, step: int) -> None:
    """Flip a bit of a frame that was trained in a step."""
    store = join_run(run).open_store()
    try:
        group_id = next(entry.group_ids[0] for entry in store.journal() if entry.step == step)
        frames = KeptFrames(store, run / "store" / "payloads")
        frame = frames.read(group_id, 0)
        frames.write(group_id, 0, frame[:-65] + bytes([frame[-65] ^ 1]) + frame[-64:])
    finally:
        store.close()


@pytest.mark.timeout(600)
def test_c75_a_run_whose_journaled_frame_rots_goes_on_without_it(tmp_path: Path) -> None:
    """Three steps are trained and no checkpoint saved; of the second, a frame cannot be read back."""
    with Harness(tmp_path, ("learner.steps=8",)) as harness:
        harness.start()
        assert harness.wait_until(lambda: harness.step() >= 3, "step 3"), harness.tail()
        harness.kill("all")
        spoil_a_journaled_frame(harness.run, step=2)
        harness.start()
        harness.wait_until(lambda: False, "the end")
        assert harness.train is not None
        assert harness.train.wait() == 0, harness.tail()
        totals, wrong = account(harness)
        assert wrong == []
        assert (totals["steps"], totals["trained"]) == (8, 8 * 8)
        assert any("frame checksum does not match" in line for line in read_logs(harness, "learner"))
        counters = join_run(harness.run).view_store().stats().counters
        assert (counters["corrupt.bad_checksum"], counters["quarantine.kept"]) == (1, 1)
        assert counters["dropped.corrupt"] == 1  # a group trains with all its members, or not at all
        replayed = command("store", "replay", str(harness.run))
        assert "bit for bit equal" in replayed.stdout, replayed.stderr
