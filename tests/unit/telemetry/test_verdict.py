from __future__ import annotations

from typing import Any

import msgspec
import pytest

from forebay.telemetry.spans import STATES, TimeShares
from forebay.telemetry.verdict import Verdict, judge
from forebay.telemetry.window import EnvironmentFigures, Limits, WindowFigures

LIMITS = Limits(
    groups=16, group_size=4, max_staleness=4, credit=5, episodes_per_process=64, slots=8, checkpoint_every=10
)
# Half of the episodes within 2 s; the slowest of the 64 of a batch, at the quantile 64/65, takes 12.27 s.
CALCULATOR = EnvironmentFigures(
    name="calculator",
    step_p95_s=6.1,
    episode_p50_s=2.0,
    episode_p95_s=8.0,
    max_turns=4,
    episode_timeout_s=30.0,
)


def shares(**seconds: float) -> TimeShares:
    return TimeShares(wall_s=sum(seconds.values()), seconds=dict.fromkeys(STATES, 0.0) | seconds)


def window(computing: float = 97.0, starved: float = 3.0, **values: Any) -> WindowFigures:
    """Twenty batches, in a hundred seconds unless it is said otherwise."""
    others = {state: values.pop(state) for state in STATES if state in values}
    fields: dict[str, Any] = {
        "label": "the last 5 min",
        "num_batches": 20,
        "shares": shares(computing=computing, starved=starved, **others),
        "limits": LIMITS,
        "goodput": 0.95 * computing / (computing + starved + sum(others.values())),
        "fill": 0.97,
        "environments": (CALCULATOR,),
        "trajectories": 1280,
        "groups": 320,
        "fresh_tokens": 10_000,
        "updates": 20,
        "reward": 0.5,
    }
    return WindowFigures(**(fields | values))


def limited(**changes: Any) -> Limits:
    return msgspec.structs.replace(LIMITS, **changes)


def check(verdict: Verdict, cause: str, *words: str) -> None:
    assert verdict.cause == cause
    missing = [word for word in words if word not in verdict.sentence]
    assert missing == [], verdict.sentence
    assert "\n" not in verdict.sentence
    assert not verdict.sentence.endswith(".")


def test_a_busy_learner_needs_no_change() -> None:
    verdict = judge(window())
    check(verdict, "fine", "busy 97 % of the last 5 min", "goodput 92 %")
    assert verdict.standing == "good"
    assert verdict.settings == {}


def test_an_environment_that_starves_the_learner_is_named_with_both_remedies() -> None:
    # L + W = 62 / 20 = 3.1 s; lambda = 64 / 3.1 = 20.65 a second; E[T] = 6 s: N* = 124.
    # The slowest of a batch: 2 * exp(0.8428 * 2.159) = 12.3 s = 3.98 batches, and a half: 5.
    verdict = judge(
        window(62.0, 38.0, life_s={"admission": 99.0, "reset": 0.5, "generating": 0.5, "environment": 5.0})
    )
    check(
        verdict, "environment", "starved 38 % of the last 5 min", "environment `calculator` p95 6.1 s a step"
    )
    check(verdict, "environment", "episodes in flight to 124 (now 64)", "max_staleness to 5 (now 4)")
    assert verdict.settings == {"actors.episodes_per_process": 124.0, "staleness.max_staleness": 5.0}
    assert verdict.standing == "bad"


def test_episodes_in_flight_are_divided_among_the_actor_processes() -> None:
    verdict = judge(
        window(
            62.0,
            38.0,
            life_s={"environment": 6.0},
            limits=limited(actor_processes=3, episodes_per_process=20),
        )
    )
    assert verdict.settings["actors.episodes_per_process"] == 42.0  # 124 / 3


def test_actors_that_find_their_number_are_proposed_more_room_and_no_fixed_number() -> None:
    verdict = judge(
        window(
            62.0,
            38.0,
            life_s={"environment": 6.0},
            limits=limited(episodes_setting="actors.max_episodes_per_process"),
        )
    )
    assert verdict.settings["actors.max_episodes_per_process"] == 124.0
    assert "actors.episodes_per_process" not in verdict.settings


