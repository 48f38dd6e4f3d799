"""What a trajectory costs in an lmdb store beside LMDB alone: every part is measured, and adds up."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.store_floor import NUM_TRAJECTORIES, Meter, conclude, measure


def test_the_lower_decile_of_the_rounds_after_the_first_ones_is_told() -> None:
    meter = Meter()
    for round_us in (90, 90, 90, 90, *range(20, 0, -1)):
        meter.note("put", round_us * 1000 * NUM_TRAJECTORIES // 2)
        meter.note("put", round_us * 1000 * NUM_TRAJECTORIES // 2)
        meter.end_round()
    assert meter.per_trajectory_us() == {"put": pytest.approx(3.0)}


def test_parts_add_up_and_encoding_counts_once() -> None:
    parts = {"dispatch": 2.0, "claim": 4.0, "make": 4.0, "encode": 6.0, "put": 24.0, "drain": 3.0}
    found = conclude(parts | {"locked": 25.0, "bare_put": 9.0, "bare_remove": 1.0})
    assert found["store_us"] == 37.0
    assert found["floor_us"] == 20.0
    assert found["lock_bound"] == 0.4


def test_every_part_of_a_round_is_measured(tmp_path: Path) -> None:
    found = measure(tmp_path, rounds=1)
    names = {"dispatch", "claim", "make", "encode", "put", "drain", "locked", "bare_put", "bare_remove"}
    assert set(found["parts_us"]) == names
    assert all(value > 0.0 for value in found["parts_us"].values())
    assert list(tmp_path.iterdir()) == []
