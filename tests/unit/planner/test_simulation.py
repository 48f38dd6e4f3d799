"""The simulation against what can be computed by hand, and its promises under anything."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.errors import ConfigError
from forebay.planner.distribution import constant, sampled
from forebay.planner.profile import Profile
from forebay.planner.scenario import Scenario
from forebay.planner.simulation import Outcome, simulate
from forebay.planner.training import Learner
from tests.unit.planner.profiles import environment, profile

# An episode of `profile()` takes 3 x (0.25 + 1) s.
EPISODE_S = 3.75
SLOW = sampled([random.Random(5).lognormvariate(0.0, 1.0) for _ in range(200)])
HEAVY = sampled([random.Random(number).lognormvariate(0.0, 1.2) for number in range(300)])


def run(found: Profile, **values: object) -> Outcome:
    return simulate(
        found, Scenario(**{"groups": 4, "group_size": 2, "poll_max_s": 0.0, "steps": 60, **values})
    )


def test_a_synchronous_run_takes_every_time_in_turn() -> None:
    found = profile(overhead_s=0.5, weights_s=0.125)
    outcome = run(found, max_staleness=0)
    assert outcome.busy == pytest.approx(2.0 / (2.0 + 0.5 + 0.125 + EPISODE_S), abs=1e-9)
    assert outcome.staleness_max == 0
    assert outcome.steps_per_s == pytest.approx(1.0 / 6.375, abs=1e-9)


def test_credit_is_free_once_weights_are_visible() -> None:
    """A member that is claimed in the meantime would begin with weights that do not sample yet."""
    found = profile(overhead_s=0.5, weights_s=0.125)
    weights = found.weights
    assert weights is not None
    slow = msgspec.structs.replace(weights, first_token_s=constant(0.75), publish_s=constant(0.5))
    outcome = run(msgspec.structs.replace(found, weights=slow), max_staleness=0)
    # The environment is reset while the weights load: nothing is won, for its first call waits for them.
    assert outcome.steps_per_s == pytest.approx(1.0 / (2.0 + 0.5 + 0.75 + EPISODE_S), abs=1e-9)
    slow = msgspec.structs.replace(weights, first_token_s=constant(0.75), publish_s=constant(0.75))
    outcome = run(msgspec.structs.replace(found, weights=slow), max_staleness=0)
    assert outcome.steps_per_s == pytest.approx(1.0 / (2.0 + 0.5 + 0.75 + EPISODE_S), abs=1e-9)


def test_enough_episodes_in_flight_keep_the_learner_busy() -> None:
    outcome = run(profile(), max_staleness=8)
    assert outcome.busy == pytest.approx(1.0, abs=1e-9)
    assert outcome.goodput == pytest.approx(1.0, abs=1e-9)
    assert outcome.fresh_tokens_per_s == pytest.approx(8 * 30 / 2.0, abs=1e-9)


def test_overhead_bounds_busy() -> None:
    assert run(profile(overhead_s=0.5), max_staleness=8).busy == pytest.approx(0.8, abs=1e-9)


@pytest.mark.parametrize("places", [4, 8, 12])
def test_too_few_places_make_littles_law_the_limit(places: int) -> None:
    """lambda = N / E[T] episodes a second, 8 a batch, 2 s a batch: busy is a quarter of the rate."""
    outcome = run(profile(), max_staleness=8, episodes_in_flight=places, steps=200)
    assert outcome.busy == pytest.approx(2.0 * places / EPISODE_S / 8, rel=0.02)
    assert outcome.episodes_in_flight == pytest.approx(places, rel=0.01)


def test_a_rate_limited_environment_is_the_limit() -> None:
    """Two answers at a time of 1 s each, three an episode: 2/3 of an episode per second, of 4 wanted."""
    outcome = run(profile(), max_staleness=8, environment_concurrency=2, steps=100)
    assert outcome.busy == pytest.approx(2.0 / 3.0 / 4.0, rel=0.02)
    assert outcome.phases_s["environment_queue"] > 1.0


def test_generators_are_the_limit_until_there_are_more() -> None:
    """Two slots of 0.25 s, three calls an episode: 8/3 episodes per second, of 4 wanted."""
    one = run(profile(slots=2), max_staleness=8, steps=100)
    assert one.busy == pytest.approx(8.0 / 3.0 / 4.0, rel=0.02)
    assert run(profile(slots=2), max_staleness=8, steps=100, generators=2).busy == pytest.approx(
        1.0, abs=1e-3
    )


def test_a_lost_generator_costs_what_it_did() -> None:
    outcome = run(
        profile(slots=2), max_staleness=8, steps=100, generators=2, generators_lost=1, lost_for_s=1e6
    )
    assert outcome.busy == pytest.approx(8.0 / 3.0 / 4.0, rel=0.02)


def test_littles_law_holds() -> None:
    outcome = run(profile(step_s=SLOW), max_staleness=4, steps=400)
    assert outcome.little == pytest.approx(1.0, abs=0.02)


def test_the_same_seed_gives_the_same_outcome() -> None:
    found = profile(step_s=HEAVY)
    first, again = (run(found, max_staleness=4, seed=3) for _ in range(2))
    assert first == again
    assert run(found, max_staleness=4, seed=4) != first


def test_more_staleness_and_more_places_do_not_hurt() -> None:
    found = profile(step_s=HEAVY)
    by_limit = [run(found, max_staleness=limit, steps=200).busy for limit in (0, 1, 3, 8)]
    assert by_limit == sorted(by_limit) and by_limit[-1] > 2 * by_limit[0]


def test_stragglers_cost_a_synchronous_run_most() -> None:
    sync = [run(profile(), max_staleness=0, straggler_probability=share).busy for share in (0.0, 0.1)]
    late = [run(profile(), max_staleness=16, straggler_probability=share).busy for share in (0.0, 0.1)]
    assert sync[1] < 0.75 * sync[0] and late[1] > 0.9 * late[0]


def test_an_episode_deadline_ends_episodes_and_leaves_them_out() -> None:
    outcome = run(profile(step_s=HEAVY), max_staleness=8, episode_timeout_s=5.0, steps=100)
    assert 0.0 < outcome.timed_out_share < 1.0
    assert outcome.discarded > 0 and outcome.masked_tokens > 0 and outcome.stale_tokens == 0


def test_waiting_discards_nothing_dropping_does_and_masking_masks() -> None:
    found = profile(step_s=HEAVY)
    outcomes = {
        rule: run(found, max_staleness=2, on_stale=rule, steps=150) for rule in ("wait", "drop", "mask")
    }
    assert outcomes["wait"].discarded == outcomes["wait"].masked_tokens == 0
    assert outcomes["drop"].discarded > 0 and outcomes["drop"].masked_tokens == 0
    assert outcomes["mask"].stale_tokens > 0
    assert outcomes["mask"].busy > outcomes["wait"].busy


def test_failures_are_tried_again_and_cost_groups_at_last() -> None:
    outcome = run(profile(), max_staleness=8, failure_probability=0.3, max_attempts=2, steps=60)
    assert outcome.discarded > 0
    assert outcome.busy < run(profile(), max_staleness=8).busy + 1e-9


def test_environments_share_batches_by_weight() -> None:
    found = profile()
    both = {"fast": environment(sampled([0.1]), weight=3.0), "slow": environment(sampled([4.0]))}
    mixed = Profile(environments=both, generator=found.generator, learner=found.learner)
    outcome = run(mixed, max_staleness=12, steps=100)
    assert outcome.busy == pytest.approx(1.0, abs=1e-6)
    assert run(mixed, max_staleness=0).busy == pytest.approx(2.0 / (2.0 + 3 * 4.25), abs=1e-9)


def test_stored_bytes_are_counted() -> None:
    outcome = run(profile(store=True), max_staleness=8)
    assert outcome.buffer_bytes == pytest.approx(100 * outcome.buffer_trajectories)
    assert outcome.buffer_bytes_max <= 9 * 8 * 100


def test_a_run_that_can_make_no_batch_says_so() -> None:
    with pytest.raises(ConfigError, match="no batch can be made"):
        run(profile(), max_staleness=1, episode_timeout_s=1.0, steps=3)


def test_a_missing_part_is_named() -> None:
    with pytest.raises(ConfigError, match="generator, learner"):
        run(Profile(environments={"tools": environment()}))


@settings(max_examples=25, deadline=None)
@given(
    limit=st.integers(0, 4),
    rule=st.sampled_from(["wait", "drop", "mask"]),
    size=st.integers(1, 3),
    minibatches=st.sampled_from([1, 2]),
    places=st.integers(1, 30),
    fails=st.sampled_from([0.0, 0.1]),
    deadline_s=st.sampled_from([6.0, 600.0]),
    seed=st.integers(0, 99),
)
def test_no_token_is_trained_beyond_the_limit(
    limit: int,
    rule: str,
    size: int,
    minibatches: int,
    places: int,
    fails: float,
    deadline_s: float,
    seed: int,
) -> None:
    outcome = run(
        profile(step_s=HEAVY, weights_s=0.3),
        max_staleness=max(limit, minibatches - 1),
        on_stale=rule,
        group_size=size,
        min_group_size=1,
        minibatches=minibatches,
        episodes_in_flight=places,
        failure_probability=fails,
        episode_timeout_s=deadline_s,
        seed=seed,
        steps=8,
        warmup_steps=0,
    )
    assert outcome.staleness_max <= max(limit, minibatches - 1)
    assert sum(outcome.staleness_histogram) == pytest.approx(1.0)
    assert 0.0 < outcome.busy <= 1.0 + 1e-9


@pytest.mark.parametrize("seed", range(6))
def test_the_choice_is_left_out_only_where_it_would_say_the_same(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {"max_staleness": 1 + seed % 4, "credit": 2, "groups": 3, "steps": 60, "seed": seed}
    found = profile(step_s=HEAVY)
    first = run(found, **values)
    # Asked at every change, as the product does.
    monkeypatch.setattr(Learner, "changed", lambda learner, _: learner.look() if learner.has_room else None)
    assert run(found, **values) == first
