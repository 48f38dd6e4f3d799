"""Where rewards lie among the trained tokens of a batch."""

from __future__ import annotations

from typing import Any

import numpy as np

from forebay.batching.batch import Batch, build_batch
from forebay.batching.credit import Credit
from forebay.batching.ladder import build_ladder
from forebay.batching.settings import BatchingSettings
from forebay.batching.updates import outcomes_of
from forebay.objectives import ObjectiveSettings, build_batch_advantages
from forebay.staleness import StalenessSettings
from forebay.trajectory import Sequence, StepRecord, Trajectory
from tests.unit.batching.records import NOW, answer, flat, group, sequence, token_mean, trajectory

TWO_TURNS = [0, 1, 1, 0, 0, 1]


def steps(*rewards: float | None) -> tuple[StepRecord, ...]:
    return tuple(StepRecord(reward, "stop", 0.0, 0.0, 0.0) for reward in rewards)


def batch_of(*members: Trajectory, objective: str = "gae", **settings: Any) -> Batch:
    batching = BatchingSettings(**({"max_length": 32, "rows": 2, "max_programs": 4} | settings))
    taken = group(*members)
    return build_batch(
        [taken],
        now=NOW,
        forks=(),
        staleness=StalenessSettings(on_stale="mask", max_staleness=2),
        settings=batching,
        ladder=build_ladder(batching),
        advantages=build_batch_advantages(ObjectiveSettings(advantage=objective))([outcomes_of(taken)]),
        denominator=token_mean,
    )


def credit(*members: Trajectory, **settings: Any) -> tuple[Credit, list[int]]:
    """Return the credit of a batch, and which token lies at each of its slots."""
    batch = batch_of(*members, **settings)
    assert batch.credit is not None
    return batch.credit, flat(batch).tokens[batch.credit.slots].tolist()


def test_tokens_come_episode_by_episode_without_what_the_environment_said() -> None:
    episodes = [
        trajectory(sequence([1, 2, 3, 4, 5, 6], TWO_TURNS), steps=steps(0.25, 0.5), reward=0.75),
        trajectory(sequence([11, 12], [0, 1]), steps=steps(1.0), reward=1.0),
    ]
    got, tokens = credit(*episodes)
    assert tokens == [2, 3, 6, 12]
    assert got.lengths.tolist() == [3, 1]
    assert got.rewards.tolist() == [0.0, 0.25, 0.5, 1.0]
    assert got.cut_off.tolist() == [False, False]


def test_an_episode_judged_as_a_whole_is_rewarded_at_its_last_token() -> None:
    got, _ = credit(trajectory(sequence([1, 2, 3, 4, 5, 6], TWO_TURNS), reward=2.0))
    assert got.rewards.tolist() == [0.0, 0.0, 2.0]


def test_a_turn_without_tokens_rewards_the_one_before() -> None:
    got, _ = credit(
        trajectory(sequence([1, 2, 3, 4, 5, 6], TWO_TURNS), steps=steps(0.0, 0.5, 0.25), reward=0.75)
    )
    assert got.rewards.tolist() == [0.0, 0.0, 0.75]


def test_turns_of_several_sequences_come_in_the_order_of_sampling() -> None:
    first = sequence([1, 2, 3], [0, 1, 1])
    later = sequence([21, 22, 23], [0, 0, 1])
    forked = Sequence(
        tokens=later.tokens,
        action_spans=tuple(type(s)(s.start, s.stop, 1) for s in later.action_spans),
        behavior_logprobs=later.behavior_logprobs,
        version_spans=later.version_spans,
        sampling=later.sampling,
    )
    # The branch of the later turn is listed first.
    got, tokens = credit(trajectory(forked, first, steps=steps(0.5, 1.0), reward=1.5))
    assert tokens == [2, 3, 23]
    assert got.rewards.tolist() == [0.0, 0.5, 1.0]
    assert got.lengths.tolist() == [3]


def test_what_was_gained_before_the_first_trained_token_counts_for_none() -> None:
    # The first turn is too old to be trained.
    stale = sequence([1, 2, 3, 4, 5, 6], TWO_TURNS, versions=[1, 1, 10])
    got, tokens = credit(trajectory(stale, steps=steps(4.0, 0.5), reward=4.5))
    assert (tokens, got.rewards.tolist()) == ([6], [0.5])


def test_only_an_episode_that_was_cut_off_where_it_was_trained_goes_on() -> None:
    cut_off = {"terminated": False, "truncated": True, "finish": "truncated"}
    whole = trajectory(answer(4), **cut_off)
    got, _ = credit(whole, trajectory(answer(4)), trajectory(answer(12), **cut_off))
    assert got.cut_off.tolist() == [True, False, True]
    # Beyond max_length nothing is trained: the reward stands for what was left out.
    got, _ = credit(
        whole, trajectory(answer(12), **cut_off), max_length=8, min_row_length=8, oversize="truncate"
    )
    assert got.cut_off.tolist() == [True, False]
    assert got.rewards.tolist() == [0.0, 0.0, 1.0] + [0.0] * 6 + [1.0]


def test_an_episode_without_a_score_or_without_a_trained_token_is_not_in_it() -> None:
    got, _ = credit(
        trajectory(answer(4), reward=None),
        trajectory(answer(4), reward=1.0),
        trajectory(answer(4, versions=[1, 1, 1]), reward=1.0),
    )
    assert got.lengths.tolist() == [3]


def test_every_slot_is_that_of_a_trained_token_and_has_one_before_it() -> None:
    batch = batch_of(*(trajectory(answer(length), name=f"t{length}") for length in range(2, 12)))
    rows = flat(batch)
    assert batch.credit is not None
    slots = batch.credit.slots
    assert sorted(slots.tolist()) == np.flatnonzero(rows.loss_mask).tolist()
    assert (rows.positions[slots] == rows.positions[slots - 1] + 1).all()


def test_the_digest_knows_the_rewards_and_other_objectives_have_no_credit() -> None:
    members = [trajectory(answer(4), reward=reward) for reward in (0.0, 1.0)]
    digests = {batch_of(member).digest for member in members}
    assert len(digests) == 2
    assert batch_of(*members, objective="group_mean").credit is None
    empty = batch_of(trajectory(answer(4), reward=None))
    assert empty.empty
    assert empty.credit is not None
    assert empty.credit.lengths.tolist() == []


def test_each_turn_has_its_own_advantage() -> None:
    two_turns = sequence([1, 2, 3, 4, 5, 6], TWO_TURNS)
    members = [
        trajectory(two_turns, steps=steps(1.0, 0.0), reward=1.0),
        trajectory(two_turns, steps=steps(0.0, 1.0), reward=1.0),
    ]
    batch = batch_of(*members, objective="turn_return")
    rows = flat(batch)
    assert rows.advantages[rows.loss_mask].tolist() == [0.0, 0.0, -0.5, 0.0, 0.0, 0.5]
    assert batch.credit is None
