"""A run on virtual time: the product's lanes, controllers, rests, dispatch, group and staleness rules.

Environments, the generator and the learner's steps are times to wait. Several actor processes share them.
"""

from __future__ import annotations

import math
import random
from collections import Counter, deque
from collections.abc import Mapping
from typing import Final, NamedTuple, cast

from benchmarks.controller_study.cases import Case, Place
from forebay.actors.board import Board, MemoryBoard, Note
from forebay.actors.controller import Decision, Demand
from forebay.actors.crew import Crew
from forebay.actors.lanes import Lanes
from forebay.actors.levels import Turn
from forebay.actors.rests import Rests
from forebay.actors.settings import ActorSettings
from forebay.errors import ForebayError
from forebay.planner.buffer import Buffer, LiveGroup, Result, Slot
from forebay.planner.events import Draws, Events, Station
from forebay.planner.scenario import Scenario
from forebay.planner.training import Batch, Learner, StepTimes, Trained
from forebay.staleness import Shares

_REFUSAL_S: Final = 0.05
_LOOK_S: Final = 0.5
_POLL_S: Final = 0.25
_MOST: Final = 1024
_FIRST: Final = 16
# A run whose calls are mostly refused has very many of them, and is cut off.
_MOST_EVENTS: Final = 600_000
_LIMIT_S: Final = 1e6
_RATE_WINDOW_S: Final = 1.0


class Told(NamedTuple):
    """A decision of a process."""

    at_s: float
    process: int
    environment: str
    decision: Decision


class Outcome(NamedTuple):
    """What a run came to.

    Attributes:
        wall_s: Virtual seconds until the last batch was trained.
        busy: Share of them that the learner computed.
        fresh_per_s: Trained episodes per second.
        calls: Calls of environments.
        refused: Calls that were refused.
        lost: Groups given up because members failed.
        batches: Batches made by which counts of each environment's groups.
        mean_live: Mean number of episodes in flight.
        limits: (second, what all processes together were allowed), now and then; empty without controllers.
        told: Decisions.
        staleness: Mean staleness, versions.
    """

    wall_s: float
    busy: float
    fresh_per_s: float
    calls: int
    refused: int
    lost: int
    batches: list[Counter[str]]
    mean_live: float
    limits: list[tuple[float, float]]
    told: list[Told]
    staleness: float


class _Nothing:
    """No time, drawn as often as wanted."""

    mean = 0.0

    def draw(self, _: float = 0.0) -> float:
        return 0.0


class _Steps:
    """The learner's steps, whose time changes in mid-run."""

    def __init__(self, case: Case, events: Events) -> None:
        self._case, self._events, self.count = case, events, 0

    def draw(self, trajectories: float) -> float:
        del trajectories
        seconds = next(s for first, s in reversed(self._case.learner_s) if self.count >= first)
        pause_s = sum(s for step, s in self._case.pauses if step == self.count)
        self.count += 1
        return seconds + pause_s


class _Environment:
    """Answers calls, slower or not at all if there are many."""

    def __init__(self, place: Place, rng: random.Random, events: Events) -> None:
        self._place, self._random, self._events = place, rng, events
        sigma2 = math.log(1.0 + place.cv**2)
        self._mu, self._sigma = math.log(place.step_s) - sigma2 / 2.0, math.sqrt(sigma2)
        self._recent: deque[float] = deque()
        self.num_busy = self.calls = self.refused = 0

    def call(self) -> tuple[float, bool]:
        """Return how long a call takes and whether it succeeds."""
        place, now_s = self._place, self._events.now_s
        self.calls += 1
        self.num_busy += 1
        duration_s = self._random.lognormvariate(self._mu, self._sigma)
        crowd = self.num_busy / place.capacity
        if place.limit == "refuses" and crowd > 1.0:
            return self._refuse()
        if place.limit == "rate":
            while self._recent and self._recent[0] <= now_s - _RATE_WINDOW_S:
                self._recent.popleft()
            if len(self._recent) >= place.capacity:
                return self._refuse()
            self._recent.append(now_s)
        if crowd > 1.0 and place.limit in ("slower", "thrashes"):
            duration_s *= crowd if place.limit == "slower" else crowd**1.5
        return duration_s, True

    def _refuse(self) -> tuple[float, bool]:
        self.refused += 1
        return _REFUSAL_S, False


class _Episode:
    __slots__ = ("asked_s", "began_s", "called_s", "environment", "process", "slot", "turn", "turns")

    def __init__(self, slot: Slot, environment: str, process: int, now_s: float) -> None:
        self.slot, self.environment, self.process = slot, environment, process
        self.began_s = self.asked_s = self.called_s = now_s
        self.turn = 0
        self.turns: list[tuple[int, float]] = []


