from __future__ import annotations

import asyncio
from typing import Any

import pytest

from forebay.clock import SystemClock
from forebay.envs.adapters.gymnasium_text import GymnasiumText
from forebay.envs.protocol import Action, Observation
from forebay.envs.registry import load_environment, load_task_sets, try_environment
from forebay.envs.settings import EnvironmentSettings
from forebay.errors import ConfigError
from forebay.trajectory import Task

gymnasium = pytest.importorskip("gymnasium")


def seeded(seed: int) -> Task:
    return Task(task_id="t", environment="e", payload={"seed": seed})


def texts(observation: Observation) -> list[str]:
    return [message.content for message in observation.messages]


def settings(**kwargs: Any) -> EnvironmentSettings:
    return EnvironmentSettings(entrypoint="gymnasium", kwargs=kwargs, num_tasks=50)


def test_a_hand_of_blackjack_is_that_of_gymnasium() -> None:
    reference = gymnasium.make("Blackjack-v1")
    hand, dealer, ace = reference.reset(seed=3)[0]
    mine = GymnasiumText(id="Blackjack-v1")
    rules, state = texts(mine.reset(seeded(3)))
    assert rules.endswith("say stick or hit.")
    assert state == f"hand: {hand}, dealer: {dealer}, ace: {ace}"
    outcome = mine.step(Action(text="stick"))
    _, reward, terminated, _, _ = reference.step(0)
    assert (outcome.reward, outcome.terminated, outcome.truncated) == (reward, terminated, False)
    assert outcome.metrics == {"moves": 1.0, "invalid_turns": 0.0, "time_limit": 0.0}


def test_the_same_seed_is_the_same_episode_and_another_one_is_not() -> None:
    def play(seed: int) -> list[str]:
        environment = GymnasiumText(id="CartPole-v1", describe=False)
        seen = texts(environment.reset(seeded(seed)))
        for move in ("left", "1", "RIGHT"):
            seen += texts(environment.step(Action(text=move)).observation)
        return seen

    assert play(7) == play(7) != play(8)


def test_a_lake_is_crossed_in_words() -> None:
    lake = GymnasiumText(id="FrozenLake-v1", make={"is_slippery": False}, instructions="")
    assert texts(lake.reset(seeded(0))) == ["row 0, column 0"]
    moves = ["down", "down", "right", "right", "down", "right"]
    outcomes = [lake.step(Action(text=move)) for move in moves]
    assert texts(outcomes[0].observation) == ["row 1, column 0"]
    assert [outcome.reward for outcome in outcomes] == [0.0] * 5 + [1.0]
    assert outcomes[-1].terminated


def test_a_taxi_is_described() -> None:
    taxi = GymnasiumText(id="Taxi-v4", instructions="")
    (state,) = texts(taxi.reset(seeded(0)))
    row, column, passenger, destination = taxi._environment.unwrapped.decode(taxi._environment.unwrapped.s)
    places = ("red", "green", "yellow", "blue", "in the taxi")
    assert state == (
        f"taxi at row {row}, column {column}; passenger {places[passenger]}; "
        f"destination {places[destination]}"
    )
    assert taxi.step(Action(text="dropoff")).reward == -10.0


@pytest.mark.parametrize("text", ["", "jump", "stick!", "2", "-1", "stick hit", "__import__('os')"])
def test_invalid_turns_are_counted_and_end_the_episode_at_the_limit(text: str) -> None:
    mine = GymnasiumText(id="Blackjack-v1", invalid_reward=-0.5, max_invalid=2)
    mine.reset(seeded(3))
    first, second = mine.step(Action(text=text)), mine.step(Action(text=text))
    assert texts(first.observation) == ["invalid: say stick or hit"]
    assert (first.reward, first.truncated) == (-0.5, False)
    assert (second.reward, second.truncated, second.terminated) == (-0.5, True, False)
    assert second.metrics == {"moves": 0.0, "invalid_turns": 2.0, "time_limit": 0.0}


def test_a_turn_that_was_cut_counts_only_if_it_may() -> None:
    strict, lenient = GymnasiumText(id="Blackjack-v1"), GymnasiumText(id="Blackjack-v1", whole_turns=False)
    for environment, invalid in ((strict, 1.0), (lenient, 0.0)):
        environment.reset(seeded(3))
        outcome = environment.step(Action(text="stick", finish="length"))
        assert outcome.metrics["invalid_turns"] == invalid


