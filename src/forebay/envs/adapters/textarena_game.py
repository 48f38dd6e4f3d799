"""The games of TextArena that one player plays without a network."""

from __future__ import annotations

import numbers
import random
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, Final

from forebay.envs.adapters.extras import optional_module, seeded_tasks, unknown_name
from forebay.envs.adapters.textarena_players import player
from forebay.envs.protocol import Action, Message, Observation, Outcome, Task
from forebay.errors import ConfigError, EnvironmentFailure

_EXTRA: Final = "envs-textarena"
# The registered variant that says what is new, without wrappers that repeat the whole game at every turn.
_RAW: Final = "-raw"


class TextArenaGame:
    """One episode of a TextArena game.

    The game's messages are passed on as they come; the echo of the player's own words is left out. The game
    itself reads the action out of square brackets; a turn without any is put into them. It also judges what
    is invalid: most games forgive one invalid turn in a row and end at the next.

    The reward comes when the game ends, 1 for a win; many games give a share for coming near.

    Args:
        id: Registered name, for instance `GuessTheNumber-v0`.
        make: Arguments of the game, for instance `{max_number = 9}`.
        instructions: Replaces the game's own rules; None keeps them, empty says nothing.
        brackets: Whether a turn without square brackets is put into them.
        invalid_reward: Reward of a game that an invalid turn ended; None leaves it to the game.
        whole_turns: Whether a turn that the token limit cut is passed on empty, which is invalid.
        lower_case: Whether messages are put into lower case, for a tokenizer that has no other.
    """

    blocking: ClassVar[bool] = True

    def __init__(
        self,
        *,
        id: str,
        make: dict[str, Any] | None = None,
        instructions: str | None = None,
        brackets: bool = True,
        invalid_reward: float | None = None,
        whole_turns: bool = True,
        lower_case: bool = False,
    ) -> None:
        self._id = id
        self._game = _made(id, make or {})
        self._instructions = instructions
        self._brackets = brackets
        self._invalid_reward = invalid_reward
        self._whole_turns = whole_turns
        self._lower_case = lower_case
        self._num_turns = self._num_invalid = 0

    @staticmethod
    def preload(*, id: str, make: dict[str, Any] | None = None, **_: Any) -> None:
        """Import TextArena and the module of the game, for all workers at once."""
        _made(id, make or {})

    def reset(self, task: Task) -> Observation:
        """Start the game that the task's seed means."""
        seed = int(task.payload.get("seed", task.seed))
        try:
            self._game.reset(num_players=1, seed=seed)
        except AssertionError as error:
            raise EnvironmentFailure(f"{self._id} cannot be played by one player: {error}") from error
        return self._news()

    def step(self, action: Action) -> Outcome:
        """Let the game answer."""
        text = action.text if action.finish == "stop" or not self._whole_turns else ""
        if self._brackets and "[" not in text and "]" not in text:
            text = f"[{text.strip()}]"
        turns_before = self._turn_count()
        done, _ = self._game.step(text)
        self._num_turns += 1
        ended_by_invalid = bool(done) and bool(self._game.state.game_info[0].get("invalid_move"))
        self._num_invalid += ended_by_invalid or (not done and self._turn_count() == turns_before)
        return Outcome(
            observation=self._news(),
            # A game that max_turns cuts has to count as nothing won, not as nothing known.
            reward=self._reward(ended_by_invalid) if done else 0.0,
            terminated=bool(done),
            metrics={"turns": float(self._num_turns), "invalid_turns": float(self._num_invalid)},
        )

    def close(self) -> None:
        """Hold nothing."""

    @staticmethod
    def generate_tasks(num_tasks: int, seed: int) -> Iterator[dict[str, Any]]:
        """Yield tasks, each with the seed of a game."""
        return seeded_tasks(num_tasks, seed)

    @staticmethod
    def demonstrate(
        tasks: Iterable[Task], *, noise: float, seed: int, **kwargs: Any
    ) -> Iterator[tuple[Message, ...]]:
        """Yield a game per task, for a supervised warm start.

        Args:
            tasks: What is demonstrated.
            noise: Share of the turns that are chosen at random.
            seed: Same seed: same turns.
            **kwargs: As for the class.

        Raises:
            ConfigError: Nobody here plays that game.
        """
        rng = random.Random(seed)
        for task in tasks:
            shown = TextArenaGame(**kwargs)
            playing = player(shown._id, shown._game, noise, rng)
            news = shown.reset(task).messages
            said = list(news)
            over = False
            while not over:
                said.append(Message("assistant", playing.say(news)))
                outcome = shown.step(Action(text=said[-1].content))
                news, over = outcome.observation.messages, outcome.terminated
                said += () if over else news
            yield tuple(said)

    def _news(self) -> Observation:
        """Return what the game said since it was asked last."""
        kinds = optional_module("textarena", _EXTRA).ObservationType
        _, said = self._game.get_observation()
        messages = []
        for _, text, kind in said:
            if kind == kinds.PROMPT and self._instructions is not None:
                text = self._instructions
            if kind == kinds.PLAYER_ACTION or not text:
                continue
            shown = text.lower() if self._lower_case else text
            replaced = kind == kinds.PROMPT and self._instructions is not None
            messages.append(Message("system" if replaced else "user", shown))
        return Observation(_joined(messages))

    def _turn_count(self) -> int:
        return int(self._game.state.game_info[0]["turn_count"])

    def _reward(self, ended_by_invalid: bool) -> float:
        rewards = self._game.state.rewards or {}
        reward = rewards.get(0)
        if ended_by_invalid and self._invalid_reward is not None:
            return self._invalid_reward
        # Some games mix up reward and reason when a turn is invalid.
        return float(reward) if isinstance(reward, numbers.Real) else 0.0


def _made(game_id: str, options: dict[str, Any]) -> Any:
    textarena = optional_module("textarena", _EXTRA)
    known = {name.removesuffix(_RAW) for name in textarena.envs.registration.ENV_REGISTRY if _RAW in name}
    if game_id not in known:
        raise unknown_name("a TextArena game", game_id, known)
    try:
        game = textarena.make(game_id + _RAW, **options)
        # Rules are needed to know whether one player is enough.
        game.reset(num_players=1, seed=0)
    except LookupError as error:
        raise ConfigError(
            f"{game_id} needs a word list that is not installed: {str(error).split()[1:3]}",
            remedy="Play another game, or download the data of nltk by hand.",
        ) from error
    except (AssertionError, ImportError, SyntaxError, TypeError, ValueError) as error:
        raise ConfigError(f"TextArena cannot play {game_id} alone: {error}") from error
    return game


def _joined(messages: list[Message]) -> tuple[Message, ...]:
    """Join neighbors of the same role: a game may say several things at once."""
    joined: list[Message] = []
    for message in messages:
        if joined and joined[-1].role == message.role:
            message = Message(message.role, f"{joined.pop().content}\n{message.content}")
        joined.append(message)
    return tuple(joined)
