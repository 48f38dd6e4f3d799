from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from forebay.batching.ladder import build_ladder
from forebay.batching.settings import BatchingSettings
from forebay.objectives.denominators import count_fresh
from forebay.trajectory import Sampling
from tests.unit.batching.records import (
    EXPECTED,
    answer,
    batch_of,
    flat,
    group,
    sequence,
    trained_tokens,
    trajectory,
)


def test_c45_packed_rows_of_two_sequences() -> None:
    case = EXPECTED["C45"]
    a, b = case["input"]["a"], case["input"]["b"]
    members = [
        trajectory(sequence(b, [0, 1, 1, 1], sampling=Sampling(temperature=0.5))),
        trajectory(sequence(a, [0, 1, 1])),
    ]
    batch = batch_of(group(*members), max_length=8, min_row_length=8, rows=1)
    (micro,) = batch.micro_batches
    rows = micro.rows
    assert micro.bucket == (1, case["input"]["width"])
    # The longer one is placed first.
    assert rows.tokens[0].tolist() == [*b, *a, 0]
    assert rows.segment_ids[0].tolist() == [1, 1, 1, 1, 2, 2, 2, 0]
    assert rows.positions[0].tolist() == [0, 1, 2, 3, 0, 1, 2, 0]
    assert rows.loss_mask[0].tolist() == [False, True, True, True, False, True, True, False]
    assert batch.counts.tokens == case["expect"]["loss_targets_if_all_sampled"]
    assert rows.temperature[0].tolist() == [0.5] * 4 + [1.0] * 3 + [0.0]
    same = rows.segment_ids[0][:, None] == rows.segment_ids[0][None, :]
    allowed = same & np.tri(8, dtype=bool) & (rows.segment_ids[0] > 0)
    assert allowed.sum() == case["expect"]["allowed_pairs"]


def test_c21_groups_are_compared_by_id_not_by_task() -> None:
    case = EXPECTED["C21"]
    groups = [
        group(
            *(trajectory(answer(2 + i), reward=r) for i, r in enumerate(case["input"][key])),
            group_id=key,
            task_id="same",
        )
        for key in ("group_A", "group_B")
    ]
    batches = [batch_of(one, max_length=16) for one in groups]
    both = flat(batch_of(*groups, max_length=16))
    for one, advantages in zip(batches, case["expect"]["mean"], strict=True):
        rows = flat(one)
        # Member i has i + 1 trained tokens.
        expected = [value for i, value in enumerate(advantages) for _ in range(i + 1)]
        assert sorted(rows.advantages[rows.loss_mask].tolist()) == sorted(expected)
    assert set(np.abs(both.advantages[both.loss_mask]).tolist()) == {0.25, 0.75}
    assert batch_of(*groups).group_ids == ("group_A", "group_B")


def test_c04_branches_of_a_trajectory_share_its_advantage_and_every_token_is_trained_once() -> None:
    case = EXPECTED["C04"]["input"]
    turns = (case["turn1"], case["turn2"])
    first, second = (
        sequence([*turn["prompt"], *turn["sampled"]], [0] * len(turn["prompt"]) + [1] * len(turn["sampled"]))
        for turn in turns
    )
    batch = batch_of(group(trajectory(first, second, reward=1.0), trajectory(answer(4), reward=0.0)))
    rows = flat(batch)
    of_pair = rows.loss_mask & (rows.tokens < 100)
    assert sorted(rows.tokens[of_pair].tolist()) == sorted(turns[0]["sampled"] + turns[1]["sampled"])
    assert rows.advantages[of_pair].tolist() == [0.5] * 8
    assert batch.stats.branches == 1
    assert batch.counts.sequences == 3


def test_c47_a_sequence_without_fresh_tokens_is_in_no_denominator_and_not_packed() -> None:
    members = [trajectory(answer(4), reward=1.0), trajectory(answer(4), reward=None)]
    batch = batch_of(group(*members))
    assert batch.counts == (3, 1)
    assert batch.stats.real_tokens == 4
    nothing = batch_of(group(trajectory(answer(4), reward=None)))
    assert nothing.empty
    assert nothing.denominator == 1.0


def test_c72_the_reward_mean_counts_trajectories_not_turns() -> None:
    case = EXPECTED["C72"]
    members = []
    for turns, reward in zip(case["input"]["turns"], case["input"]["reward"], strict=True):
        members.append(trajectory(sequence(range(2 * turns), [0, 1] * turns), reward=reward))
    assert batch_of(group(*members)).stats.reward_mean == case["expect"]["reward_mean"]


