"""The simulated learner: its feed, which takes batches ahead, and its steps."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from forebay.planner.buffer import Buffer, LiveGroup, Result
from forebay.planner.events import Draws, Events
from forebay.planner.scenario import Scenario
from forebay.staleness.waiting import WaitCause, cause_of_wait


class StepTimes(Protocol):
    """How long steps take."""

    def draw(self, trained: Trained) -> float:
        """Return the time of a step, seconds."""
        ...


class Batch(NamedTuple):
    """Groups taken for one batch.

    Attributes:
        version: The version that its first update differentiates.
        groups: The groups, in order.
    """

    version: int
    groups: list[LiveGroup]


class Update(NamedTuple):
    """What one update of a batch trains.

    Attributes:
        fresh_share: Trained tokens over all that were sampled.
        lengths: Tokens of each trajectory that has a trained one, prompts included.
    """

    fresh_share: float
    lengths: tuple[int, ...]


class Trained(NamedTuple):
    """What the tokens of a batch came to.

    Attributes:
        fresh: Trained tokens, by staleness in versions.
        stale: Tokens that were too old.
        unscored: Tokens of episodes without a reward.
        trajectories: Trajectories with a trained token.
        discarded: Trajectories without one.
        updates: Its updates, in order.
    """

    fresh: Mapping[int, float]
    stale: float
    unscored: float
    trajectories: int
    discarded: int
    updates: tuple[Update, ...] = ()


def tally(batch: Batch, scenario: Scenario) -> Trained:
    """Return which tokens of a batch are trained, by the loss mask's rule.

    Under `mask` a token is too old by itself; otherwise one such token leaves its whole trajectory out. Each
    update is checked against the version that it differentiates; a trajectory's tokens count once per epoch.

    Args:
        batch: What was taken.
        scenario: The staleness rule and the updates.
    """
    fresh: defaultdict[int, float] = defaultdict(float)
    stale = unscored = 0.0
    trained: set[tuple[str, int]] = set()
    updates: list[Update] = []
    per_update = len(batch.groups) // scenario.minibatches
    for number in range(scenario.updates_per_batch):
        at = (number % scenario.minibatches) * per_update
        lengths, trained_tokens, sampled_tokens = [], 0.0, 0.0
        for group in batch.groups[at : at + per_update]:
            for member, result in group.results.items():
                tokens = sum(count for _, count in result.turns)
                sampled_tokens += tokens
                if not result.scored:
                    unscored += tokens
                    continue
                kept = kept_tokens(result, batch.version + number, scenario)
                kept_sum = sum(count for _, count in kept)
                stale += tokens - kept_sum
                trained_tokens += kept_sum
                if kept:
                    trained.add((group.record.group_id, member))
                    lengths.append(result.length)
                for age, count in kept:
                    fresh[age] += count
        share = trained_tokens / sampled_tokens if sampled_tokens else 0.0
        updates.append(Update(share, tuple(lengths)))
    total = sum(len(group.results) for group in batch.groups)
    return Trained(fresh, stale, unscored, len(trained), total - len(trained), tuple(updates))


def kept_tokens(result: Result, now: int, scenario: Scenario) -> list[tuple[int, float]]:
    """Return (staleness, tokens) of what an update trains of a trajectory, nothing if it is left out.

    Args:
        result: The trajectory, which has a reward.
        now: The version that the update differentiates.
        scenario: The staleness rule.
    """
    limit = scenario.max_staleness
    kept = [(now - version, count) for version, count in result.turns if now - version <= limit]
    return kept if scenario.on_stale == "mask" or len(kept) == len(result.turns) else []


class Learner:
    """Takes batches ahead, trains them, publishes; without end, so that the figures are those of a long run.

    Consumes: settled groups. Waits for: enough of them, fresh enough, or an urgent one. Unblocked by: actors
    and deadlines. Produces: versions.

    Args:
        scenario: Settings.
        events: Virtual time.
        buffer: Where groups come from.
        steps_s: Times of steps.
        overhead_s: Time between two steps.
        take_s: Time to take and pack a batch; None for none.
        weights_s: Time from the end of a step's overhead until its weights sample; None for none.
        publish_s: Part of that: until they are visible, and their groups' credit is free; None for none.
        on_weights: Called with a version when its weights sample.
        on_step: Called after each batch with what it came to.

    Attributes:
        steps: Batches trained.
        busy_s: Seconds inside steps.
        waits_s: Seconds without a batch, by cause.
        num_looks: Choices asked for.
    """

    def __init__(
        self,
        scenario: Scenario,
        events: Events,
        buffer: Buffer,
        steps_s: StepTimes,
        overhead_s: Draws,
        take_s: Draws | None,
        weights_s: Draws | None,
        publish_s: Draws | None,
        on_weights: Callable[[int], None],
        on_step: Callable[[Batch, Trained], None],
    ) -> None:
        self._scenario, self._events, self._buffer = scenario, events, buffer
        self._steps_s, self._overhead_s, self._take_s = steps_s, overhead_s, take_s
        self._weights_s, self._publish_s = weights_s, publish_s
        self._on_weights, self._on_step = on_weights, on_step
        self._updates = scenario.updates_per_batch
        self._version = 0  # of the next batch to be taken
        self._ready: deque[Batch] = deque()
        self._taking = False  # a batch is being packed
        self._asking = True
        self._urgent: str | None = None
        self._cause, self._since_s = "episodes", 0.0
        self._unpublished: list[int] = []
        self.steps = self.num_looks = 0
        self.busy_s = 0.0
        self.waits_s: defaultdict[str, float] = defaultdict(float)

    def changed(self, settled: LiveGroup | None) -> None:
        """Look at the groups if the choice can have changed.

        A batch cannot be made of fewer settled groups than it has, so until then the product's choice is
        asked for only where a settled group may be too old. Nor while the urgent group could not even wait
        for the next batch: everything older is settled, so it stays the urgent one until it ends.
        """
        if self._taking or not self.has_room:
            return
        if self._urgent is not None and self._buffer.running(self._urgent, self._last_chance):
            return
        if self._buffer.num_settled >= self._scenario.groups or (settled is not None and self._old(settled)):
            self.look()
        else:
            self.look_at_causes()

    def look(self) -> None:
        """Take a batch if the rule allows, and give up what it calls too old."""
        while not self._taking and self.has_room:
            self.num_looks += 1
            choice = self._buffer.choose(self._version)
            self._urgent = choice.urgent
            if choice.stale:
                self._buffer.reject(choice.stale, "stale")
                self._buffer.dispatch()
            if not choice.take:
                self._wait(self._cause_of(choice.missing, is_urgent=choice.urgent is not None))
                return
            self._take(choice.take)

    def look_at_causes(self) -> None:
        """Note what is waited for after a group has begun or settled."""
        if self._urgent is None and not self._taking and self.has_room:
            missing = max(1, self._scenario.groups - self._buffer.num_settled)
            self._wait(self._cause_of(missing))

    def account(self) -> None:
        """Bring `waits_s` up to now."""
        if self._asking:
            self.waits_s[self._cause] += self._events.now_s - self._since_s
        self._since_s = self._events.now_s

    @property
    def _last_chance(self) -> int:
        """The newest start of a group that can be taken now, but not one batch later."""
        return self._version + 2 * (self._updates - 1) - self._scenario.max_staleness

    @property
    def has_room(self) -> bool:
        """Whether a batch may be taken ahead."""
        return len(self._ready) < self._scenario.prefetch + self._asking

    def _old(self, group: LiveGroup) -> bool:
        start = group.outstanding.start
        return start is not None and start.version < self._version - self._scenario.max_staleness

    def _cause_of(self, num_missing: int, *, is_urgent: bool = False) -> WaitCause:
        return cause_of_wait(
            is_urgent=is_urgent,
            num_missing=num_missing,
            num_running=self._buffer.num_running,
            num_unsettled=self._buffer.num_unsettled,
        )

    def _wait(self, cause: str) -> None:
        self.account()
        self._cause = cause

    def _take(self, group_ids: tuple[str, ...]) -> None:
        batch = Batch(self._version, self._buffer.take(group_ids))
        if not tally(batch, self._scenario).trajectories:
            self._buffer.give_up(batch.groups)
            self._buffer.dispatch()
            return
        self._version += self._updates
        self._wait("packing")
        self._taking = True
        self._events.after(0.0 if self._take_s is None else self._take_s.draw(), self._taken, batch)

    def _taken(self, batch: Batch) -> None:
        self._taking = False
        self._ready.append(batch)
        if self._asking:
            self._begin()
        self.look()

    def _begin(self) -> None:
        """Train the next batch; it is ready."""
        self.account()
        self._asking = False
        batch = self._ready.popleft()
        trained = tally(batch, self._scenario)
        step_s = self._steps_s.draw(trained)
        self._events.after(step_s, self._trained, (batch, trained, step_s))

    def _trained(self, done: tuple[Batch, Trained, float]) -> None:
        batch, trained, step_s = done
        self.account()
        self.steps += 1
        self.busy_s += step_s
        self._on_step(batch, trained)
        overhead_s = self._overhead_s.draw()
        self.waits_s["overhead"] += overhead_s
        self._events.after(overhead_s, self._handed_over, batch)

    def _handed_over(self, batch: Batch) -> None:
        """Go on with the next batch, while the weights are written in the background."""
        self._unpublished.append(len(batch.groups))
        if self.steps % self._scenario.publish_every == 0:
            self._publish(batch.version + self._updates, sum(self._unpublished))
            self._unpublished.clear()
        self.account()
        self._asking = True
        if self._ready:
            self._begin()
        else:
            self._cause = "packing" if self._taking else self._cause
        self.look()

    def _publish(self, version: int, num_groups: int) -> None:
        weights_s = 0.0 if self._weights_s is None else self._weights_s.draw()
        # Weights cannot sample before they are visible; the two were measured apart.
        publish_s = 0.0 if self._publish_s is None else min(self._publish_s.draw(), weights_s)
        self._events.after(weights_s, self._on_weights, version)
        if publish_s > 0.0:
            self._events.after(publish_s, self._published, (version, num_groups))
        else:
            self._published((version, num_groups))

    def _published(self, done: tuple[int, int]) -> None:
        version, num_groups = done
        self._buffer.publish(version, num_groups)
        self._buffer.dispatch()
        self.changed(None)
