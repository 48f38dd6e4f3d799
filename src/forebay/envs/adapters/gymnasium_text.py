"""Any environment of Gymnasium whose spaces can be written, played in words."""

from __future__ import annotations

import importlib
import importlib.util
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, Final

from forebay.envs.adapters.extras import optional_module, seeded_tasks, unknown_name
from forebay.envs.adapters.gymnasium_games import Game, known_game, player
from forebay.envs.adapters.spaces import MAX_NUMBERS, NotInSpaceError, readable, space_text
from forebay.envs.protocol import Action, Message, Observation, Outcome, Task
from forebay.errors import ConfigError, EnvironmentFailure

_EXTRA: Final = "envs-gymnasium"
# Messages of a demonstration; a game without an end must not become an endless one.
_MAX_SHOWN: Final = 400


class GymnasiumText:
    """One episode of a Gymnasium environment.

    A turn is one action: the whole text of the turn, spaces around it aside, must be a name or number of an
    action (see `spaces` for other spaces). Anything else is an invalid turn: the environment does not move,
    the turn earns `invalid_reward`, and the answer says what an action looks like.

    Args:
        id: Registered name, for instance `Blackjack-v1`.
        make: Keyword arguments of `gymnasium.make`, for instance `{is_slippery = false}`.
        instructions: System message; None takes what is known of the game, empty says nothing.
        actions: Names of the actions of a Discrete space, in the order of their numbers; None takes the known
            ones.
        describe: Whether known games are described in words, or by their spaces alone.
        invalid_reward: Reward of an invalid turn.
        invalid_text: What an invalid turn is answered; None says what an action looks like.
        max_invalid: Invalid turns that end the episode, which is then truncated.
        whole_turns: Whether a turn that the token limit cut is invalid.
        short: Whether an observed member of a Discrete space of at most 36 is one character: 0 to 9, then a
            to z. Small models learn much faster from it.
        digits: Significant digits of observed numbers.
        max_numbers: Most numbers in an observation or action.
    """

    blocking: ClassVar[bool] = True

    def __init__(
        self,
        *,
        id: str,
        make: dict[str, Any] | None = None,
        instructions: str | None = None,
        actions: Sequence[str] | None = None,
        describe: bool = True,
        invalid_reward: float = 0.0,
        invalid_text: str | None = None,
        max_invalid: int = 3,
        whole_turns: bool = True,
        short: bool = False,
        digits: int = 4,
        max_numbers: int = MAX_NUMBERS,
    ) -> None:
        if max_invalid < 1:
            raise ConfigError("max_invalid ends an episode before it begins", got=max_invalid, limit=">= 1")
        game = known_game(id)
        self._environment = _made(id, make or {})
        self._game = game if describe else Game(game.instructions, game.actions)
        self._instructions = game.instructions if instructions is None else instructions
        space = self._environment.action_space
        discrete = hasattr(space, "n") and hasattr(space, "start")
        names = actions if actions is not None else game.actions if discrete else ()
        self._actions = readable(space_text(space, names=names, max_numbers=max_numbers))
        self._observations = space_text(
            self._environment.observation_space,
            names=self._game.parts,
            digits=digits,
            short=short,
            max_numbers=max_numbers,
        )
        self._invalid_reward = float(invalid_reward)
        self._invalid_text = invalid_text
        self._max_invalid = max_invalid
        self._whole_turns = whole_turns
        self._num_steps = self._num_invalid = 0

    @staticmethod
    def preload(*, id: str, **_: Any) -> None:
        """Import Gymnasium and the module of the environment, for all workers at once."""
        gymnasium = optional_module("gymnasium", _EXTRA)
        spec = gymnasium.registry.get(id)
        entry = getattr(spec, "entry_point", None)
        if isinstance(entry, str) and _found(entry.partition(":")[0]):
            importlib.import_module(entry.partition(":")[0])

    def reset(self, task: Task) -> Observation:
        """Start the episode that the task's seed means."""
        seed = int(task.payload.get("seed", task.seed))
        self._seen, _ = self._environment.reset(seed=seed)
        opening = (Message("system", self._instructions),) if self._instructions else ()
        return Observation((*opening, Message("user", self._describe(self._seen))))

    def step(self, action: Action) -> Outcome:
        """Move, unless the turn is invalid."""
        try:
            if self._whole_turns and action.finish != "stop":
                raise NotInSpaceError(self._actions.hint)
            move = self._actions.read(action.text)
        except NotInSpaceError as error:
            return self._refused(str(error))
        self._seen, reward, terminated, truncated, _ = self._environment.step(move)
        self._num_steps += 1
        return Outcome(
            observation=Observation((Message("user", self._describe(self._seen)),)),
            reward=float(reward),
            terminated=bool(terminated),
            truncated=bool(truncated) and not terminated,
            metrics=self._metrics(time_limit=bool(truncated) and not terminated),
        )

    def close(self) -> None:
        """Close the environment."""
        self._environment.close()

    @staticmethod
    def generate_tasks(num_tasks: int, seed: int) -> Iterator[dict[str, Any]]:
        """Yield tasks, each with the seed of an episode."""
        return seeded_tasks(num_tasks, seed)

    @staticmethod
    def demonstrate(
        tasks: Iterable[Task], *, noise: float, seed: int, **kwargs: Any
    ) -> Iterator[tuple[Message, ...]]:
        """Yield an episode per task, played by whoever knows the game best, for a supervised warm start.

        Tabular games are played by their best policy, Blackjack by the dealer's rule, others at random.

        Args:
            tasks: What is demonstrated.
            noise: Share of the moves that are random instead.
            seed: Same seed: same moves.
            **kwargs: As for the class.
        """
        shown = GymnasiumText(**kwargs)
        play = player(shown._environment, str(kwargs["id"]))
        space = shown._environment.action_space
        space.seed(seed)
        rng = random.Random(seed)
        for task in tasks:
            said = list(shown.reset(task).messages)
            over = False
            while not over:
                by_chance = play is None or rng.random() < noise
                move = space.sample() if play is None or by_chance else play(shown._seen)
                said.append(Message("assistant", shown._actions.write(move)))
                outcome = shown.step(Action(text=said[-1].content))
                over = outcome.terminated or outcome.truncated or len(said) > _MAX_SHOWN
                said += [] if over else outcome.observation.messages
            yield tuple(said)
        shown.close()

    def _describe(self, observation: Any) -> str:
        if self._game.describe is not None:
            return self._game.describe(self._environment, observation)
        return self._observations.write(observation)

    def _refused(self, hint: str) -> Outcome:
        self._num_invalid += 1
        text = f"invalid: say {hint}" if self._invalid_text is None else self._invalid_text
        return Outcome(
            observation=Observation((Message("user", text),)),
            reward=self._invalid_reward,
            truncated=self._num_invalid >= self._max_invalid,
            metrics=self._metrics(time_limit=False),
        )

    def _metrics(self, *, time_limit: bool) -> dict[str, float]:
        return {
            "moves": float(self._num_steps),
            "invalid_turns": float(self._num_invalid),
            "time_limit": float(time_limit),
        }


def _made(environment_id: str, options: dict[str, Any]) -> Any:
    gymnasium = optional_module("gymnasium", _EXTRA)
    if ":" not in environment_id and environment_id not in gymnasium.registry:
        raise unknown_name("a Gymnasium environment", environment_id, gymnasium.registry)
    try:
        return gymnasium.make(environment_id, disable_env_checker=True, **options)
    except (gymnasium.error.Error, ImportError, TypeError, ValueError) as error:
        raise ConfigError(f"Gymnasium cannot make {environment_id}: {error}") from error
    except (AssertionError, AttributeError, KeyError) as error:
        raise EnvironmentFailure(f"Gymnasium failed to make {environment_id}: {error!r}") from error


def _found(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False
