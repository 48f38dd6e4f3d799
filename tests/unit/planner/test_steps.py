"""Steps by how their batches are packed, against the product's own packing and its measure of useful work."""

from __future__ import annotations

import functools
import random

import msgspec
import pytest

from forebay.batching.packing import Bucket
from forebay.batching.settings import BatchingSettings
from forebay.batching.updates import build_updates
from forebay.learner.bare import work_of
from forebay.learner.timing import Length, made_up_batch
from forebay.objectives import ObjectiveSettings
from forebay.objectives.denominators import batch_denominator
from forebay.objectives.settings import build_batch_advantages
from forebay.planner.distribution import constant, sampled
from forebay.planner.profile import LearnerBucket, LearnerProfile, PackedLevel, Profile, Traffic
from forebay.planner.scenario import Scenario
from forebay.planner.simulation import Outcome, simulate
from forebay.planner.steps import CountedSteps, PackedSteps
from forebay.planner.training import Trained, Update
from forebay.staleness import StalenessSettings
from tests.unit.planner.profiles import profile

SECONDS = {Bucket(2, 96): 2.0, Bucket(1, 96): 1.25, Bucket(1, 48): 0.75}
SCENARIO = Scenario(groups=4, group_size=2)


def learner(seconds: dict[Bucket, float] = SECONDS, **changed: object) -> LearnerProfile:
    found = profile().learner
    assert found is not None
    buckets = tuple(
        LearnerBucket(rows=bucket.rows, length=bucket.length, call_s=constant(call_s))
        for bucket, call_s in seconds.items()
    )
    return msgspec.structs.replace(found, buckets=buckets, apply_s=constant(0.5), **changed)


def steps(found: LearnerProfile, scenario: Scenario = SCENARIO) -> PackedSteps:
    return PackedSteps(found, scenario, random.Random(0), lambda size: trained((48,) * size))


def trained(*lengths: tuple[int, ...], share: float = 1.0) -> Trained:
    return Trained({}, 0.0, 0.0, 0, 0, tuple(Update(share, each) for each in lengths))


def test_a_step_is_the_sum_of_its_micro_batches_and_the_optimizer() -> None:
    assert steps(learner()).draw(trained((48,) * 8)) == 2 * 2.0 + 0.5
    assert steps(learner()).draw(trained((48,) * 4, (30,))) == 2.0 + 0.5 + 0.75 + 0.5
    assert steps(learner()).draw(trained((96,), ())) == 1.25 + 0.5  # nothing to train makes no step
    assert steps(learner()).mean(4) == 2.0 + 0.5
    twice = Scenario(groups=4, group_size=2, learner_factor=2.0)
    assert steps(learner(), twice).draw(trained((48,) * 8)) == 2 * (2 * 2.0 + 0.5)


def test_padding_is_not_useful_and_neither_is_what_is_not_trained() -> None:
    found = steps(learner())
    assert found.useful_s(trained((48,) * 4)) == pytest.approx(2.0 + 0.5)
    assert found.useful_s(trained((24,))) == pytest.approx(0.75 / 2 + 0.5)
    assert found.useful_s(trained((48,) * 4, share=0.6)) == pytest.approx(0.6 * 2.5)
    # The best of ten calls, each of two times as likely.
    uneven = msgspec.structs.replace(learner({Bucket(1, 48): 1.0}), apply_s=sampled([0.0, 1024.0]))
    assert steps(uneven).useful_s(trained((48,))) == pytest.approx(1.0 + 1.0)


def test_a_sequence_that_no_row_holds_is_cut() -> None:
    assert steps(learner()).draw(trained((500,))) == 1.25 + 0.5


def test_steps_of_runs_come_first_and_are_told_apart_by_their_slots() -> None:
    """By packing alone a step would be 2.5 s: beside the rest of the run it was 4 s."""
    packed = (
        PackedLevel(slots=96, step_s=constant(3.0)),
        PackedLevel(slots=192, step_s=constant(4.0)),
    )
    found = steps(learner(packed=packed))
    assert found.draw(trained((48,) * 4)) == 4.0
    assert found.mean(4) == 4.0
    assert found.draw(trained((48,) * 3)) == 3.5  # 144 slots
    assert found.draw(trained((48,) * 8)) == 8.0  # in proportion
    assert found.useful_s(trained((48,) * 4)) == 2.5