def test_denominators_are_those_of_the_whole_batch() -> None:
    members = [trajectory(answer(n), reward=float(n % 2)) for n in (30, 29, 20, 12, 7, 3)]
    batch = batch_of(group(*members), rows=1)
    assert len(batch.micro_batches) > 1
    parts = [count_fresh(micro.rows.loss_mask, micro.rows.segment_ids) for micro in batch.micro_batches]
    assert batch.counts.tokens == sum(part.tokens for part in parts) == 95
    assert batch.counts.sequences == sum(part.sequences for part in parts) == 6
    assert batch.denominator == 95.0


def test_every_shape_is_one_of_the_ladder_and_rows_may_be_empty() -> None:
    settings = {"max_length": 32, "rows": 2, "max_programs": 1}
    batch = batch_of(group(*(trajectory(answer(20)) for _ in range(3))), **settings)
    ladder = build_ladder(BatchingSettings(**settings))  # type: ignore[arg-type]
    assert {micro.bucket for micro in batch.micro_batches} == set(ladder)
    assert [micro.rows.tokens.shape for micro in batch.micro_batches] == [(2, 32), (2, 32)]
    last = batch.micro_batches[-1].rows
    assert not last.segment_ids[1].any()
    assert not last.loss_mask[1].any()
    assert batch.stats.fill == 60 / 128
    assert (batch.stats.real_tokens, batch.stats.padded_tokens) == (60, 68)
    assert batch.stats.micro_batches == 2


def test_arrays_have_the_types_of_the_compiled_step_and_are_frozen() -> None:
    batch = batch_of(group(trajectory(answer(4)), trajectory(answer(3), reward=0.0)))
    rows = batch.micro_batches[0].rows
    known = [array for array in rows if array is not None]
    assert [str(array.dtype) for array in known] == ["int32"] * 3 + ["bool"] + ["float32"] * 4 + ["int32"]
    assert not any(array.flags.writeable for array in known)
    assert np.array_equal(rows.proximal_logprobs, rows.behavior_logprobs)


def test_tokens_are_counted_by_turn() -> None:
    one = sequence(range(9), [0, 1, 1, 0, 1, 0, 1, 1, 1], versions=[5, 9, 9, 9, 9, 9])
    batch = batch_of(group(trajectory(one)), max_staleness=2)
    assert batch.stats.action_tokens_by_turn == (2, 1, 3)
    assert batch.stats.fresh_tokens_by_turn == (1, 1, 3)
    assert batch.stats.staleness_mean == 1.0


def test_equal_rewards_are_counted_and_have_no_advantage() -> None:
    batch = batch_of(group(*(trajectory(answer(3), reward=0.1) for _ in range(7))))
    assert batch.stats.zero_spread_groups == 1
    assert not flat(batch).advantages.any()
    assert batch.counts.tokens == 14


@pytest.mark.parametrize(
    "change",
    [{"tokens": [1, 2, 4]}, {"logprobs": [-0.5, -0.25]}, {"versions": [10, 1]}, {"mask": [0, 1, 0]}],
)
def test_the_digest_tells_batches_apart(change: dict[str, list[float]]) -> None:
    fields = {"tokens": [1, 2, 3], "mask": [0, 1, 1]}
    changed = {**fields, **change}
    if "mask" in change:
        changed["logprobs"] = [-0.5]
    one = batch_of(group(trajectory(sequence(**fields))))  # type: ignore[arg-type]
    other = batch_of(group(trajectory(sequence(**changed))))  # type: ignore[arg-type]
    assert one.digest == batch_of(group(trajectory(sequence(**fields)))).digest  # type: ignore[arg-type]
    assert one.digest != other.digest


def test_the_digest_is_the_same_in_another_process() -> None:
    program = (
        "from tests.unit.batching.records import *;"
        "print(batch_of(group(*(trajectory(answer(n), reward=n % 2.0) for n in (9, 5, 30)))).digest)"
    )
    digest = batch_of(group(*(trajectory(answer(n), reward=n % 2.0) for n in (9, 5, 30)))).digest
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert found.stdout.strip() == digest
    assert len(trained_tokens(batch_of(group(trajectory(answer(9)))))) == 8


def test_an_episode_that_ended_before_its_first_token_is_not_discarded_but_counts_in_the_baseline() -> None:
    batch = batch_of(group(trajectory(reward=0.0), trajectory(answer(2), reward=1.0)))
    assert (batch.stats.trajectories, batch.stats.discarded, batch.stats.branches) == (2, 0, 0)
    assert flat(batch).advantages.max() == 0.5