def test_a_synchronous_learner_is_told_how_much_staleness_it_needs() -> None:
    sync = limited(max_staleness=0, credit=1, credit_is_set=True, episodes_per_process=640)
    verdict = judge(window(20.0, 80.0, limits=sync, life_s={"environment": 3.0}))
    # L + W = 1 s: the slowest takes 12.27 s, so S = 13; N* = 192 episodes are 3 batches, and one is trained.
    assert verdict.settings == {"staleness.max_staleness": 13.0, "staleness.credit": 4.0}


def test_where_the_arithmetic_is_content_the_measurement_decides() -> None:
    # N* = 64 * 0.5 / 4 = 8 < 640, and S_min = 1: 5 batches in flight fell short by a fifth, so 7.
    quick = EnvironmentFigures(name="quick", episode_p50_s=0.5, episode_p95_s=0.5)
    content = window(
        80.0,
        20.0,
        environments=(quick,),
        limits=limited(episodes_per_process=640),
        life_s={"environment": 0.5},
    )
    assert judge(content).settings == {"staleness.max_staleness": 6.0}
    few_actors = msgspec.structs.replace(content, waits={"actors": 19.0, "episodes": 1.0})
    assert judge(few_actors).settings == {"actors.episodes_per_process": 800.0}


def test_a_deadline_bounds_how_long_the_slowest_group_is_waited_for() -> None:
    short = msgspec.structs.replace(CALCULATOR, episode_timeout_s=9.0)
    # L + W = 2 s: 9 / 2 + 0.5 = 5, where 12.3 s would ask for 7.
    verdict = judge(
        window(
            40.0,
            60.0,
            environments=(short,),
            limits=limited(episodes_per_process=640),
            life_s={"environment": 3.0},
        )
    )
    assert verdict.settings == {"staleness.max_staleness": 5.0}


def test_a_generator_that_makes_tokens_wait_is_named() -> None:
    verdict = judge(
        window(50.0, 50.0, life_s={"generator_queue": 6.0, "generating": 2.0, "environment": 1.0})
    )
    check(
        verdict,
        "generator",
        "waits 6.0 s",
        "decoded in 2.0 s",
        "2.0 times as fast",
        "generator.slots to 32 (now 8)",
    )
    assert verdict.settings == {"generator.slots": 32.0}


def test_a_settled_buffer_that_may_not_be_taken_is_the_staleness_limit() -> None:
    for waits in ({}, {"urgent": 9.0, "episodes": 1.0}):
        verdict = judge(window(90.0, 10.0, buffer_groups=20.0, waits=waits))
        # L + W = 4.5 s: S_min = 4; five batches in flight by 1 / 0.9: 5.
        check(verdict, "staleness_limit", "20 groups are settled", "max_staleness 4", "to 5")


def test_packing_that_holds_up_the_learner_is_named() -> None:
    check(judge(window(90.0, 10.0, waits={"packing": 9.0})), "packing", "packed too slowly")


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("compiling", ("compiling", "3 programs")),
        ("publishing", ("publishing weights",)),
        ("packing", ("copying batches",)),
        ("other", ("outside every span",)),
    ],
)
def test_time_spent_otherwise_is_named(state, words) -> None:
    check(judge(window(88.0, 2.0, compiles=3, **{state: 10.0})), state, "10 %", *words)


def test_checkpoints_are_made_rarer_in_proportion_to_what_they_cost() -> None:
    verdict = judge(window(88.0, 2.0, checkpointing=10.0))
    check(verdict, "checkpointing", "10 %", "checkpoint_every to 50 (now 10)")  # 10 * 10 % / 2 %
    assert verdict.settings == {"learner.checkpoint_every": 50.0}


