from __future__ import annotations

import asyncio
from typing import Any

import pytest

from forebay.clock import SystemClock
from forebay.envs.adapters.textarena_game import TextArenaGame
from forebay.envs.protocol import Action, Observation
from forebay.envs.registry import load_environment, load_task_sets, try_environment
from forebay.envs.settings import EnvironmentSettings
from forebay.errors import ConfigError
from forebay.trajectory import Task

pytest.importorskip("textarena")

# Single-player games that need no network and no word list.
GAMES = [
    "2048-v0", "Bandit-v0", "Blackjack-v0", "Countdown-v0", "Crosswords-v0", "Cryptarithm-v0",
    "FifteenPuzzle-v0", "FrozenLake-v0", "GuessTheNumber-v0", "LightsOut-v0", "LogicPuzzle-v0",
    "Mastermind-v0", "Minesweeper-v0", "PegJump-v0", "RushHour-v0", "Secretary-v0", "Set-v0",
    "Slitherlink-v0", "Sokoban-v0", "Sudoku-v0", "ThreeCardMonte-v0", "TowerOfHanoi-v0",
]  # fmt: skip


def seeded(seed: int) -> Task:
    return Task(task_id="t", environment="e", payload={"seed": seed})


def texts(observation: Observation) -> list[str]:
    return [message.content for message in observation.messages]


def guessing(**kwargs: Any) -> TextArenaGame:
    return TextArenaGame(
        id="GuessTheNumber-v0", make={"max_number": 9, "max_turns": 4}, instructions="guess 1 to 9", **kwargs
    )


def secret(game: TextArenaGame) -> int:
    return int(game._game.game_number)


@pytest.mark.parametrize("name", GAMES)
def test_games_start_the_same_by_seed_and_end_by_invalid_turns(name: str) -> None:
    def play(seed: int) -> tuple[list[str], float, bool]:
        game = TextArenaGame(id=name)
        seen = texts(game.reset(seeded(seed)))
        assert any(seen)
        for _ in range(200):
            outcome = game.step(Action(text="no such move"))
            seen += texts(outcome.observation)
            if outcome.terminated:
                assert outcome.reward is not None
                return seen, outcome.reward, bool(outcome.metrics["invalid_turns"])
        raise AssertionError("the game never ends")

    first = play(5)
    assert first == play(5)
    assert first[1] <= 1.0


def test_a_game_is_won_by_bare_numbers_and_only_news_is_said() -> None:
    game = guessing(lower_case=True)
    observation = game.reset(seeded(3))
    assert [(m.role, m.content) for m in observation.messages] == [("system", "guess 1 to 9")]
    wrong = 1 if secret(game) > 1 else 9
    hint = game.step(Action(text=f" {wrong} "))
    assert texts(hint.observation) == [f"the target number is {'higher' if wrong == 1 else 'lower'}."]
    assert (hint.reward, hint.terminated) == (0.0, False)
    won = game.step(Action(text=f"[{secret(game)}]"))
    assert (won.reward, won.terminated) == (1.0, True)
    assert won.metrics == {"turns": 2.0, "invalid_turns": 0.0}


def test_invalid_turns_are_counted_and_may_cost_something() -> None:
    game = guessing(invalid_reward=-1.0)
    game.reset(seeded(3))
    first, second = game.step(Action(text="what?")), game.step(Action(text="99"))
    assert (first.terminated, first.metrics["invalid_turns"]) == (False, 1.0)
    assert (second.reward, second.terminated, second.metrics["invalid_turns"]) == (-1.0, True, 2.0)


def test_a_reward_that_is_no_number_counts_as_none_earned() -> None:
    game = TextArenaGame(id="Countdown-v0")
    game.reset(seeded(3))
    game.step(Action(text="what?"))
    assert game.step(Action(text="what?")).reward == 0.0


def test_a_turn_that_was_cut_is_invalid_unless_it_may_be() -> None:
    for whole_turns, invalid in ((True, 1.0), (False, 0.0)):
        game = guessing(whole_turns=whole_turns)
        game.reset(seeded(3))
        assert game.step(Action(text="5", finish="length")).metrics["invalid_turns"] == invalid


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"id": "GuesTheNumber-v0"}, "no TextArena game called .* Did you mean GuessTheNumber-v0"),
        ({"id": "Wordle-v0"}, "Wordle-v0 needs a word list"),
        ({"id": "TwentyQuestions-v0"}, "cannot play TwentyQuestions-v0 alone: OpenRouter API key not found"),
        ({"id": "TicTacToe-v0"}, "cannot play TicTacToe-v0 alone"),
        (
            {"id": "Mastermind-v0", "make": {"code_lenght": 3}},
            "cannot play Mastermind-v0 alone: .*code_lenght",
        ),
    ],
)
def test_what_cannot_be_played_is_one_clear_line(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        TextArenaGame(**kwargs)
    assert "\n" not in str(caught.value)


def test_games_run_in_workers() -> None:
    async def main() -> None:
        mine = EnvironmentSettings(
            entrypoint="textarena", kwargs={"id": "TowerOfHanoi-v0"}, num_tasks=20, name="hanoi"
        )
        kind = load_environment(mine, SystemClock())
        await kind.open()
        environment = kind.make(0)
        await environment.reset(load_task_sets(mine).train[0])
        outcome = await environment.step(Action(text="[A C]"))
        assert outcome.metrics == {"turns": 1.0, "invalid_turns": 0.0}
        await environment.close()
        await kind.close()

    asyncio.run(main())


def test_typos_are_refused_before_an_episode() -> None:
    async def main() -> None:
        typo = EnvironmentSettings(entrypoint="textarena", kwargs={"id": "Mastermnd-v0"})
        await try_environment(load_environment(typo, SystemClock()))

    with pytest.raises(ConfigError, match="Did you mean Mastermind-v0"):
        asyncio.run(main())


def test_guessing_is_demonstrated_by_halving() -> None:
    kwargs: dict[str, Any] = {
        "id": "GuessTheNumber-v0",
        "make": {"max_number": 7, "max_turns": 3},
        "instructions": "?",
    }
    tasks = [seeded(seed) for seed in range(40)]

    def wins(noise: float) -> int:
        games = TextArenaGame.demonstrate(tasks, noise=noise, seed=1, **kwargs)
        count = 0
        for task, messages in zip(tasks, games, strict=True):
            game = TextArenaGame(**kwargs)
            game.reset(task)
            last = [game.step(Action(text=m.content)) for m in messages if m.role == "assistant"][-1]
            count += last.reward == 1.0
        return count

    assert wins(0.0) == 40
    assert wins(0.8) < 35
    with pytest.raises(ConfigError, match="nobody here plays Sudoku-v0"):
        list(TextArenaGame.demonstrate(tasks, noise=0.0, seed=1, id="Sudoku-v0"))
