from __future__ import annotations

from pathlib import Path

from forebay.learner.fit.hlo import read_collectives
from forebay.learner.fit.work import Collective

MESH = {"data": 2, "fsdp": 2, "tensor": 2}
TEXT = Path(__file__).with_name("step.hlo").read_text()


def test_collectives_are_read_with_their_loops_axes_and_bytes() -> None:
    assert set(read_collectives(TEXT, MESH)) == {
        # 12 trips, once each though two pieces name it: half of 128 x 32 bfloat16 is sent.
        Collective("fsdp", "all-gather", 12, 12 * 128 * 32 * 2 // 2),
        # Neighbors in the list of devices differ in the last axis; the result is half of what goes in.
        Collective("tensor", "reduce-scatter", 12, 12 * 16 * 32 * 4),
        # The compiler says three trips; all of the result is sent.
        Collective("data", "collective-permute", 3, 3 * 8 * 16 * 2),
        # A sum of 101 numbers over eight devices: 7 / 8 of it, there and back.
        Collective("data+fsdp+tensor", "all-reduce", 1, 2 * 101 * 4 * 7 // 8),
        Collective("data", "all-reduce", 1, 2 * 50 * 4 // 2),
        # A fused sum and slice: half of the 80 padded rows goes to the other device.
        Collective("data", "reduce-scatter", 1, 80 * 32 * 2 // 2),
        Collective("data", "all-to-all", 1, 2 * 24 * 2 // 2),
    }


def test_a_loop_that_does_not_say_how_often_it_runs_counts_once() -> None:
    silent = TEXT.replace('"known_trip_count":{"n":"3"}', "")
    permutes = [one for one in read_collectives(silent, MESH) if one.kind == "collective-permute"]
    assert permutes == [Collective("data", "collective-permute", 1, 8 * 16 * 2)]


def test_a_text_without_a_program_has_no_collectives() -> None:
    assert read_collectives("", MESH) == ()


def test_a_group_of_one_device_sends_nothing_and_is_left_out() -> None:
    alone = TEXT.replace("replica_groups=[4,2]<=[2,2,2]T(2,1,0)", "replica_groups={{0},{1},{2},{3}}")
    assert "all-to-all" not in {one.kind for one in read_collectives(alone, MESH)}
