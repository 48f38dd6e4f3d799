"""What well-known Gymnasium games need said about them: a line of rules, names of actions, plainer states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

_TAXI_PLACES: Final = ("red", "green", "yellow", "blue", "in the taxi")
_SWEEPS: Final = 200
_DISCOUNT: Final = 0.98
_MOVES: Final = ("left", "down", "right", "up")


class Game(NamedTuple):
    """How a game is told.

    Args:
        instructions: The rules, for a system message.
        actions: Names of the actions, in the order of their numbers; empty if they have none.
        parts: Names of the parts of an observation that is a Tuple.
        describe: Writes an observation, given the environment; None writes its space.
    """

    instructions: str
    actions: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    describe: Callable[[Any, Any], str] | None = None


def known_game(environment_id: str) -> Game:
    """Return how a game is told; one that is not known is told by its spaces alone.

    Args:
        environment_id: As registered, for instance `Blackjack-v1`.
    """
    name = environment_id.rpartition("/")[2].rpartition("-v")[0]
    return _GAMES.get(name, Game(""))


def player(environment: Any, environment_id: str) -> Callable[[Any], int] | None:
    """Return who plays a game well: a function from observation to action; None if nobody is known.

    Args:
        environment: The game; one with a table of transitions is solved.
        environment_id: As registered.
    """
    if environment_id.rpartition("/")[2].startswith("Blackjack-"):
        return _play_like_the_dealer
    table = getattr(environment.unwrapped, "P", None)
    if not isinstance(table, dict):
        return None
    values = dict.fromkeys(table, 0.0)
    for _ in range(_SWEEPS):
        values = {state: max(_worths(moves, values).values()) for state, moves in table.items()}

    def play(observation: Any) -> int:
        worths = _worths(table[int(observation)], values)
        return max(worths, key=worths.__getitem__)

    return play


def _worths(moves: Any, values: dict[Any, float]) -> dict[int, float]:
    """Return what each action is worth: probability, next state, reward and end of each outcome are known."""
    return {
        int(action): sum(
            p * (reward + _DISCOUNT * values[after] * (not end)) for p, after, reward, end in outcomes
        )
        for action, outcomes in moves.items()
    }


def _play_like_the_dealer(observation: Any) -> int:
    return int(observation[0] < 17)


def _describe_lake(environment: Any, observation: Any) -> str:
    row, column = divmod(int(observation), int(environment.unwrapped.ncol))
    return f"row {row}, column {column}"


def _describe_cliff(environment: Any, observation: Any) -> str:
    row, column = divmod(int(observation), int(environment.unwrapped.shape[1]))
    return f"row {row}, column {column}"


def _describe_taxi(environment: Any, observation: Any) -> str:
    row, column, passenger, destination = environment.unwrapped.decode(int(observation))
    return (
        f"taxi at row {row}, column {column}; passenger {_TAXI_PLACES[passenger]}; "
        f"destination {_TAXI_PLACES[destination]}"
    )


_LAKE: Final = Game(
    "cross the frozen lake to the last row and column; holes end the game. say left, down, right or up.",
    actions=_MOVES,
    describe=_describe_lake,
)
_GAMES: Final = {
    "Blackjack": Game(
        "get closer to 21 than the dealer without going over. say stick or hit.",
        actions=("stick", "hit"),
        parts=("hand", "dealer", "ace"),
    ),
    "FrozenLake": _LAKE,
    "FrozenLake8x8": _LAKE,
    "CliffWalking": Game(
        "walk along the cliff from the last row's first column to its last; falling costs 100. "
        "say up, right, down or left.",
        actions=("up", "right", "down", "left"),
        describe=_describe_cliff,
    ),
    "Taxi": Game(
        "pick the passenger up and drop them off at the destination. red is row 0, column 0; green row 0, "
        "column 4; yellow row 4, column 0; blue row 4, column 3. say south, north, east, west, pickup or "
        "dropoff.",
        actions=("south", "north", "east", "west", "pickup", "dropoff"),
        describe=_describe_taxi,
    ),
    "CartPole": Game(
        "keep the pole upright. say left or right.",
        actions=("left", "right"),
    ),
    "MountainCar": Game(
        "swing the car up the hill on the right. say left, none or right.",
        actions=("left", "none", "right"),
    ),
}
