"""Simulated episodes: places, resets, model calls, steps, deadlines, failures."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import Counter, defaultdict
from typing import Final

from forebay.planner.buffer import Buffer, Result, Slot
from forebay.planner.events import Draws, Events, Station
from forebay.planner.looking import Polls, SeenVersion
from forebay.planner.scenario import Scenario
from forebay.planner.services import CallTimes, EnvironmentTimes

# As actors do by default: an episode ends this long before its group's deadline.
_PUT_MARGIN_S: Final = 0.5


class Episode:
    """One episode under way.

    Attributes:
        began_s: When it got its place.
        asked_s: When it began to wait for what it is doing now.
        done: Turns that are done; -1 before the reset.
        called_at: The version that its model call began with.
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


class Actors:
    """All places for episodes, and what they wait for.

    Consumes: members to claim. Waits for: a place, a generator, an environment, new weights. Unblocked by:
    the end of an episode, each of which has a deadline. Produces: results.

    Args:
        scenario: Settings.
        events: Virtual time.
        buffer: Where work comes from and results go.
        calls: Times of model calls.
        environments: Times of the environments, by name.
        put_s: Time of a put; None for none.
        slots: Requests at once in each generator.
        rng: Source of randomness.

    Attributes:
        live: Episodes that hold a place.
        phases_s: Seconds that episodes spent, by what they waited for.
        ended: Episodes whose result was put.
        lived_s: Seconds from claim to result of those.
        timed_out: Those that a deadline ended.
        area: Integral of `live` over time, episode seconds.
    """

    def __init__(
        self,
        scenario: Scenario,
        events: Events,
        buffer: Buffer,
        calls: CallTimes,
        environments: dict[str, EnvironmentTimes],
        put_s: Draws | None,
        slots: int,
        rng: random.Random,
    ) -> None:
        self._scenario, self._events, self._buffer = scenario, events, buffer
        self._calls, self._environments, self._put_s, self._rng = calls, environments, put_s, rng
        self._slots = slots
        self._num_generators = scenario.generators
        self._station: Station[Episode] = Station(self._call, scenario.generators * slots)
        self._answering: dict[str, Station[Episode]] = {
            name: Station(self._answer, times.at_once) for name, times in environments.items()
        }
        self._held: list[Episode] = []
        self._switches: list[tuple[float, int]] = [(0.0, 0)]
        self._live_by_environment: Counter[str] = Counter()
        self._polls = Polls(scenario.poll_s, scenario.poll_max_s)
        self._looking = False
        self._seen = SeenVersion(scenario.version_period_s)
        self.version = 0
        self.live = self.ended = self.timed_out = 0
        self.lived_s = self.area = self._since_s = 0.0
        self.phases_s: defaultdict[str, float] = defaultdict(float)
        if scenario.generators_lost:
            events.after(scenario.lost_after_s, self._resize, scenario.generators - scenario.generators_lost)
            events.after(scenario.lost_after_s + scenario.lost_for_s, self._resize, scenario.generators)

    def wake(self) -> None:
        """Look for work, as soon as an idle actor would."""
        if not self._looking and self.live < self._scenario.places:
            self._looking = True
            self._events.after(self._polls.wait_s(self._events.now_s), self._look, None)

    def load_weights(self, version: int) -> None:
        """Sample with new weights from now on."""
        if version <= self.version:
            return
        self.version = version
        self._switches.append((self._events.now_s, version))
        waiting, self._held = self._held, []
        for episode in waiting:
            self._ask(episode)

    def account(self) -> None:
        """Bring `area` up to now."""
        self.area += self.live * (self._events.now_s - self._since_s)
        self._since_s = self._events.now_s

    def _look(self, _: None) -> None:
        self._looking = False
        self._claim()

    def _claim(self) -> None:
        now_s = self._events.now_s
        seen = self._seen.look(now_s, self.version)
        while self.live < self._scenario.places:
            slot = self._buffer.claim(seen)
            if slot is None:
                self._polls.idle(now_s)
                return
            self._polls.claimed(now_s)
            self._begin(slot)

    def _begin(self, slot: Slot) -> None:
        name = slot.group.record.environment
        now_s = self._events.now_s
        deadline_s = slot.group.record.deadline_wall_s
        assert deadline_s is not None
        limit_s = min(now_s + self._scenario.episode_timeout_s, deadline_s - _PUT_MARGIN_S)
        episode = Episode(slot, name, self._environments[name].turns(), now_s, limit_s)
        self.account()
        self.live += 1
        self._live_by_environment[name] += 1
        self._answering[name].arrive(episode)

    def _answer(self, episode: Episode) -> None:
        """Let the environment work on a reset or step."""
        now_s = self._events.now_s
        self.phases_s["environment_queue"] += now_s - episode.asked_s
        times = self._environments[episode.environment]
        duration_s = times.answer_s(
            episode.done, episode.num_turns, self._live_by_environment[episode.environment]
        )
        limit_s = min(self._scenario.step_timeout_s, episode.deadline_s - now_s)
        self.phases_s["environment"] += max(0.0, min(duration_s, limit_s))
        if duration_s >= limit_s:
            station = self._answering[episode.environment]
            self._events.after(max(0.0, limit_s), self._cut_off, (episode, station))
        else:
            self._events.after(duration_s, self._answered, episode)

    def _answered(self, episode: Episode) -> None:
        self._answering[episode.environment].leave()
        if self._environments[episode.environment].fails():
            self._failed(episode)
            return
        episode.done += 1
        if episode.done >= episode.num_turns:
            self._finish(episode)
        else:
            episode.asked_s = self._events.now_s
            self._ask(episode)

    def _ask(self, episode: Episode) -> None:
        """Ask for a model call, of weights that are new enough."""
        if self.version < episode.slot.min_version:
            self._held.append(episode)
        else:
            self._station.arrive(episode)

    def _call(self, episode: Episode) -> None:
        now_s = self._events.now_s
        self.phases_s["generator_queue"] += now_s - episode.asked_s
        episode.asked_s, episode.called_at = now_s, self.version
        load = -(-self._station.num_busy // self._num_generators)
        duration_s = self._calls.draw(load)
        limit_s = episode.deadline_s - now_s
        self.phases_s["generate"] += max(0.0, min(duration_s, limit_s))
        if duration_s >= limit_s:
            self._events.after(max(0.0, limit_s), self._cut_off, (episode, self._station))
        else:
            self._events.after(duration_s, self._called, episode)

    def _called(self, episode: Episode) -> None:
        tokens = self._environments[episode.environment].tokens()
        if episode.called_at == self.version:
            episode.turns.append((self.version, tokens))
        else:
            episode.turns += split_by_version(
                self._switches, episode.called_at, episode.asked_s, self._events.now_s, tokens
            )
        self._station.leave()
        episode.asked_s = self._events.now_s
        self._answering[episode.environment].arrive(episode)

    def _cut_off(self, where: tuple[Episode, Station[Episode]]) -> None:
        episode, station = where
        station.leave()
        self.timed_out += 1
        episode.scored = self._scenario.timeouts_scored
        self._finish(episode)

    def _finish(self, episode: Episode) -> None:
        put_s = 0.0 if self._put_s is None else self._put_s.draw()
        self.phases_s["put"] += put_s
        self._events.after(put_s, self._put, episode)

    def _put(self, episode: Episode) -> None:
        self.ended += 1
        self.lived_s += self._events.now_s - episode.began_s
        self._buffer.put(episode.slot, Result(tuple(episode.turns), episode.scored))
        self._leave(episode)

    def _failed(self, episode: Episode) -> None:
        if self._buffer.fail(episode.slot):
            self._events.after(self._scenario.rest_s, self._buffer.retry, episode.slot)
        self._leave(episode)

    def _leave(self, episode: Episode) -> None:
        self.account()
        self.live -= 1
        self._live_by_environment[episode.environment] -= 1
        if self._buffer.has_work() and not self._looking:
            self._claim()

    def _resize(self, generators: int) -> None:
        self._num_generators = generators
        self._station.capacity = generators * self._slots
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
