"""A learner that trains made-up batches: what they hold is counted, how long they take is not asserted."""

from __future__ import annotations

import functools

import numpy as np

from forebay.batching.packing import Bucket
from forebay.batching.settings import BatchingSettings
from forebay.batching.updates import build_updates
from forebay.learner.settings import LearnerSettings
from forebay.learner.timing import Length, StepTimer, made_up_batch, repeated_s
from forebay.objectives import ObjectiveSettings
from forebay.objectives.denominators import batch_denominator
from forebay.objectives.settings import build_batch_advantages
from forebay.staleness import StalenessSettings
from tests.numerics import training
from tests.unit.models import tiny

BUCKET = Bucket(4, training.WIDTH)
PACK = functools.partial(
    build_updates,
    staleness=StalenessSettings(),
    settings=BatchingSettings(groups=2, group_size=3, max_length=BUCKET.length, buckets=(tuple(BUCKET),)),
    ladder=(BUCKET,),
    advantage=build_batch_advantages(ObjectiveSettings()),
    denominator=functools.partial(batch_denominator, ObjectiveSettings()),
)
LENGTHS = [Length(10, 4), Length(20, 3), Length(7, 7)] * 2


def pack(groups, now, forks, packing):  # type: ignore[no-untyped-def]
    return PACK(groups, now=now, forks=forks)


def test_a_made_up_batch_has_the_tokens_that_were_asked_for() -> None:
    batch = made_up_batch(pack, LENGTHS, 3, 50)
    assert [len(group.trajectories) for group in batch.groups] == [3, 3]
    assert [t.num_action_tokens for t in batch.groups[0].trajectories] == [4, 3, 6]  # one is the prompt
    (update,) = batch.updates
    assert update.num_tokens == 2 * (10 + 20 + 7)
    assert update.counts.tokens == 2 * (4 + 3 + 6)
    # Their rewards differ, so that nothing in the step is spared.
    advantages = np.concatenate([micro.rows.advantages.ravel() for micro in update.micro_batches])
    assert advantages.min() < 0.0 < advantages.max()


def test_made_up_tokens_differ_and_are_the_same_every_time() -> None:
    first, again = (made_up_batch(pack, LENGTHS, 3, 50) for _ in range(2))
    tokens, same = (
        np.concatenate([t.sequences[0].tokens for group in batch.groups for t in group.trajectories])
        for batch in (first, again)
    )
    assert len(set(tokens.tolist())) > 20
    assert (tokens >= 0).all() and (tokens < 50).all()
    np.testing.assert_array_equal(tokens, same)


def test_steps_and_programs_are_timed_on_the_runs_own_loop() -> None:
    programs = training.programs()
    timer = StepTimer(programs, tiny.params(), (), LearnerSettings())
    batch = made_up_batch(pack, LENGTHS, 3, tiny.CONFIG.num_real_tokens)
    timed = [timer.train(batch) for _ in range(2)]
    assert all(one.step_s > 0.0 and one.overhead_s > 0.0 for one in timed)
    assert len(timer.bucket_s(BUCKET, 6, 0.0)) == len(timer.apply_s(0.0)) == 3
    assert timer.full_tokens_per_s(batch, [BUCKET], 6) > 0.0
    assert timer.train(batch).step_s > 0.0  # also after the state was donated to all of this


def test_a_call_is_repeated_at_least_three_times_after_one_that_does_not_count() -> None:
    calls: list[int] = []
    assert len(repeated_s(lambda: calls.append(1), 0.0)) == 3 and len(calls) == 4