def test_failing_environments_come_before_starvation() -> None:
    verdict = judge(window(20.0, 80.0, failures={"timeout": 400, "environment": 80}))
    # 4 turns of 6.1 s need 25 s, which 30 s allows.
    check(verdict, "failures", "38 % of the episodes", "400 timeout, 80 environment", "see logs/")
    hurried = msgspec.structs.replace(CALCULATOR, episode_timeout_s=10.0)
    verdict = judge(window(failures={"timeout": 400}, environments=(hurried,)))
    check(
        verdict,
        "failures",
        "4 turns of environment `calculator` at p95 6.1 s need episode_timeout_s 25 (now 10)",
    )
    assert verdict.settings == {"environment.calculator.episode_timeout_s": 25.0}


def test_episodes_that_time_out_in_the_generators_queue_are_too_many() -> None:
    life = {"generator_queue": 6.0, "generating": 1.0, "environment": 2.0, "reset": 1.0, "admission": 9.0}
    verdict = judge(window(failures={"timeout": 640}, life_s=life, live_episodes=450.0))
    # 6 of 10 s are the queue: four tenths of 450 episodes make as many a second without it.
    check(verdict, "failures", "they wait 6.0 s for the generator", "in flight to 180 (now 450)")
    assert verdict.settings == {"actors.episodes_per_process": 180.0}


def test_groups_of_equal_rewards_teach_nothing() -> None:
    verdict = judge(window(zero_spread_groups=288, reward=0.05))
    check(verdict, "no_spread", "90 % of the groups", "batching.group_size to 14 (now 4)")
    check(
        judge(window(zero_spread_groups=288, reward=0.0)),
        "no_spread",
        "mean reward is 0.00",
        "solved now and then",
    )
    check(judge(window(zero_spread_groups=288, reward=None)), "no_spread", "unknown")
    pairs = window(zero_spread_groups=288, limits=limited(siblings="pairs"))
    check(judge(pairs), "no_spread", 'compare more episodes, with objective.siblings = "all"')


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("stale", "raise staleness.max_staleness to 20 (now 4)"),
        ("too_long", "raise batching.max_length"),
        ("unscored", "no reward"),
        ("truncated", "a limit ended"),
    ],
)
def test_masked_tokens_are_named_by_reason(reason, words) -> None:
    slow = msgspec.structs.replace(CALCULATOR, episode_p50_s=94.0, episode_p95_s=94.0, episode_timeout_s=None)
    verdict = judge(window(masked={reason: 9_000, "first": 1_000}, environments=(slow,)))
    # 20 000 sampled. L + W = 4.85 s: 94 / 4.85 = 19.4, and a half.
    check(verdict, "masked", "50 % of the sampled tokens", "45 % because", words)


def test_updates_that_are_not_finite_come_first() -> None:
    check(judge(window(nonfinite_updates=12, starved=80.0)), "nonfinite", "12 of 20 updates")


def test_padding_is_told_from_a_slow_step() -> None:
    padded = judge(window(goodput=0.5, fill=0.55))
    check(padded, "fill", "busy 97 %", "goodput is 50 %", "45 % of the slots are padding")
    assert padded.standing == "attention"
    # 0.97 / 0.5 * 0.97 = 1.88
    check(judge(window(goodput=0.5, fill=0.97)), "slow_step", "1.88 times as long as alone")


def test_a_run_without_a_batch_says_what_it_has() -> None:
    nothing = msgspec.structs.replace(
        window(), num_batches=0, shares=shares(computing=0.0), trajectories=5, live_episodes=12.0
    )
    check(judge(nothing), "no_steps", "5 episodes have ended and 12 run", "a batch takes 64")
    failing = msgspec.structs.replace(nothing, failures={"environment": 5})
    check(judge(failing), "failures", "100 % of the episodes", "5 environment")


def test_a_window_knows_the_mean_time_of_an_episode_from_what_it_has() -> None:
    life = {"environment": 4.0, "buffer": 9.0, "admission": 7.0, "reset": 0.5}
    assert window(life_s=life).episode_s == 4.5  # before its claim it is no episode
    assert window(live_episodes=60.0, accepted_per_s=20.0).episode_s == 3.0
    assert window().episode_s == 2.0
    assert window(environments=()).episode_s is None
    check(judge(window(50.0, 50.0, environments=())), "environment", "the environments", "max_staleness to 9")
