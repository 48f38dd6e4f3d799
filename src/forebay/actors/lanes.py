"""Lanes: the places of a process by environment, each lane with a controller of its own.

What the controllers decide holds for all processes of the run together: each runs its part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from forebay.actors.board import Sight
from forebay.actors.controller import Controller, Decision, Observation
from forebay.actors.levels import Turn
from forebay.staleness import Shares


class Wanted(NamedTuple):
    """Places to fill.

    Attributes:
        environment: Whose.
        free: How many.
    """

    environment: str
    free: int


class Part(NamedTuple):
    """Which part of the episodes a process runs.

    Attributes:
        place: Its place among the processes, from 0.
        processes: How many there are.

    Example:
        >>> [Part(place, 4).of(10) for place in range(4)]
        [3, 3, 2, 2]
    """

    place: int
    processes: int

    def of(self, total: int) -> int:
        """Return how many of all episodes it runs."""
        return total // self.processes + (self.place < total % self.processes)


class _Brake(NamedTuple):
    """Which sight tells of failures, and the most episodes until it is taken in; None before it is known."""

    sight: int
    most: int | None


class Lanes:
    """The places of one process.

    What is counted here between two looks is what the controllers decide by.

    Args:
        shares: The environments and their weights.
        batch_episodes: Episodes of one batch, over all environments.
        first: Episodes at once in the beginning, over all environments and processes.
        most: Most episodes at once in this process, over all environments; beyond its share of them an
            environment gets what the others leave free.
        processes: Processes that do the same, before they have met.

    Attributes:
        part: This process's part.
        plan: Episodes of all processes by environment, where another process decides; else None.
        waits: Whether the store had as much work as was asked for, by environment.

    Example:
        >>> lanes = Lanes(Shares(("fast", "slow"), (3.0, 1.0)), batch_episodes=128, first=16, most=640)
        >>> list(lanes.wanted(0.0, {"fast": 10}))
        [Wanted(environment='fast', free=2), Wanted(environment='slow', free=4)]
    """

    def __init__(
        self, shares: Shares, *, batch_episodes: int, first: int, most: int, processes: int = 1
    ) -> None:
        total = sum(shares.weights)
        self._most = most
        self._shares = {
            name: weight / total for name, weight in zip(shares.names, shares.weights, strict=True)
        }
        self.controllers = {
            name: Controller(
                name,
                batch_episodes=share * batch_episodes,
                first=max(1, round(share * first)),
                most=most,
            )
            for name, share in self._shares.items()
        }
        self.part = Part(0, processes)
        self.plan: dict[str, int] | None = None
        self.waits: dict[str, bool] = dict.fromkeys(self._shares, True)
        self._turns: dict[str, list[Turn]] = {name: [] for name in self._shares}
        self._episodes_s: dict[str, list[float]] = {name: [] for name in self._shares}
        self._failures: Counter[str] = Counter()
        self._brakes: dict[str, _Brake] = {}
        self._next_sight = 1
        self.decisions: Counter[str] = Counter()

    def totals(self, now_s: float) -> dict[str, int]:
        """Return how many episodes of each environment all processes together may run now."""
        if self.plan is not None:
            return dict(self.plan)
        return {name: one.allowed(now_s) for name, one in self.controllers.items()}

    def allowed(self, now_s: float) -> dict[str, int]:
        """Return how many episodes of each environment this process may run now."""
        return {name: self.part.of(total) for name, total in self.totals(now_s).items()}

    def take_over(self, now_s: float) -> None:
        """Decide from now on, beginning with what another process has decided."""
        plan, self.plan = self.plan, None
        for name, total in (plan or {}).items():
            if name in self.controllers:
                self.controllers[name].resume(total, now_s)

    def wanted(self, now_s: float, live: Mapping[str, int]) -> Iterator[Wanted]:
        """Yield how many episodes of each environment may begin now, if any.

        Args:
            now_s: Monotonic clock.
            live: Episodes that hold a place, by environment.
        """
        allowed = self.allowed(now_s)
        for name, brake in self._brakes.items():
            most = max(1, live.get(name, 0)) if brake.most is None else brake.most
            self._brakes[name] = brake._replace(most=most)
            allowed[name] = min(allowed[name], most)
        room = self._most - sum(live.values())
        for name, limit in allowed.items():
            kept = sum(
                max(0, min(other_limit, int(self._most * self._shares[other])) - live.get(other, 0))
                for other, other_limit in allowed.items()
                if other != name
            )
            own = int(self._most * self._shares[name]) - live.get(name, 0)
            free = min(limit - live.get(name, 0), room, max(own, room - kept))
            if free > 0:
                room -= free
                yield Wanted(name, free)

    def claimed(self, environment: str, asked: int, got: int) -> None:
        """Note what a claim brought."""
        self.waits[environment] = got >= asked

    def turn(self, environment: str, turn: Turn) -> None:
        """Note a turn that has ended."""
        if environment in self._turns:
            self._turns[environment].append(turn)

    def failed(self, environment: str) -> None:
        """Note a reset or step that has failed."""
        self._failures[environment] += 1
        if self.part.processes > 1 and environment in self._shares:
            self._brakes.setdefault(environment, _Brake(self._next_sight, None))

    def release(self, sight: int) -> None:
        """Let environments grow again whose failures were taken in by the one that decides.

        Until then this process runs no more than it did when they failed.

        Args:
            sight: Number of the newest sight taken in.
        """
        self._brakes = {name: brake for name, brake in self._brakes.items() if brake.sight > sight}

    def ended(self, environment: str, duration_s: float) -> None:
        """Note an episode that has ended with a result."""
        if environment in self._episodes_s:
            self._episodes_s[environment].append(duration_s)

    def drain(self, number: int) -> Sight:
        """Return what was counted since the last look, and count anew."""
        self._next_sight = number + 1
        sight = Sight(
            number,
            {name: tuple(turns) for name, turns in self._turns.items() if turns},
            dict(self._failures),
            {name: tuple(seconds) for name, seconds in self._episodes_s.items() if seconds},
        )
        self._failures.clear()
        for name in self._shares:
            self._turns[name].clear()
            self._episodes_s[name].clear()
        return sight

    def look(self, seen: Mapping[str, Observation], *, lag_s: float = 0.0) -> list[tuple[str, Decision]]:
        """Let every controller decide for all processes; return the decisions by environment.

        Args:
            seen: What happened in all of them, by environment.
            lag_s: Until the other processes know what is decided.
        """
        decisions = []
        for name, controller in self.controllers.items():
            controller.most = self._most * self.part.processes
            decision = controller.look(seen[name], lag_s=lag_s)
            if decision is not None:
                self.decisions[f"{name}.{decision.kind}"] += 1
                decisions.append((name, decision))
        return decisions
