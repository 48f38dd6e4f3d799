"""A run on virtual time: the product's rules of dispatch, groups and staleness, and measured latencies."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping
from typing import Final

import msgspec

from forebay.errors import ConfigError
from forebay.planner.buffer import Buffer, LiveGroup
from forebay.planner.events import Draws, Events
from forebay.planner.model_calls import CallTimes
from forebay.planner.playing import Actors
from forebay.planner.profile import LearnerProfile, Profile, require
from forebay.planner.scenario import Scenario
from forebay.planner.services import EnvironmentTimes
from forebay.planner.steps import CountedSteps, PackedSteps, Steps
from forebay.planner.training import Batch, Learner, Trained, Update
from forebay.staleness import Shares

NEEDED: Final = ("environments", "generator", "learner")
# Far beyond any run: where virtual time ends if nothing happens that a learner could use.
_LIMIT_S: Final = 1e9
_DISCARDS: Final = ("stale", "deadline", "failed", "no_fresh_token", "late")
# Groups lost for one batch, in batches, after which none is waited for.
_MOST_LOST: Final = 100


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a simulated run came to, after warm-up. Fractions are 0 to 1.

    Args:
        busy: Time inside steps over all time.
        goodput: Time that the bare step would need for the fresh tokens on full rows, over all time.
        steps_per_s: Optimizer updates per second.
        fresh_tokens_per_s: Trained tokens per second.
        step_s: Mean time of a batch's step.
        staleness_mean: Mean staleness of the trained tokens, versions.
        staleness_max: Largest one.
        staleness_histogram: Share of the trained tokens by staleness, from 0.
        discarded: Trajectories that came and were not trained: too old, unscored, or of a dropped group.
        discarded_share: The same over those that came.
        masked_tokens: Tokens in batches that were not trained.
        masked_share: The same over all tokens in batches.
        stale_tokens: Those of them that were too old.
        timed_out_share: Episodes that a deadline ended, over all that ended.
        buffer_bytes: Mean bytes of stored trajectories that wait to be taken; 0 if their size is unknown.
        buffer_bytes_max: Most of them.
        buffer_trajectories: Mean number of them.
        waits: Share of the time that the learner had nothing to train, by cause.
        episodes_in_flight: Mean number of episodes alive.
        episodes_per_s: Episodes that ended per second.
        episode_s: Mean time from claim to result.
        little: Episodes in flight over rate times time; 1 when nothing is lost between them.
        group_s: Mean time from a group's first claim until it settled.
        phases_s: Mean seconds of an episode, by what it waited for.
        steps: Batches measured.
        wall_s: Virtual seconds measured.
        events: Events of the whole simulation.
    """

    busy: float
    goodput: float
    steps_per_s: float
    fresh_tokens_per_s: float
    step_s: float
    staleness_mean: float
    staleness_max: int
    staleness_histogram: tuple[float, ...]
    discarded: int
    discarded_share: float
    masked_tokens: int
    masked_share: float
    stale_tokens: int
    timed_out_share: float
    buffer_bytes: float
    buffer_bytes_max: float
    buffer_trajectories: float
    waits: dict[str, float]
    episodes_in_flight: float
    episodes_per_s: float
    episode_s: float
    little: float
    group_s: float
    phases_s: dict[str, float]
    steps: int
    wall_s: float
    events: int


