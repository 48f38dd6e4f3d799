from __future__ import annotations

import pytest

from forebay.telemetry.dominance import dominant_of, life_sentence
from forebay.telemetry.life_log import LifeTable
from forebay.telemetry.life_table import Weighed, tabulate
from forebay.telemetry.residence import STAGES, Stage
from forebay.telemetry.verdict import judge
from tests.unit.telemetry.lives import lived
from tests.unit.telemetry.test_verdict import limited, window


def table(*lives: Weighed) -> LifeTable:
    return LifeTable(environments=tabulate(lives), flows={}, wall_s=100.0, num_batches=1)


def of(total_s: float = 100.0, **seconds: float) -> LifeTable:
    return table(Weighed("search", lived(total_s, **seconds), 1))


def test_reset_and_steps_of_one_environment_are_one_place() -> None:
    both = table(
        Weighed("search", lived(100.0, reset=22.0, environment=40.0, buffer=38.0), 3),
        Weighed("code", lived(50.0, environment=40.0, buffer=10.0), 2),
    )
    found = dominant_of(both)
    assert (found.place, found.environment) == ("environment", "search")
    assert found.share == pytest.approx(3 * 62 / 400)


def test_the_sentence_names_place_share_and_length() -> None:
    sentence = life_sentence(of(reset=2.0, environment=60.0, buffer=30.0), window())
    assert sentence == (
        "62 % of a token's life of 100 s is spent in environment `search`: the learner does not wait for it: "
        "other episodes run meanwhile"
    )


@pytest.mark.parametrize(("stage", "waits", "words"), [
    ("environment", {"episodes": 9.0}, "let more episodes run at once"),
    ("admission", {"actors": 9.0}, "raise actors.episodes_per_process"),
    ("admission", {"episodes": 9.0}, "they take long"),
    ("generator_queue", {"episodes": 9.0}, "raise generator.slots"),
    ("buffer", {"urgent": 9.0}, "raise staleness.max_staleness"),
    ("buffer", {"episodes": 9.0}, "the rest of their batch"),
    ("group", {"episodes": 9.0}, "objective.siblings"),
    ("packing", {"packing": 9.0}, "batching.prefetch"),
])  # fmt: skip
def test_advice_to_a_starved_learner_follows_what_it_waited_for(stage, waits, words) -> None:
    assert words in life_sentence(of(**{stage: 70.0}), window(computing=50.0, starved=50.0, waits=waits))


@pytest.mark.parametrize(("stage", "words"), [
    ("buffer", "staleness.credit"), ("handover", "batching.prefetch"), ("training", "a faster step"),
    ("admission", "not sampled yet"), ("generating", "does not wait"), ("retries", "see the failures"),
])  # fmt: skip
def test_a_fed_learner_is_told_what_would_make_tokens_fresher(stage, words) -> None:
    assert words in life_sentence(of(**{stage: 70.0}), window())


def test_actors_that_find_their_number_are_given_room_and_not_a_number() -> None:
    limits = limited(episodes_setting="actors.max_episodes_per_process")
    starved = window(50.0, 50.0, waits={"actors": 9.0}, limits=limits)
    assert "raise actors.max_episodes_per_process or actors.processes" in life_sentence(
        of(admission=70.0), starved
    )


@pytest.mark.parametrize("starved", [0.0, 50.0])
@pytest.mark.parametrize("stage", STAGES)
def test_there_is_something_to_say_of_every_stage(stage: Stage, starved: float) -> None:
    sentence = life_sentence(of(**{stage: 100.0}), window(100.0 - starved, starved))
    where, _, advice = sentence.partition(": ")
    assert where.startswith("100 % of a token's life of 100 s is spent ")
    assert len(advice) > 10 and "{" not in advice


def test_every_verdict_carries_the_sentence() -> None:
    lives = of(environment=70.0)
    assert judge(window(lives=lives)).life.startswith("70 % of a token's life")
    assert judge(window(50.0, 50.0, lives=lives, waits={"episodes": 9.0})).life.startswith("70 %")
    assert judge(window()).life == ""


def test_nothing_trained_has_nothing_to_say() -> None:
    nothing = table(Weighed("search", lived(10.0, environment=9.0), 0))
    assert dominant_of(nothing) is None
    assert life_sentence(nothing, window()) == life_sentence(None, window()) == ""
