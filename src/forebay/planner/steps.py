"""How long simulated steps take, and how much of that the bare step would have needed on full rows.

A batch is packed as the learner packs it, into the shapes that the learner was measured with.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from forebay.batching.packing import Bucket, plan_rows
from forebay.planner.events import Draws
from forebay.planner.profile import LearnerProfile
from forebay.planner.scenario import Scenario
from forebay.planner.training import StepTimes, Trained, Update

# As the learner times the bare step: the best of so many calls, half before the run and half after it.
_BARE_CALLS: Final = 10
# Plans of this many batches are kept: one is asked for its time, and then for its useful part.
_KEPT_PLANS: Final = 8
# Batches over which a mean step is taken.
_TYPICAL: Final = 30


class Steps(StepTimes, Protocol):
    """What batches take, and what of that is useful."""

    def useful_s(self, trained: Trained) -> float:
        """Return the seconds that the bare step would need on full rows for what is trained."""
        ...

    def mean(self, trajectories: int) -> float:
        """Return the mean time of a step over so many trajectories, seconds."""
        ...


class Scale:
    """Times by an amount of work: interpolated between measured amounts, in proportion beyond them.

    Args:
        levels: (amount, times), ascending, at least one. The shape is that of the nearest.

    Example:
        >>> from forebay.planner.distribution import constant
        >>> one_s, three_s = (Draws(constant(seconds), random.Random()) for seconds in (1.0, 3.0))
        >>> scale = Scale([(2.0, one_s), (4.0, three_s)])
        >>> scale.mean(3.0), scale.mean(8.0), scale.draw(1.0)
        (2.0, 6.0, 0.5)
    """

    def __init__(self, levels: Sequence[tuple[float, Draws]]) -> None:
        self._levels = tuple(levels)
        self._points = tuple((amount, times.mean) for amount, times in levels)

    def mean(self, amount: float) -> float:
        """Return the mean time of so much."""
        points = self._points
        if amount >= points[-1][0]:
            return points[-1][1] * amount / points[-1][0]
        for (low, at_low), (high, at_high) in itertools.pairwise(points):
            if low <= amount:
                return at_low + (at_high - at_low) * (amount - low) / (high - low)
        return points[0][1] * amount / points[0][0]

    def draw(self, amount: float) -> float:
        """Return a time of so much."""
        _, times = min(self._levels, key=lambda level: abs(level[0] - amount))
        return times.draw() * self.mean(amount) / times.mean


class CountedSteps:
    """Steps by the number of trajectories, where it is not known how these are packed.

    Args:
        learner: As measured.
        scenario: What differs from that.
        rng: Source of randomness.
    """

    def __init__(self, learner: LearnerProfile, scenario: Scenario, rng: random.Random) -> None:
        factor = scenario.learner_factor * scenario.epochs
        self._scale = Scale([(one.trajectories, Draws(one.step_s, rng, factor)) for one in learner.levels])
        self._full_tokens_per_s = _full_speed(learner) / scenario.learner_factor

    def draw(self, trained: Trained) -> float:
        """Return the time of a step; see `Steps.draw`."""
        return self._scale.draw(trained.trajectories)

    def useful_s(self, trained: Trained) -> float:
        """Return its useful part; see `Steps.useful_s`."""
        return sum(trained.fresh.values()) / self._full_tokens_per_s

    def mean(self, trajectories: int) -> float:
        """Return the mean time of a step; see `Steps.mean`."""
        return self._scale.mean(trajectories)


class Filled(NamedTuple):
    """A micro-batch, and the tokens in it."""

    bucket: Bucket
    tokens: int


class PackedSteps:
    """Steps by the micro-batches that the learner's own packing makes of them.

    Args:
        learner: As measured, with its shapes and the optimizer's time.
        scenario: What differs from that.
        rng: Source of randomness.
        typical: Returns an update over so many trajectories like those of the run.
    """

    def __init__(
        self,
        learner: LearnerProfile,
        scenario: Scenario,
        rng: random.Random,
        typical: Callable[[int], Trained],
    ) -> None:
        assert learner.apply_s is not None
        factor, self._epochs = scenario.learner_factor, scenario.epochs
        shapes = {Bucket(one.rows, one.length): one.call_s for one in learner.buckets}
        self._ladder = tuple(shapes)
        self._longest = max(bucket.length for bucket in shapes)
        self._calls = {bucket: Draws(call_s, rng, factor) for bucket, call_s in shapes.items()}
        self._apply = Draws(learner.apply_s, rng, factor)
        self._bare_s = {bucket: factor * call_s.fastest(_BARE_CALLS) for bucket, call_s in shapes.items()}
        self._bare_apply_s = factor * learner.apply_s.fastest(_BARE_CALLS)
        in_runs = [(float(one.slots), Draws(one.step_s, rng, factor)) for one in learner.packed]
        self._in_runs = Scale(in_runs) if in_runs else None
        self._typical = typical
        self._plan = functools.lru_cache(maxsize=_KEPT_PLANS)(self._plan_anew)

    def draw(self, trained: Trained) -> float:
        """Return the time of a step; see `Steps.draw`."""
        if self._in_runs is not None:
            return self._epochs * self._in_runs.draw(self._slots(trained) / self._epochs)
        calls_s = sum(
            self._calls[one.bucket].draw() for update in trained.updates for one in self._filled(update)
        )
        return calls_s + sum(self._apply.draw() for update in trained.updates if update.lengths)

    def useful_s(self, trained: Trained) -> float:
        """Return its useful part; see `Steps.useful_s`.

        Padding is not in it, and sampled tokens that are not trained take their share away.
        """
        return sum(update.fresh_share * self._bare(update) for update in trained.updates if update.lengths)

    def mean(self, trajectories: int) -> float:
        """Return the mean time of a step; see `Steps.mean`."""
        if not trajectories:
            return 0.0
        found = [self._typical(trajectories) for _ in range(_TYPICAL)]
        if self._in_runs is not None:
            scale = self._in_runs
            return sum(self._epochs * scale.mean(self._slots(one) / self._epochs) for one in found) / _TYPICAL
        calls_s = sum(
            self._calls[one.bucket].mean
            for trained in found
            for update in trained.updates
            for one in self._filled(update)
        )
        return calls_s / _TYPICAL + self._apply.mean * len(found[0].updates)

    def _slots(self, trained: Trained) -> int:
        return sum(one.bucket.slots for update in trained.updates for one in self._filled(update))

    def _bare(self, update: Update) -> float:
        return self._bare_apply_s + sum(
            self._bare_s[one.bucket] * one.tokens / one.bucket.slots for one in self._filled(update)
        )

    def _filled(self, update: Update) -> tuple[Filled, ...]:
        return self._plan(update.lengths)

    def _plan_anew(self, lengths: tuple[int, ...]) -> tuple[Filled, ...]:
        buckets, rows = plan_rows([min(max(1, length), self._longest) for length in lengths], self._ladder)
        left = iter(rows)
        return tuple(
            Filled(bucket, sum(row.used for row in itertools.islice(left, bucket.rows))) for bucket in buckets
        )


def _full_speed(learner: LearnerProfile) -> float:
    if learner.full_tokens_per_s is not None:
        return learner.full_tokens_per_s
    level = learner.levels[-1]
    return level.tokens / level.step_s.mean
