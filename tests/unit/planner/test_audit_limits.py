"""Profiles whose limits can be computed by hand, in numbers and in words."""

from __future__ import annotations

import msgspec
import pytest

from forebay.cli.audit_limits_text import limit_sentences
from forebay.planner.audit_limits import demand_of, limits_of, mean_of
from forebay.planner.distribution import constant, sampled
from forebay.planner.profile import EnvironmentLevel, GeneratorLevel, Profile, Traffic
from tests.unit.planner.profiles import profile

replace = msgspec.structs.replace


def traffic(action_tokens: float = 30.0) -> Traffic:
    return Traffic(
        num_episodes=4,
        turns=constant(2.0),
        prompt_tokens=constant(10.0),
        computed_tokens=constant(10.0),
        sampled_tokens=constant(15.0),
        episode_tokens=constant(60.0),
        action_tokens=constant(action_tokens),
        trajectory_bytes=constant(500.0),
    )


def measured(tokens_per_s: float, *, knee: int | None = 4, steps_per_s: float = 100.0) -> Profile:
    """Eight trajectories in 2 s: 4 a second are needed, 30 tokens each are sampled: 120 tokens/s."""
    base = profile(store=True, weights_s=1.0)
    assert base.generator is not None and base.learner is not None
    level = EnvironmentLevel(concurrency=16, steps_per_s=steps_per_s, step_s=constant(0.1))
    environment = replace(base.environments["tools"], levels=(level,), knee=16 if knee else None)
    generator = replace(
        base.generator,
        levels=(
            GeneratorLevel(
                requests=4,
                tokens_per_s=tokens_per_s,
                tokens_per_s_interval=(0.9 * tokens_per_s, 1.1 * tokens_per_s),
                call_s=constant(0.3),
            ),
        ),
        knee=knee,
        traffic={"tools": traffic()},
    )
    learner = replace(base.learner, levels=(replace(base.learner.levels[0], step_s=sampled([2.0] * 10)),))
    return replace(base, environments={"tools": environment}, generator=generator, learner=learner)


def test_the_learner_needs_what_it_eats() -> None:
    demand = demand_of(measured(60.0))
    assert demand is not None
    assert (demand.trajectories_per_s.value, demand.tokens_per_s.value) == (4.0, 120.0)
    assert demand_of(Profile()) is None and limits_of(Profile()) == []


def test_the_tightest_limit_comes_first_with_its_interval() -> None:
    first, *others = limits_of(measured(60.0))
    assert (first.part, first.at, first.is_reached) == ("generator", 4, True)
    assert first.share.value == 0.5
    assert (first.share.low, first.share.high) == pytest.approx((0.45, 0.55))
    # The model takes 2 turns an episode, whatever the demonstrations took: 50 episodes/s; the store 100.
    assert [(one.part, one.share.value) for one in others] == [("environment", 12.5), ("store", 25.0)]


def test_a_limit_is_told_with_what_to_change_and_how_sure_it_is() -> None:
    text = "\n".join(limit_sentences(measured(60.0)))
    assert "takes 2.00 s a step (95 % 2.00 s to 2.00 s, 10 steps) for 8 trajectories" in text
    assert "needs 4 trajectories/s, for which 120 tokens/s must be sampled" in text
    assert (
        "This generator yields 60 tokens/s (95 % 54 to 66) at 4 requests at a time, and 120 are needed"
        in text
    )
    assert "it limits. The learner is busy at most 50.0 % of the time (95 % 45.0 % to 55.0 %)" in text
    assert "Use 2 generators like it" in text
    assert "first token 1.00 s after they are handed over" in text and "0.5 steps" in text
    assert "not sure" not in text and "Not measured" not in text


def test_nothing_limits_and_what_is_not_sure_is_said() -> None:
    assert "Nothing that was measured limits it. The least to spare has the generator: 2 times" in "\n".join(
        limit_sentences(measured(240.0))
    )
    assert "Whether the generator suffices is not sure: what it can do is 0.9 to 1.1 times" in "\n".join(
        limit_sentences(measured(120.0))
    )


def test_what_was_not_loaded_to_its_limit_does_not_limit() -> None:
    found = measured(60.0, knee=None, steps_per_s=4.0)
    assert [one.is_reached for one in limits_of(found)] == [False, False, True]
    text = "\n".join(limit_sentences(found))
    assert "it limits" not in text
    assert "Measure higher loads: --requests." in text
    # 2 episodes/s at 16 at a time, and 4 are needed.
    assert "about 32 at a time, if it keeps up" in text and "--concurrency 16,32" in text


def test_missing_parts_are_named() -> None:
    whole = measured(60.0)
    assert limit_sentences(Profile(environments=whole.environments)) == []
    (text,) = limit_sentences(replace(whole, learner=None, store=None))
    assert text.startswith("Not measured: learner, store.")
    assert limit_sentences(replace(whole, weights=None))[-1] == "Not measured: weights."


def test_a_mean_of_one_measurement_has_no_bound() -> None:
    assert mean_of(constant(2.0)).high == float("inf")
    # Deviation of 1 and 3 is 1; (1.96 + 2.4) / sqrt(1) either side.
    assert mean_of(sampled([1.0, 3.0])).high == pytest.approx(2.0 + 4.36)


def test_a_batch_that_trains_nothing_is_limited_by_no_generator() -> None:
    found = measured(60.0)
    assert found.learner is not None and found.generator is not None
    level = replace(found.learner.levels[0], tokens=0)
    idle = replace(
        found,
        learner=replace(found.learner, levels=(level,)),
        generator=replace(found.generator, traffic={}),
    )
    assert [one.part for one in limits_of(idle)] == [
        one.part for one in limits_of(found) if one.part != "generator"
    ]
    assert "0 tokens/s must be sampled" in limit_sentences(idle)[0]
