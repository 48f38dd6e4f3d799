"""Lives added up: exact means and histograms of every stage, by environment, in bounded memory.

A histogram has eight bins to the octave, so that a percentile read from it is off by less than 5 %, and at
most 300 bins, so that a table costs the same after a hundred trajectories and after a billion.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from forebay.telemetry.residence import MAX_STAGE_S, STAGES, TOTAL, Lived

LEAST_S: Final = 1e-3
_BINS_PER_OCTAVE: Final = 8
_LAST_BIN: Final = 1 + math.floor(_BINS_PER_OCTAVE * math.log2(MAX_STAGE_S / LEAST_S))
# A number that no writer makes is refused when it is read back.
Bin = Annotated[int, msgspec.Meta(ge=0, le=293)]
Count = Annotated[int, msgspec.Meta(ge=0)]


class Weighed(NamedTuple):
    """A life and what it weighs.

    Attributes:
        environment: Whose trajectory it is.
        lived: Its life.
        fresh_tokens: Its trained tokens.
    """

    environment: str
    lived: Lived
    fresh_tokens: int


class Tally(msgspec.Struct, array_like=True, gc=False):
    """A stage over many trajectories.

    Args:
        token_s: Sum over trajectories of its trained tokens times the seconds.
        trajectory_s: Sum of the seconds.
        bins: Trained tokens and trajectories, by bin.
    """

    token_s: float = 0.0
    trajectory_s: float = 0.0
    bins: dict[Bin, tuple[Count, Count]] = {}

    def add(self, seconds: float, number: int, fresh_tokens: int) -> None:
        """Add one trajectory, whose seconds lie in the bin of that number."""
        self.token_s += fresh_tokens * seconds
        self.trajectory_s += seconds
        tokens, trajectories = self.bins.get(number, (0, 0))
        self.bins[number] = (tokens + fresh_tokens, trajectories + 1)

    def merge(self, other: Tally) -> None:
        """Add what another tally holds."""
        self.token_s += other.token_s
        self.trajectory_s += other.trajectory_s
        for number, (tokens, trajectories) in other.bins.items():
            mine = self.bins.get(number, (0, 0))
            self.bins[number] = (mine[0] + tokens, mine[1] + trajectories)

    @property
    def num_tokens(self) -> int:
        """Trained tokens of the trajectories that recorded it."""
        return sum(tokens for tokens, _ in self.bins.values())

    @property
    def num_trajectories(self) -> int:
        """Trajectories that recorded it."""
        return sum(trajectories for _, trajectories in self.bins.values())

    def token_percentile_s(self, fraction: float) -> float | None:
        """Return what `fraction` of the trained tokens do not exceed; None without any."""
        return _percentile({number: tokens for number, (tokens, _) in self.bins.items()}, fraction)

    def trajectory_percentile_s(self, fraction: float) -> float | None:
        """Return what `fraction` of the trajectories do not exceed; None without any."""
        return _percentile({number: count for number, (_, count) in self.bins.items()}, fraction)


class Life(msgspec.Struct, gc=False):
    """The lives of many trajectories.

    Args:
        trajectories: How many.
        tokens: Trained tokens of them.
        stages: A tally for each stage that some of them recorded, and for `total`.
        clamped: How often a stage, or the total, was cut, by its name.
    """

    trajectories: Count = 0
    tokens: Count = 0
    stages: dict[str, Tally] = {}
    clamped: dict[str, Count] = {}

    def add(self, lived: Lived, fresh_tokens: int, numbers: Iterator[int]) -> None:
        """Add one life; `numbers` yields the bins of its stages in order, and that of the whole."""
        self.trajectories += 1
        self.tokens += fresh_tokens
        for stage, seconds in (*lived.seconds.items(), (TOTAL, lived.total_s)):
            tally = self.stages.get(stage)
            if tally is None:
                tally = self.stages[stage] = Tally()
            tally.add(seconds, next(numbers), fresh_tokens)
        for stage in lived.clamped:
            self.clamped[stage] = self.clamped.get(stage, 0) + 1

    def merge(self, other: Life) -> None:
        """Add what another one holds."""
        self.trajectories += other.trajectories
        self.tokens += other.tokens
        for stage, tally in other.stages.items():
            self.stages.setdefault(stage, Tally()).merge(tally)
        self.clamped = dict(Counter(self.clamped) + Counter(other.clamped))

    @property
    def token_s(self) -> float:
        """Trained tokens times the seconds of their lives."""
        return self._total.token_s

    @property
    def mean_s(self) -> float | None:
        """Mean life of a trained token; None without any."""
        return self._total.token_s / self.tokens if self.tokens else None

    @property
    def residual_token_s(self) -> float:
        """What the stages leave of `token_s`; negative if they add up to more."""
        return self.token_s - math.fsum(self.stages[name].token_s for name in self.recorded)

    @property
    def residual_trajectory_s(self) -> float:
        """The same, every trajectory weighing the same."""
        spent_s = math.fsum(self.stages[name].trajectory_s for name in self.recorded)
        return self._total.trajectory_s - spent_s

    @property
    def recorded(self) -> tuple[str, ...]:
        """The stages that some trajectory recorded, in order."""
        return tuple(stage for stage in STAGES if stage in self.stages)

    def share(self, *stages: str) -> float:
        """Return the share of the token's life that some stages take, 0 to 1."""
        spent_s = math.fsum(self.stages[stage].token_s for stage in stages if stage in self.stages)
        return spent_s / self.token_s if self.token_s > 0 else 0.0

    @property
    def _total(self) -> Tally:
        return self.stages.get(TOTAL, Tally())


def tabulate(lives: Iterable[Weighed]) -> dict[str, Life]:
    """Return the lives by environment."""
    kept = list(lives)
    # All at once: a logarithm at a time would cost more than everything else.
    seconds = [value for one in kept for value in (*one.lived.seconds.values(), one.lived.total_s)]
    numbers = iter(bins_of(np.array(seconds)).tolist())
    table: dict[str, Life] = {}
    for environment, lived, fresh_tokens in kept:
        table.setdefault(environment, Life()).add(lived, fresh_tokens, numbers)
    return table


def whole(table: Mapping[str, Life]) -> Life:
    """Return the lives of all environments as one."""
    merged = Life()
    for life in table.values():
        merged.merge(life)
    return merged


def bins_of(seconds: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Return the bins of durations: 0 below a millisecond, then eight to the octave.

    Args:
        seconds: [N] float64, at least 0.

    Returns:
        [N] int64.

    Example:
        >>> bins_of(np.array([0.0, 0.001, 0.002, 1e300])).tolist()
        [0, 1, 9, 293]
    """
    octaves = np.log2(np.maximum(seconds, LEAST_S) / LEAST_S)
    numbers = 1 + np.floor(_BINS_PER_OCTAVE * octaves + 1e-9).astype(np.int64)
    return np.where(seconds < LEAST_S, 0, np.minimum(numbers, _LAST_BIN))


def bin_middle_s(number: int) -> float:
    """Return the geometric middle of a bin, half a millisecond for bin 0."""
    return LEAST_S / 2 if number <= 0 else LEAST_S * 2.0 ** ((number - 0.5) / _BINS_PER_OCTAVE)


def _percentile(weights: Mapping[int, int], fraction: float) -> float | None:
    """Return the middle of the first bin up to which `fraction` of the weight lies: the nearest rank."""
    needed = fraction * sum(weights.values())
    if needed <= 0:
        return None
    passed = 0
    for number in sorted(weights):
        passed += weights[number]
        if passed >= needed:
            return bin_middle_s(number)
    return bin_middle_s(max(weights))
