"""What the study runs: cells, in the order in which they matter, and the names of their results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Literal, NamedTuple

import msgspec
import xxhash

Regime = Literal["controlled", "spread", "wait", "drop", "mask"]

# Changes when runs are no longer comparable with earlier ones.
STUDY: Final = 1
MARGIN: Final = 0.03  # of the range of rewards; fixed before the first run
LAGS: Final = (0, 1, 2, 4, 8, 16)
SEEDS: Final = tuple(range(5))
MORE_SEEDS: Final = tuple(range(5, 10))  # where five leave a verdict open that matters
SYNCHRONOUS: Final = "default"

# Of the problems' learning rates, which are the highest that learn well without a lag.
LOW_RATE: Final = 0.3

_NO_REJECTION: Final = {"geometric_low": 0.0, "geometric_high": 1e30}
_CLIP: Final = {"clip_low": 0.2, "clip_high": 0.28}
_DEFAULT: Final = {
    "loss": "decoupled_ppo",
    "proximal": "current",
    "correction": "token_tis",
    "tis_cap": 2.0,
    "geometric_low": 0.5,
    "geometric_high": 2.0,
    **_CLIP,
}
# Alike in everything but the loss: group-mean advantages, a mean over tokens (but for GSPO, which is one over
# sequences). "default" is what `ObjectiveSettings()` says, written out.
OBJECTIVES: Final[dict[str, dict[str, Any]]] = {
    "default": _DEFAULT,
    "ppo_clip": {"loss": "ppo_clip", **_CLIP, **_NO_REJECTION},
    "decoupled": {"loss": "decoupled_ppo", "tis_cap": 1e30, **_CLIP, **_NO_REJECTION},
    "uncorrected": {"loss": "decoupled_ppo", "correction": "none", **_CLIP, **_NO_REJECTION},
    # The same, but what has moved by more than a factor of two from the behavior is left alone.
    "ppo_wide": {
        "loss": "ppo_clip",
        "clip_low": 0.5,
        "clip_high": 1.0,
        "geometric_low": 0.5,
        "geometric_high": 2.0,
    },
    "icepop": {**_DEFAULT, "icepop_low": 0.5, "icepop_high": 2.0},
    "vcpo": _DEFAULT,
    "a3po": {**_DEFAULT, "proximal": "interpolated"},
    "cispo": {"preset": "cispo", "advantage": "group_mean"},
    "gspo": {"preset": "gspo", "advantage": "group_mean"},
    "dppo": {"preset": "dppo"},
}
# Of the optimizer, by the name of the objective.
OPTIMIZERS: Final[dict[str, dict[str, Any]]] = {"vcpo": {"ess_scaling": True}}


class Scale(NamedTuple):
    """How long runs are.

    Attributes:
        steps: Optimizer steps.
        evaluations: Versions after which held-out tasks are evaluated; the reward of a run is the mean of
            those that count.
        counted: How many of the last evaluations count.
        tasks: Held-out tasks of one evaluation.
    """

    steps: int
    evaluations: tuple[int, ...]
    counted: int
    tasks: int


# By name of a cell's scale, and problem.
SCALES: Final = {
    ("full", "calculator"): Scale(100, (25, 50, 75, 84, 92, 100), 3, 384),
    ("full", "frozenlake"): Scale(60, (15, 30, 45, 52, 56, 60), 3, 384),
    ("quick", "calculator"): Scale(6, (6,), 1, 32),
    ("quick", "frozenlake"): Scale(6, (6,), 1, 32),
}


class Timing(NamedTuple):
    """The constants of the virtual clock.

    Attributes:
        step_s: Seconds of a learner step.
        turn_s: Seconds of a model call.
    """

    step_s: float
    turn_s: float


TIMINGS: Final = {"calculator": Timing(1.2, 0.3), "frozenlake": Timing(1.2, 0.3)}


class Cell(NamedTuple):
    """One run.

    Attributes:
        problem: What is learned.
        objective: Name of the objective.
        regime: How data grows old: `controlled` makes every token exactly `lag` versions old; `spread` the
            first turn of an episode, and each later turn one version less; `wait`, `drop` and `mask` let the
            rules of the store decide on a virtual clock, with max_staleness = lag.
        lag: Versions.
        seed: Of tasks and sampling.
        rate: Learning rate, as a multiple of the problem's.
        scale: Name of a scale.
    """

    problem: str
    objective: str
    regime: Regime
    lag: int
    seed: int
    rate: float = 1.0
    scale: str = "full"

    @property
    def length(self) -> Scale:
        """How long it is."""
        return SCALES[self.scale, self.problem]

    @property
    def name(self) -> str:
        """What it is called, without the seed."""
        rate = "" if self.rate == 1.0 else f" x{self.rate:g}"
        return f"{self.problem} {self.objective}{rate} {self.regime} {self.lag}"


def fingerprint(cell: Cell, problem_fingerprint: str, timing: Timing) -> str:
    """Return a hash of everything that a result depends on but the code.

    Args:
        cell: The run.
        problem_fingerprint: Of configuration and warm start.
        timing: Of the virtual clock; left out where there is none.
    """
    timed = tuple(timing) if cell.regime in ("wait", "drop", "mask") else None
    parts = (
        STUDY,
        cell,
        OBJECTIVES[cell.objective] | OPTIMIZERS.get(cell.objective, {}),
        cell.length,
        problem_fingerprint,
        timed,
    )
    return xxhash.xxh3_64_hexdigest(msgspec.json.encode(parts, order="sorted"))


def plan() -> Iterator[Cell]:
    """Yield every cell of the study, the most important first; whoever runs them stops when time is up."""
    both, problems = ("default", "ppo_clip"), ("calculator", "frozenlake")
    others = ("dppo", "a3po", "ppo_wide", "cispo", "gspo", "vcpo", "icepop", "decoupled", "uncorrected")
    for problem in problems:
        yield from _each(problem, both, "controlled", (0, 8))
    for problem in problems:
        yield from _each(problem, others[:2], "controlled", (8,), seeds=SEEDS[:3])
    yield from _each("calculator", ("default",), "controlled", (0, 8), LOW_RATE)
    yield from _each("frozenlake", ("default",), "wait", (0, 8))
    yield from _each("calculator", ("ppo_clip", "dppo"), "controlled", (8,), LOW_RATE)
    yield from _each("calculator", ("default",), "wait", (0,), LOW_RATE)
    yield from _each("calculator", ("dppo", "default", "ppo_clip"), "wait", (8,), LOW_RATE)
    yield from _each("frozenlake", ("dppo",), "wait", (8,))
    for seeds in (SEEDS[:3], SEEDS[3:]):
        for problem in problems:
            yield from _each(problem, others, "controlled", (8,), seeds=seeds)
    yield from _each("frozenlake", ("ppo_clip",), "wait", (8,))
    yield from _each("calculator", both, "wait", (0, 8))
    for lag in (16, 4, 2, 1):
        for problem in problems:
            yield from _each(problem, both, "controlled", (lag,))
    for regime, lags in (("mask", (4, 8)), ("drop", (4, 8)), ("wait", (4, 16))):
        for problem in problems:
            yield from _each(problem, both, regime, lags)
    for lag in (16, 4, 2, 1):
        for problem in problems:
            yield from _each(problem, others, "controlled", (lag,))
    for problem in problems:
        yield from _each(problem, ("gspo",), "controlled", (0,))
        yield from _each(problem, both, "spread", (8, 16))
        yield from _each(problem, both, "controlled", (0, 8, 16), LOW_RATE)
    for problem in problems:
        for rate in (LOW_RATE, 1.0):
            yield from _each(problem, (*both, "dppo"), "controlled", (0, 8), rate, MORE_SEEDS)
            yield from _each(problem, both, "wait", (0, 8), rate, MORE_SEEDS)


def quick_plan() -> Iterator[Cell]:
    """Yield runs of a few steps that go through every part."""
    yield Cell("calculator", "default", "controlled", 0, 0, scale="quick")
    yield Cell("calculator", "default", "controlled", 2, 0, scale="quick")
    yield Cell("calculator", "default", "wait", 2, 0, scale="quick")


def _each(
    problem: str,
    objectives: tuple[str, ...],
    regime: Regime,
    lags: tuple[int, ...],
    rate: float = 1.0,
    seeds: tuple[int, ...] = SEEDS,
) -> Iterator[Cell]:
    """Yield cells lag by lag; at lag 0 all token-level objectives have one gradient, so one of them runs."""
    for lag in lags:
        for objective in objectives:
            if lag == 0 and objective not in (SYNCHRONOUS, "gspo"):
                continue
            for seed in seeds:
                yield Cell(problem, objective, regime, lag, seed, rate)