def test_the_time_limit_of_the_environment_is_told_from_its_end() -> None:
    lake = GymnasiumText(id="FrozenLake-v1", make={"is_slippery": False, "max_episode_steps": 2})
    lake.reset(seeded(0))
    assert not lake.step(Action(text="left")).truncated
    last = lake.step(Action(text="left"))
    assert (last.truncated, last.terminated, last.metrics["time_limit"]) == (True, False, 1.0)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"id": "Blakjack-v1"}, "no Gymnasium environment called 'Blakjack-v1'. Did you mean Blackjack-v1"),
        ({"id": "frozenlake-v1"}, "Did you mean FrozenLake-v1"),
        ({"id": "zzzzzzzz"}, "none with a name like that"),
        ({"id": "FrozenLake-v1", "make": {"is_slipery": False}}, "cannot make FrozenLake-v1: .*is_slipery"),
        ({"id": "Blackjack-v1", "actions": ["stick"]}, "names do not fit"),
        ({"id": "Blackjack-v1", "max_invalid": 0}, "max_invalid"),
        ({"id": "Blackjack-v1", "typo": 1}, "refuses its kwargs"),
        ({"id": "no_such_module:Env-v0"}, "cannot make no_such_module:Env-v0"),
    ],
)
def test_what_cannot_work_is_one_clear_line_before_any_episode(kwargs: dict[str, Any], message: str) -> None:
    async def main() -> None:
        await try_environment(load_environment(settings(**kwargs), SystemClock()))

    with pytest.raises(ConfigError, match=message) as caught:
        asyncio.run(main())
    assert "\n" not in str(caught.value)


def test_episodes_run_in_workers_of_their_own() -> None:
    async def main() -> None:
        mine = settings(id="Blackjack-v1")
        kind = load_environment(mine, SystemClock())
        await kind.open()
        task = load_task_sets(mine).train[0]
        first, second = kind.make(0), kind.make(1)
        assert await first.reset(task) == await second.reset(task)
        assert await first.step(Action(text="hit")) == await second.step(Action(text="hit"))
        await first.close()
        await second.close()
        await kind.close()

    asyncio.run(main())


def test_no_task_is_both_trained_and_held_out_and_other_seeds_make_other_tasks() -> None:
    def seeds(tasks_seed: int) -> tuple[set[int], set[int]]:
        mine = EnvironmentSettings(entrypoint="gymnasium", num_tasks=200, tasks_seed=tasks_seed)
        sets = load_task_sets(mine)
        return {t.payload["seed"] for t in sets.train}, {t.payload["seed"] for t in sets.held_out}

    train, held_out = seeds(0)
    assert len(train) + len(held_out) == 200
    assert not train & held_out
    assert not (train | held_out) & set.union(*seeds(1))
    with pytest.raises(ConfigError, match="seeds of tasks would repeat"):
        seeds(10**6)


def shown(noise: float, **kwargs: Any) -> list[tuple[str, ...]]:
    tasks = [seeded(seed) for seed in range(60)]
    played = GymnasiumText.demonstrate(tasks, noise=noise, seed=1, **kwargs)
    return [tuple(message.content for message in messages) for messages in played]


def test_tabular_games_are_demonstrated_by_their_best_policy() -> None:
    lake: dict[str, Any] = {"id": "FrozenLake-v1", "make": {"is_slippery": False}, "instructions": ""}
    best = shown(0.0, **lake)
    assert all(len(said) == 12 for said in best)  # six moves, each after a square
    assert all(said[-2:] in (("row 3, column 2", "right"), ("row 2, column 3", "down")) for said in best)
    assert len({len(said) for said in shown(0.6, **lake)}) > 3


def test_blackjack_is_demonstrated_by_the_dealers_rule() -> None:
    for said in shown(0.0, id="Blackjack-v1", instructions="", describe=False):
        for state, move in zip(said[::2], said[1::2], strict=True):
            assert move == ("hit" if int(state.split(",")[0]) < 17 else "stick")


def test_other_games_are_demonstrated_at_random_and_the_same_by_seed() -> None:
    first = shown(0.0, id="CartPole-v1", instructions="")
    assert first == shown(0.0, id="CartPole-v1", instructions="")
    moves = [said for game in first for said in game[1::2]]
    assert 0.3 < moves.count("left") / len(moves) < 0.7