class _Process:
    """The places of one actor process: controlled, or so many."""

    def __init__(self, crew: Crew | None, board: Board, places: int, rests: Rests) -> None:
        self.crew, self.board, self.places, self.rests = crew, board, places, rests
        self.lanes = crew.lanes if crew is not None else None
        self.live: Counter[str] = Counter()
        self.waits = True

    def wanted(self, now_s: float) -> list[tuple[str | None, int]]:
        if self.lanes is not None:
            return [(one.environment, one.free) for one in self.lanes.wanted(now_s, self.live)]
        return [(None, self.places - self.live.total())]


class World:
    """A run.

    Args:
        case: What is run.
        processes: Actor processes.
        fixed: Episodes at once of all of them; None for controllers.
        seed: Seed of everything random.
        first: Episodes at once of all processes in the beginning, if controlled.
    """

    def __init__(
        self, case: Case, *, processes: int = 1, fixed: int | None = None, seed: int = 0, first: int = _FIRST
    ) -> None:
        self._case, self._events = case, Events()
        self._scenario = _scenario(case)
        shares = Shares(tuple(p.name for p in case.places), tuple(p.weight for p in case.places))
        self._shares = shares
        self._owed = {
            n: w / sum(shares.weights) * case.groups for n, w in zip(*shares_of(shares), strict=True)
        }
        self._environments = {
            place.name: _Environment(place, random.Random(f"{seed}:{place.name}"), self._events)
            for place in case.places
        }
        self._rng = random.Random(f"{seed}:polls")
        self._notes: dict[str, tuple[float, Note]] = {}
        self._processes = [self._process(index, processes, fixed, seed, first) for index in range(processes)]
        self._generator: Station[_Episode] = Station(self._call, case.slots)
        self._buffer = Buffer(self._scenario, shares, self._events, self._changed, self._work, self._look)
        self._steps = _Steps(case, self._events)
        self._learner = Learner(
            self._scenario,
            self._events,
            self._buffer,
            steps_s=cast(StepTimes, self._steps),
            overhead_s=cast(Draws, _Nothing()),
            take_s=None,
            weights_s=None,
            publish_s=None,
            on_weights=self._load,
            on_step=self._stepped,
        )
        self._version = 0
        self._polling = [False] * processes
        self._fresh = self._stale_sum = 0.0
        self._area = self._since_s = 0.0
        self._controlled = fixed is None
        self.told: list[Told] = []
        self.limits: list[tuple[float, float]] = []
        self.batches: list[Counter[str]] = []

    def run(self) -> Outcome:
        """Run to the last batch."""
        self._buffer.dispatch()
        if self._controlled:
            for index in range(len(self._processes)):
                self._events.after(_LOOK_S * (index + 1) / len(self._processes), self._control, index)
        self._events.run(self._has_ended, _LIMIT_S)
        self._account()
        wall_s = self._events.now_s
        pauses_s = sum(seconds for _, seconds in self._case.pauses)
        return Outcome(
            wall_s=wall_s,
            busy=(self._learner.busy_s - pauses_s) / wall_s,
            fresh_per_s=self._fresh / wall_s,
            calls=sum(one.calls for one in self._environments.values()),
            refused=sum(one.refused for one in self._environments.values()),
            lost=self._buffer.counters["failed"],
            batches=self.batches,
            mean_live=self._area / wall_s,
            limits=self.limits,
            told=self.told,
            staleness=self._stale_sum / max(1.0, self._fresh),
        )

    def _process(self, index: int, processes: int, fixed: int | None, seed: int, first: int) -> _Process:
        crew = None
        name = f"actor-{index}"
        if fixed is None:
            batch = self._case.groups * self._case.group_size
            lanes = Lanes(self._shares, batch_episodes=batch, first=first, most=_MOST, processes=processes)
            crew = Crew(name, float(index), lanes, expected=processes)
        rng = random.Random(f"{seed}:rests:{index}")
        places = 0 if fixed is None else fixed // processes + (index < fixed % processes)
        board = MemoryBoard(name, lambda: self._events.now_s, self._notes)
        return _Process(crew, board, places, Rests(ActorSettings(), lambda: self._events.now_s, rng))

    def _has_ended(self) -> bool:
        return self._learner.steps >= self._case.steps or self._events.num_done > _MOST_EVENTS

    # The learner

    def _changed(self, settled: LiveGroup | None) -> None:
        self._learner.changed(settled)

    def _look(self) -> None:
        self._learner.look_at_causes()

    def _load(self, version: int) -> None:
        self._version = max(self._version, version)

    def _stepped(self, batch: Batch, trained: Trained) -> None:
        self._fresh += sum(trained.fresh.values())
        self._stale_sum += sum(age * count for age, count in trained.fresh.items())
        self.batches.append(Counter(group.record.environment for group in batch.groups))

    # Actors

    def _work(self) -> None:
        for index in range(len(self._processes)):
            self._poll(index)

    def _poll(self, index: int) -> None:
        if not self._polling[index]:
            self._polling[index] = True
            self._events.after(_POLL_S * self._rng.random(), self._claim, index)

    def _claim(self, index: int) -> None:
        self._polling[index] = False
        process = self._processes[index]
        for environment, free in process.wanted(self._events.now_s):
            got = 0
            while got < free and (slot := self._buffer.claim(self._version, environment)) is not None:
                got += 1
                self._begin(slot, index)
            if process.lanes is not None and environment is not None and free > 0:
                process.lanes.claimed(environment, free, got)

    def _begin(self, slot: Slot, index: int) -> None:
        self._account()
        environment = slot.group.record.environment
        self._processes[index].live[environment] += 1
        episode = _Episode(slot, environment, index, self._events.now_s)
        self._generator.arrive(episode)

    def _call(self, episode: _Episode) -> None:
        self._events.after(self._case.call_s, self._called, episode)

    def _called(self, episode: _Episode) -> None:
        self._generator.leave()
        episode.turns.append((self._version, 1.0 / self._case.turns))
        episode.called_s = self._events.now_s
        duration_s, succeeds = self._environments[episode.environment].call()
        self._events.after(duration_s, self._answered if succeeds else self._refused, episode)

    def _answered(self, episode: _Episode) -> None:
        now_s, process = self._events.now_s, self._processes[episode.process]
        self._environments[episode.environment].num_busy -= 1
        if process.lanes is not None:
            turn = Turn(
                episode.turn, episode.asked_s, episode.called_s - episode.asked_s, now_s - episode.called_s
            )
            process.lanes.turn(episode.environment, turn)
        process.rests.succeeded(episode.environment)
        episode.turn += 1
        episode.asked_s = now_s
        if episode.turn < self._case.turns:
            self._generator.arrive(episode)
            return
        if process.lanes is not None:
            process.lanes.ended(episode.environment, now_s - episode.began_s)
        self._leave(episode)
        self._buffer.put(episode.slot, Result(tuple(episode.turns), True))

    def _refused(self, episode: _Episode) -> None:
        process = self._processes[episode.process]
        self._environments[episode.environment].num_busy -= 1
        if process.lanes is not None:
            process.lanes.failed(episode.environment)
        rest_s = process.rests.failed(episode.environment, ForebayError("too many requests"))
        self._leave(episode)
        self._events.after(rest_s, self._rested, episode)

    def _rested(self, episode: _Episode) -> None:
        if self._buffer.fail(episode.slot):
            self._buffer.retry(episode.slot)

    def _leave(self, episode: _Episode) -> None:
        self._account()
        self._processes[episode.process].live[episode.environment] -= 1
        self._events.after(0.0, self._claim, episode.process)

    # Control

    def _control(self, index: int) -> None:
        process, now_s = self._processes[index], self._events.now_s
        assert process.crew is not None
        process.board.post(process.crew.look(now_s, process.live))
        process.crew.meet(process.board.read(), now_s)
        if process.crew.decides:
            for environment, decision in process.crew.decide(now_s, self._demand()):
                self.told.append(Told(now_s, index, environment, decision))
            process.board.post(process.crew.note(now_s))
            self.limits.append((now_s, sum(process.crew.lanes.totals(now_s).values())))
        self._claim(index)
        self._events.after(_LOOK_S, self._control, index)

    def _demand(self) -> Mapping[str, Demand]:
        starved = self._buffer.num_in_hands < self._case.groups
        return {
            name: Demand(starved, self._buffer.num_ready(name) / owed, self._steps.count)
            for name, owed in self._owed.items()
        }

    def _account(self) -> None:
        now_s = self._events.now_s
        self._area += sum(process.live.total() for process in self._processes) * (now_s - self._since_s)
        self._since_s = now_s


def shares_of(shares: Shares) -> tuple[tuple[str, ...], tuple[float, ...]]:
    """Return the names and weights."""
    return shares.names, shares.weights


def _scenario(case: Case) -> Scenario:
    return Scenario(
        groups=case.groups,
        group_size=case.group_size,
        max_staleness=case.max_staleness,
        episode_timeout_s=3600.0,
        steps=case.steps,
        warmup_steps=0,
    )