class Parts:
    """What a profile says, as times to draw.

    Args:
        profile: With environments, a generator and a learner.
        scenario: What differs.

    Raises:
        ConfigError: A part is missing.
    """

    def __init__(self, profile: Profile, scenario: Scenario) -> None:
        require(profile, NEEDED, "the simulation")
        assert profile.generator is not None and profile.learner is not None
        self.rngs = {
            name: random.Random(f"{scenario.seed}:{name}") for name in ("actors", "learner", "calls")
        }
        names = sorted(profile.environments)
        environments = {name: profile.environments[name] for name in names}
        self.shares = Shares(tuple(names), tuple(one.weight for one in environments.values()))
        default = _default_tokens(profile)
        self.environments = {
            name: EnvironmentTimes(
                one,
                scenario,
                default,
                random.Random(f"{scenario.seed}:{name}"),
                profile.generator.traffic.get(name),
            )
            for name, one in environments.items()
        }
        self.slots = scenario.slots or profile.generator.slots
        self.calls = CallTimes(profile.generator, self.slots, scenario.generator_factor, self.rngs["calls"])
        learner = profile.learner
        self.steps_s = self._steps(profile.learner, scenario)
        self.overhead_s = Draws(learner.overhead_s, self.rngs["learner"])
        store, weights = profile.store, profile.weights
        self.put_s = None if store is None else Draws(store.put_s, self.rngs["actors"])
        self.take_s = None if store is None else Draws(store.take_s, self.rngs["learner"])
        self.weights_s = (
            None
            if weights is None
            else Draws(weights.first_token_s, self.rngs["learner"], scenario.weights_factor)
        )
        self.publish_s = (
            None
            if weights is None or weights.publish_s is None
            else Draws(weights.publish_s, self.rngs["learner"], scenario.weights_factor)
        )
        self.trajectory_bytes = 0.0 if store is None else store.trajectory_bytes.mean

    def _steps(self, learner: LearnerProfile, scenario: Scenario) -> Steps:
        """Pack batches where it is known into what, and how long their trajectories are."""
        rng = self.rngs["learner"]
        packs = learner.buckets and learner.apply_s is not None
        if packs and all(one.tells_lengths for one in self.environments.values()):
            return PackedSteps(learner, scenario, rng, lambda size: self._typical(size, scenario))
        return CountedSteps(learner, scenario, rng)

    def _typical(self, size: int, scenario: Scenario) -> Trained:
        """Draw a batch of which everything is trained."""
        names = random.Random(f"{scenario.seed}:{size}").choices(
            self.shares.names, self.shares.weights, k=size
        )
        lengths = [self.environments[name].length() for name in names]
        per_update = size // scenario.minibatches
        parts = [tuple(lengths[at : at + per_update]) for at in range(0, size, per_update)]
        updates = [Update(1.0, part) for part in parts[: scenario.minibatches]] * scenario.epochs
        return Trained({}, 0.0, 0.0, size, 0, tuple(updates))


def simulate(profile: Profile, scenario: Scenario) -> Outcome:
    """Run a scenario on virtual time; the same seed gives the same outcome.

    Args:
        profile: What was measured: environments, a generator and a learner at least.
        scenario: The run.

    Raises:
        ConfigError: A part is missing, or nothing would ever be trained.
    """
    run = _Run(Parts(profile, scenario), scenario)
    return run.outcome()


