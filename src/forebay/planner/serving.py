"""Simulated generators: who has a slot, who waits for one, and which weights sample what."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable
from typing import Literal

from forebay.planner.buffer import Slot
from forebay.planner.events import Events, Station
from forebay.planner.model_calls import CallTimes
from forebay.planner.scenario import Scenario

# How a call comes to its slot: it found one free, had waited for one, or for new weights.
Start = Literal["finds", "queued", "held"]


class Episode:
    """One episode under way.

    Attributes:
        began_s: When it got its place.
        asked_s: When it began to wait for what it is doing now.
        done: Turns that are done; -1 before the reset.
        called_at: The version that its model call began with.
        starts: How that call came to its slot.
        tokens: Tokens of its trajectory so far, prompts included.
        scored: Whether it has a reward.
    """

    __slots__ = (
        "asked_s",
        "began_s",
        "called_at",
        "deadline_s",
        "done",
        "environment",
        "num_turns",
        "scored",
        "slot",
        "starts",
        "tokens",
        "turns",
    )

    def __init__(self, slot: Slot, environment: str, num_turns: int, now_s: float, deadline_s: float) -> None:
        self.slot, self.environment, self.num_turns = slot, environment, num_turns
        self.began_s = self.asked_s = now_s
        self.deadline_s = deadline_s
        self.turns: list[tuple[int, float]] = []
        self.scored = True
        self.done = -1
        self.called_at = 0
        self.starts: Start = "finds"
        self.tokens = 0.0


class Generators:
    """All generators, with one queue.

    Consumes: model calls. Waits for: a slot, new weights. Unblocked by: the end of a call, `load_weights`,
    the deadline of an episode whose call has a slot. Produces: answers.

    Args:
        scenario: Settings.
        events: Virtual time.
        calls: Times of model calls.
        slots: Requests at once in each generator.
        phases_s: Where the seconds are added that episodes spend here.
        on_answer: Called with an episode whose call is over.
        on_timeout: Called with one whose deadline has passed.

    Attributes:
        version: Of the weights that sample.
    """

    def __init__(
        self,
        scenario: Scenario,
        events: Events,
        calls: CallTimes,
        slots: int,
        phases_s: defaultdict[str, float],
        on_answer: Callable[[Episode], None],
        on_timeout: Callable[[Episode], None],
    ) -> None:
        self._events, self._calls, self._slots = events, calls, slots
        self._phases_s, self._on_answer, self._on_timeout = phases_s, on_answer, on_timeout
        self._follow_ups_first = scenario.follow_ups_first
        self._number = scenario.generators
        self._station: Station[Episode] = Station(self._call, scenario.generators * slots)
        self._held: list[Episode] = []
        self._switches: list[tuple[float, int]] = [(0.0, 0)]
        self.version = 0
        if scenario.generators_lost:
            events.after(scenario.lost_after_s, self._resize, scenario.generators - scenario.generators_lost)
            events.after(scenario.lost_after_s + scenario.lost_for_s, self._resize, scenario.generators)

    def load_weights(self, version: int) -> None:
        """Sample with new weights from now on."""
        if version <= self.version:
            return
        self.version = version
        self._switches.append((self._events.now_s, version))
        waiting, self._held = self._held, []
        for episode in waiting:
            self._queue(episode, "held")

    def ask(self, episode: Episode) -> None:
        """Begin a model call, of weights that are new enough."""
        if self.version < episode.slot.min_version:
            self._held.append(episode)
        else:
            self._queue(episode, "finds")

    def by_version(self, episode: Episode, tokens: float) -> list[tuple[int, float]]:
        """Return the tokens of a call that ends now, by the version that sampled them."""
        if episode.called_at == self.version:
            return [(self.version, tokens)]
        return split_by_version(
            self._switches, episode.called_at, episode.asked_s, self._events.now_s, tokens
        )

    def _queue(self, episode: Episode, starts: Start) -> None:
        """Let it have a slot, now or in its turn: the product goes on with episodes whose cache it has."""
        episode.starts = starts if self._station.has_room else "queued"
        self._station.arrive(episode, goes_ahead=episode.done > 0 and self._follow_ups_first)

    def _call(self, episode: Episode) -> None:
        load = -(-self._station.num_busy // self._number)
        # Its slot is its own from now on, although a block is still being decoded without it.
        wait_s = self._calls.draw_wait(load) if episode.starts == "finds" else 0.0
        draw = self._calls.draw_in_slot if episode.starts == "queued" else self._calls.draw
        duration_s = draw(load)
        now_s = self._events.now_s
        limit_s = max(0.0, episode.deadline_s - now_s)
        self._phases_s["generator_queue"] += now_s - episode.asked_s + min(wait_s, limit_s)
        self._phases_s["generate"] += max(0.0, min(duration_s, limit_s - wait_s))
        episode.asked_s, episode.called_at = now_s + wait_s, self.version
        if wait_s + duration_s >= limit_s:
            self._events.after(limit_s, self._cut_off, episode)
        else:
            self._events.after(wait_s + duration_s, self._called, episode)

    def _called(self, episode: Episode) -> None:
        self._station.leave()
        self._on_answer(episode)

    def _cut_off(self, episode: Episode) -> None:
        self._station.leave()
        self._on_timeout(episode)

    def _resize(self, number: int) -> None:
        self._number = number
        self._station.capacity = number * self._slots
        self._station.refill()


def split_by_version(
    switches: list[tuple[float, int]], version: int, began_s: float, ended_s: float, tokens: float
) -> list[tuple[int, float]]:
    """Return the tokens of a call by the version that sampled them, evenly over its time.

    Args:
        switches: (time, version) of all weights so far, ascending.
        version: The version that the call began with.
        began_s: When it began.
        ended_s: When it ended.
        tokens: What it sampled.

    Example:
        >>> split_by_version([(0.0, 0), (6.0, 1)], 0, 4.0, 8.0, 10.0)
        [(0, 5.0), (1, 5.0)]
    """
    first = bisect_right(switches, (began_s, version)) - 1
    starts = [began_s, *(at_s for at_s, _ in switches[first + 1 :])]
    length_s = ended_s - began_s
    return [
        (found, tokens * (until_s - since_s) / length_s if length_s > 0.0 else 0.0)
        for (_, found), since_s, until_s in zip(switches[first:], starts, [*starts[1:], ended_s], strict=True)
    ]
