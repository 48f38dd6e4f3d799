"""Simulated episodes: places, resets, model calls, steps, deadlines, failures."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Final

from forebay.planner.buffer import Buffer, Result, Slot
from forebay.planner.events import Draws, Events, Station
from forebay.planner.looking import Polls, SeenVersion
from forebay.planner.model_calls import CallTimes
from forebay.planner.scenario import Scenario
from forebay.planner.services import EnvironmentTimes
from forebay.planner.serving import Episode, Generators

# As actors do by default: an episode ends this long before its group's deadline.
_PUT_MARGIN_S: Final = 0.5


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
    ) -> None:
        self._scenario, self._events, self._buffer = scenario, events, buffer
        self._environments, self._put_s = environments, put_s
        self.phases_s: defaultdict[str, float] = defaultdict(float)
        self._generators = Generators(
            scenario, events, calls, slots, self.phases_s, self._called, self._timed_out
        )
        self._answering: dict[str, Station[Episode]] = {
            name: Station(self._answer, times.at_once) for name, times in environments.items()
        }
        self._live_by_environment: Counter[str] = Counter()
        self._polls = Polls(scenario.poll_s, scenario.poll_max_s)
        self._looking = False
        self._seen = SeenVersion(scenario.version_period_s)
        self.live = self.ended = self.timed_out = 0
        self.lived_s = self.area = self._since_s = 0.0

    def wake(self) -> None:
        """Look for work, as soon as an idle actor would."""
        if not self._looking and self.live < self._scenario.places:
            self._looking = True
            self._events.after(self._polls.wait_s(self._events.now_s), self._look, None)

    def load_weights(self, version: int) -> None:
        """Sample with new weights from now on."""
        self._generators.load_weights(version)

    def account(self) -> None:
        """Bring `area` up to now."""
        self.area += self.live * (self._events.now_s - self._since_s)
        self._since_s = self._events.now_s

    def _look(self, _: None) -> None:
        self._looking = False
        self._claim()

    def _claim(self) -> None:
        now_s = self._events.now_s
        seen = self._seen.look(now_s, self._generators.version)
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
            self._events.after(max(0.0, limit_s), self._cut_off, episode)
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
            self._generators.ask(episode)

    def _called(self, episode: Episode) -> None:
        """Keep what a model call sampled, and let the environment answer it."""
        environment = self._environments[episode.environment]
        tokens = environment.tokens()
        episode.tokens += environment.prompt_tokens(episode.done) + tokens
        episode.turns += self._generators.by_version(episode, tokens)
        episode.asked_s = self._events.now_s
        self._answering[episode.environment].arrive(episode)

    def _cut_off(self, episode: Episode) -> None:
        self._answering[episode.environment].leave()
        self._timed_out(episode)

    def _timed_out(self, episode: Episode) -> None:
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
        self._buffer.put(episode.slot, Result(tuple(episode.turns), episode.scored, round(episode.tokens)))
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
