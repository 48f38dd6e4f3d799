"""Who plays a game of TextArena, for a supervised warm start."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Protocol

from forebay.envs.protocol import Message
from forebay.errors import ConfigError


class Player(Protocol):
    """Plays one game after another."""

    def start(self) -> None:
        """Forget the game before."""
        ...

    def say(self, news: Sequence[Message]) -> str:
        """Return the next turn.

        Args:
            news: What the game said since the last one.
        """
        ...


def player(game_id: str, game: Any, noise: float, rng: random.Random) -> Player:
    """Return a player of a game.

    Args:
        game_id: As registered.
        game: The game.
        noise: Share of its turns that it chooses at random.
        rng: Where it takes them from.

    Raises:
        ConfigError: Nobody knows how to play it.
    """
    if game_id.startswith("GuessTheNumber-"):
        return _Halving(int(game.min_number), int(game.max_number), noise, rng)
    raise ConfigError(
        f"nobody here plays {game_id}",
        limit="GuessTheNumber",
        remedy="Set supervised.demonstrations to a JSONL file of conversations.",
    )


class _Halving:
    """Guesses the middle of what is left of the range; never the same number twice."""

    def __init__(self, low: int, high: int, noise: float, rng: random.Random) -> None:
        self._range = low, high
        self._noise = noise
        self._rng = rng
        self.start()

    def start(self) -> None:
        low, high = self._range
        self._possible = self._untried = list(range(low, high + 1))
        self._guess = low

    def say(self, news: Sequence[Message]) -> str:
        heard = " ".join(message.content.lower() for message in news)
        if "higher" in heard:
            self._possible = [number for number in self._possible if number > self._guess]
        elif "lower" in heard:
            self._possible = [number for number in self._possible if number < self._guess]
        by_chance = self._rng.random() < self._noise or not self._possible
        self._guess = (
            self._rng.choice(self._untried) if by_chance else self._possible[(len(self._possible) - 1) // 2]
        )
        self._untried = [number for number in self._untried if number != self._guess]
        self._possible = [number for number in self._possible if number != self._guess]
        return str(self._guess)