def test_useful_work_is_what_the_learner_counts() -> None:
    ladder = tuple(SECONDS)
    settings = BatchingSettings(groups=4, group_size=2, max_length=96, buckets=tuple(map(tuple, ladder)))

    def pack(groups, now, forks, packing):  # type: ignore[no-untyped-def]
        return build_updates(
            groups,
            now=now,
            forks=forks,
            staleness=StalenessSettings(),
            settings=settings,
            ladder=ladder,
            advantage=build_batch_advantages(ObjectiveSettings()),
            denominator=functools.partial(batch_denominator, ObjectiveSettings()),
        )

    rng = random.Random(3)
    for _ in range(20):
        lengths = tuple(rng.randint(5, 60) for _ in range(8))
        (update,) = made_up_batch(pack, [Length(length, 3) for length in lengths], 2, 50).updates
        work = work_of(update)
        expected_s = work.updates * 0.5 + sum(calls * SECONDS[bucket] for bucket, calls in work.calls.items())
        assert steps(learner()).useful_s(trained(lengths)) == pytest.approx(expected_s)
        slots = sum(micro.bucket.slots for micro in update.micro_batches)
        counted = learner(packed=(PackedLevel(slots=1000, step_s=constant(1000.0)),))
        assert steps(counted).draw(trained(lengths)) == pytest.approx(slots)


def packed_profile(seconds: dict[Bucket, float]) -> Profile:
    """Return a profile of episodes of 10 + 3 x 10 + 2 x 5 = 50 tokens."""
    one = constant(1.0)
    traffic = Traffic(
        num_episodes=4,
        turns=constant(3.0),
        prompt_tokens=one,
        computed_tokens=one,
        sampled_tokens=constant(10.0),
        episode_tokens=one,
        action_tokens=one,
        trajectory_bytes=one,
        first_prompt_tokens=constant(10.0),
        observed_tokens=constant(5.0),
    )
    found = profile()
    assert found.generator is not None
    generator = msgspec.structs.replace(found.generator, traffic={"tools": traffic})
    return msgspec.structs.replace(found, generator=generator, learner=learner(seconds))


def run(found: Profile) -> Outcome:
    settings = {"groups": 4, "group_size": 2, "poll_max_s": 0.0, "steps": 60, "max_staleness": 8}
    return simulate(found, Scenario(**settings))


@pytest.mark.parametrize(("slots", "fill"), [(400, 1.0), (500, 0.8)])
def test_a_simulated_run_packs_its_episodes(slots: int, fill: float) -> None:
    """8 episodes of 50 tokens a batch; the optimizer takes 0.5 s, whatever it is given."""
    outcome = run(packed_profile({Bucket(1, slots): 1.5}))
    assert outcome.busy == pytest.approx(1.0, abs=1e-9)
    assert outcome.step_s == pytest.approx(2.0)
    assert outcome.goodput == pytest.approx((1.5 * fill + 0.5) / 2.0)


def test_without_lengths_or_shapes_steps_go_by_trajectories() -> None:
    found = packed_profile({Bucket(1, 500): 1.5})
    assert found.generator is not None
    bare = msgspec.structs.replace(found.generator, traffic={})
    outcome = run(msgspec.structs.replace(found, generator=bare))
    assert (outcome.step_s, outcome.goodput) == (pytest.approx(2.0), pytest.approx(1.0))
    counted = CountedSteps(learner(full_tokens_per_s=60.0), SCENARIO, random.Random(0))
    batch = Trained({0: 30.0, 1: 90.0}, 0.0, 0.0, 4, 0)
    assert (counted.draw(batch), counted.useful_s(batch), counted.mean(16)) == (1.0, 2.0, 4.0)
