"""Lanes: the places of a process by environment, each lane with a controller of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from forebay.actors.controller import Controller, Decision, Demand, Observation
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


class Lanes:
    """The places of one process.

    What is counted here between two looks is what the controllers decide by.

    Args:
        shares: The environments and their weights.
        batch_episodes: Episodes of one batch, over all environments.
        first: Episodes at once in the beginning, over all environments.
        most: Most episodes at once, over all environments; beyond its share of them an environment gets
            what the others leave free.
        processes: Actor processes that do the same.

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
                processes=processes,
            )
            for name, share in self._shares.items()
        }
        self._waits: dict[str, bool] = dict.fromkeys(self._shares, True)
        self._turns: dict[str, list[Turn]] = {name: [] for name in self._shares}
        self._episodes_s: dict[str, list[float]] = {name: [] for name in self._shares}
        self._failures: Counter[str] = Counter()
        self.decisions: Counter[str] = Counter()

    def wanted(self, now_s: float, live: Mapping[str, int]) -> Iterator[Wanted]:
        """Yield how many episodes of each environment may begin now, if any.

        Args:
            now_s: Monotonic clock.
            live: Episodes that hold a place, by environment.
        """
        allowed = {name: one.allowed(now_s) for name, one in self.controllers.items()}
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
        self._waits[environment] = got >= asked

    def turn(self, environment: str, turn: Turn) -> None:
        """Note a turn that has ended."""
        if environment in self._turns:
            self._turns[environment].append(turn)

    def failed(self, environment: str) -> None:
        """Note a reset or step that has failed."""
        self._failures[environment] += 1

    def ended(self, environment: str, duration_s: float) -> None:
        """Note an episode that has ended with a result."""
        if environment in self._episodes_s:
            self._episodes_s[environment].append(duration_s)

    def look(
        self, now_s: float, live: Mapping[str, int], demand: Mapping[str, Demand]
    ) -> list[tuple[str, Decision]]:
        """Let every controller decide; return the decisions by environment.

        Args:
            now_s: Monotonic clock.
            live: Episodes that hold a place, by environment.
            demand: What the store shows, by environment; empty if nobody looked.
        """
        decisions = []
        for name, controller in self.controllers.items():
            seen = Observation(
                now_s=now_s,
                live=live.get(name, 0),
                work_waits=self._waits[name],
                turns=tuple(self._turns[name]),
                failures=self._failures.pop(name, 0),
                episodes_s=tuple(self._episodes_s[name]),
                demand=demand.get(name),
            )
            self._turns[name].clear()
            self._episodes_s[name].clear()
            decision = controller.look(seen)
            if decision is not None:
                self.decisions[f"{name}.{decision.kind}"] += 1
                decisions.append((name, decision))
        return decisions