class _Run:
    """One simulated run."""

    def __init__(self, parts: Parts, scenario: Scenario) -> None:
        self._parts, self._scenario = parts, scenario
        self._events = Events()
        self._buffer = Buffer(scenario, parts.shares, self._events, self._changed, self._work, self._began)
        self._actors = Actors(
            scenario,
            self._events,
            self._buffer,
            parts.calls,
            parts.environments,
            parts.put_s,
            parts.slots,
        )
        self._learner = Learner(
            scenario,
            self._events,
            self._buffer,
            parts.steps_s,
            parts.overhead_s,
            parts.take_s,
            parts.weights_s,
            parts.publish_s,
            self._actors.load_weights,
            self._stepped,
        )
        self._fresh: defaultdict[int, float] = defaultdict(float)
        self._stale = self._unscored = self._useful_s = 0.0
        self._num_groups = self._untrained = 0
        self._group_s = self._stored_area = 0.0
        self._stored_max = self._lost_before = 0
        self._stored_since_s = 0.0
        self._start = self._snapshot()

    def outcome(self) -> Outcome:
        """Run to the end; return what it came to."""
        scenario, learner = self._scenario, self._learner
        self._buffer.dispatch()
        self._until(scenario.warmup)
        self._fresh.clear()
        self._stale = self._unscored = self._useful_s = self._group_s = self._stored_area = 0.0
        self._num_groups = self._untrained = self._stored_max = 0
        self._start = self._snapshot()
        self._until(scenario.steps)
        return self._summary(self._start, self._snapshot(), learner.steps - scenario.warmup)

    def _until(self, steps: int) -> None:
        most_lost = _MOST_LOST * self._scenario.batches_in_flight * self._scenario.groups

        def ended() -> bool:
            return self._learner.steps >= steps or self._buffer.num_lost - self._lost_before > most_lost

        self._events.run(ended, _LIMIT_S)
        if self._learner.steps < steps:
            raise ConfigError(
                "the simulated run stops: no batch can be made any more",
                got=f"{self._learner.steps} batches trained",
                limit=f"{self._scenario.steps} wanted; {dict(self._buffer.counters)}",
                remedy="Let groups live longer (episode_timeout_s, group_deadline_s), or fewer steps fail.",
            )

    def _changed(self, settled: LiveGroup | None) -> None:
        now_s = self._events.now_s
        self._stored_area += self._buffer.num_stored * (now_s - self._stored_since_s)
        self._stored_since_s = now_s
        self._stored_max = max(self._stored_max, self._buffer.num_stored)
        self._learner.changed(settled)

    def _work(self) -> None:
        self._actors.wake()

    def _began(self) -> None:
        self._learner.look_at_causes()

    def _stepped(self, batch: Batch, trained: Trained) -> None:
        self._lost_before = self._buffer.num_lost
        for age, tokens in trained.fresh.items():
            self._fresh[age] += tokens
        self._stale += trained.stale
        self._unscored += trained.unscored
        self._useful_s += self._parts.steps_s.useful_s(trained)
        self._untrained += trained.discarded
        self._num_groups += len(batch.groups)
        self._group_s += sum(group.settled_s - group.first_claim_s for group in batch.groups)

    def _snapshot(self) -> dict[str, float]:
        self._actors.account()
        self._learner.account()
        actors, learner = self._actors, self._learner
        return {
            **self._buffer.counters,
            "now_s": self._events.now_s,
            "area": actors.area,
            "ended": actors.ended,
            "timed_out": actors.timed_out,
            "lived_s": actors.lived_s,
            "busy_s": learner.busy_s,
            **{f"wait.{cause}": seconds for cause, seconds in learner.waits_s.items()},
            **{f"phase.{phase}": seconds for phase, seconds in actors.phases_s.items()},
        }

    def _summary(self, start: Mapping[str, float], end: Mapping[str, float], steps: int) -> Outcome:
        passed = {name: end[name] - start.get(name, 0.0) for name in end}
        wall_s, ended = passed["now_s"], passed["ended"]
        fresh, masked = sum(self._fresh.values()), self._stale + self._unscored
        discarded = self._untrained + sum(passed.get(name, 0.0) for name in _DISCARDS)
        accepted = passed.get("accepted", 0.0)
        rate, alive = ended / wall_s, passed["area"] / wall_s
        episode_s = passed["lived_s"] / ended if ended else 0.0
        stored, size = self._stored_area / wall_s, self._parts.trajectory_bytes
        oldest = max(self._fresh, default=0)
        return Outcome(
            busy=passed["busy_s"] / wall_s,
            goodput=self._useful_s / wall_s,
            steps_per_s=steps * self._scenario.updates_per_batch / wall_s,
            fresh_tokens_per_s=fresh / wall_s,
            step_s=passed["busy_s"] / steps,
            staleness_mean=_share(sum(age * count for age, count in self._fresh.items()), fresh),
            staleness_max=oldest,
            staleness_histogram=tuple(_share(self._fresh[age], fresh) for age in range(oldest + 1)),
            discarded=int(discarded),
            discarded_share=min(1.0, _share(discarded, accepted)),
            masked_tokens=round(masked),
            masked_share=_share(masked, masked + fresh),
            stale_tokens=round(self._stale),
            timed_out_share=_share(passed["timed_out"], ended),
            buffer_bytes=stored * size,
            buffer_bytes_max=self._stored_max * size,
            buffer_trajectories=stored,
            waits=_each(passed, "wait.", wall_s),
            episodes_in_flight=alive,
            episodes_per_s=rate,
            episode_s=episode_s,
            little=alive / (rate * episode_s) if rate * episode_s else 1.0,
            group_s=self._group_s / self._num_groups,
            phases_s=_each(passed, "phase.", max(ended, 1.0)),
            steps=steps,
            wall_s=wall_s,
            events=self._events.num_done,
        )


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _each(totals: Mapping[str, float], prefix: str, whole: float) -> dict[str, float]:
    """Return the totals of one kind, each as a share."""
    named = {name.removeprefix(prefix): value for name, value in totals.items() if name.startswith(prefix)}
    return {name: value / whole for name, value in sorted(named.items())}


def _default_tokens(profile: Profile) -> float:
    """Return the tokens of a turn if no environment says so: as many as the learner was measured with."""
    assert profile.learner is not None
    level = profile.learner.levels[-1]
    turns = [one.turns.mean for one in profile.environments.values()]
    return level.tokens / level.trajectories / (sum(turns) / len(turns))
