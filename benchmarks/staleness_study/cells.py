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
FRESH_SEEDS: Final = tuple(range(5, 20))  # chose nothing: they alone judge what was chosen
TIMED_SEEDS: Final = FRESH_SEEDS[:5]
TRIAL_SEEDS: Final = tuple(range(20, 23))  # choose what the others judge
SYNCHRONOUS: Final = "default"
PROBLEMS: Final = ("calculator", "frozenlake")

# Of the problems' learning rates, which are the highest that learn well without a lag.
LOW_RATE: Final = 0.3

_NO_REJECTION: Final = {"geometric_low": 0.0, "geometric_high": 1e30}
_REJECTION: Final = {"geometric_low": 0.5, "geometric_high": 2.0}
_CLIP: Final = {"clip_low": 0.2, "clip_high": 0.28}
_DEFAULT: Final = {"loss": "ppo_clip", "clip_low": 0.5, "clip_high": 1.0, **_REJECTION}
_TOKEN_TIS: Final = {
    "loss": "decoupled_ppo",
    "proximal": "current",
    "correction": "token_tis",
    "tis_cap": 2.0,
    **_REJECTION,
    **_CLIP,
}
# Alike in everything but the loss: group-mean advantages, a mean over tokens (but for GSPO, which is one over
# sequences). "default" is what `ObjectiveSettings()` says, written out.
OBJECTIVES: Final[dict[str, dict[str, Any]]] = {
    "default": _DEFAULT,
    "default_vcpo": _DEFAULT,
    "default_drift": _DEFAULT,
    "ppo_clip": {"loss": "ppo_clip", **_CLIP, **_NO_REJECTION},
    "token_tis": _TOKEN_TIS,
    "decoupled": {"loss": "decoupled_ppo", "tis_cap": 1e30, **_CLIP, **_NO_REJECTION},
    "uncorrected": {"loss": "decoupled_ppo", "correction": "none", **_CLIP, **_NO_REJECTION},
    "icepop": {**_TOKEN_TIS, "icepop_low": 0.5, "icepop_high": 2.0},
    "vcpo": _TOKEN_TIS,
    "a3po": {**_TOKEN_TIS, "proximal": "interpolated"},
    "cispo": {"preset": "cispo", "advantage": "group_mean"},
    "gspo": {"preset": "gspo", "advantage": "group_mean"},
    "dppo": {"preset": "dppo"},
    "m2po": {"preset": "m2po", "advantage": "group_mean"},
    "bapo": {"preset": "bapo", "advantage": "group_mean"},
}
# Objective and rate of what is tried for the target; and the objective that is judged, which is what a user
# gets: the default with the optimizer's default.
TRIED: Final = (
    ("default_drift", 1.0),
    ("default", 0.5),
    ("default", LOW_RATE),
    ("default", 1.0),
    ("m2po", 1.0),
    ("bapo", 1.0),
)
CHOSEN: Final = ("default_drift",)
# Of the optimizer, by the name of the objective.
OPTIMIZERS: Final[dict[str, dict[str, Any]]] = {
    "vcpo": {"ess_scaling": True},
    "default_vcpo": {"ess_scaling": True},
    "default_drift": {"drift_price": 0.1},
}


class Scale(NamedTuple):
    """How long runs are.

    A `long` run is compared with a synchronous `full` one at the problem's own rate: what does the time that
    the lag saves buy?

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
    ("long", "calculator"): Scale(250, (50, 100, 150, 200, 234, 242, 250), 3, 384),
    ("long", "frozenlake"): Scale(135, (30, 60, 90, 120, 127, 131, 135), 3, 384),
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
    def is_longer(self) -> bool:
        """Whether it may take more steps than the synchronous run that it is compared with."""
        return self.scale == "long"

    @property
    def name(self) -> str:
        """What it is called, without the seed."""
        rate = "" if self.rate == 1.0 else f" x{self.rate:g}"
        scale = "" if self.scale == "full" else f" {self.scale}"
        return f"{self.problem} {self.objective}{rate} {self.regime} {self.lag}{scale}"


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
    yield from _judged()
    yield from _target()
    yield from _trials()
    yield from _at_eight()
    yield from _on_the_clock()
    yield from _other_lags()
    for problem in PROBLEMS:
        yield from _each(problem, ("gspo",), "controlled", (0,))
        yield from _each(problem, ("default", "token_tis"), "spread", (8,))
        yield from _each(problem, ("default",), "controlled", (0, 8), seeds=MORE_SEEDS)
        yield from _each(problem, ("default",), "controlled", (0, 8), LOW_RATE, MORE_SEEDS)
        yield from _each(problem, ("default",), "wait", (0, 8), seeds=MORE_SEEDS)


def _judged() -> Iterator[Cell]:
    """Yield what judges the shipped defaults at lag 8 on fresh seeds, and then how fast they are."""
    for seed in FRESH_SEEDS:
        for problem in PROBLEMS:
            yield Cell(problem, SYNCHRONOUS, "controlled", 0, seed)
            yield from _each(problem, CHOSEN, "controlled", (8,), seeds=(seed,), scale="long")
    for seed in TIMED_SEEDS:
        for problem in PROBLEMS:
            yield Cell(problem, SYNCHRONOUS, "wait", 0, seed)
            yield from _each(problem, CHOSEN, "wait", (8,), seeds=(seed,), scale="long")


def _trials() -> Iterator[Cell]:
    """Yield what chooses a default for the target, on seeds that judge nothing."""
    for problem in PROBLEMS:
        yield from _each(problem, ("default",), "controlled", (0,), seeds=TRIAL_SEEDS)
    for seed in TRIAL_SEEDS:
        for problem in PROBLEMS:
            for objective, rate in TRIED:
                yield Cell(problem, objective, "controlled", 8, seed, rate, "long")


def _target() -> Iterator[Cell]:
    """Yield what judges the choice: longer runs at lag 8 against synchronous ones."""
    for seeds in (SEEDS, MORE_SEEDS):
        for problem in PROBLEMS:
            yield from _each(problem, ("default",), "controlled", (0,), seeds=seeds)
            yield from _each(problem, CHOSEN, "controlled", (8,), seeds=seeds, scale="long")
        for problem in PROBLEMS:
            yield from _each(problem, ("default",), "wait", (0,), seeds=seeds)
            yield from _each(problem, CHOSEN, "wait", (8,), seeds=seeds, scale="long")
    for problem in PROBLEMS:
        yield from _each(problem, ("default",), "controlled", (0,), scale="long")


def _at_eight() -> Iterator[Cell]:
    """Yield what the default lag does to every objective, at both rates."""
    first = ("default", "default_drift", "token_tis", "ppo_clip", "dppo", "default_vcpo")
    for problem in PROBLEMS:
        yield from _each(problem, first[:2], "controlled", (0, 8))
    for problem in PROBLEMS:
        yield from _each(problem, first[:1], "controlled", (0, 8), LOW_RATE)
    for problem in PROBLEMS:
        yield from _each(problem, first[2:], "controlled", (8,))
    for problem in PROBLEMS:
        yield from _each(problem, first[1:5], "controlled", (8,), LOW_RATE)
    for problem in PROBLEMS:
        yield from _each(problem, ("cispo", "gspo", "decoupled"), "controlled", (8,))
    for problem in PROBLEMS:
        yield from _each(problem, ("m2po", "bapo"), "controlled", (8,))
    for problem in PROBLEMS:
        others = ("icepop", "vcpo", "a3po", "uncorrected")
        yield from _each(problem, others, "controlled", (8,), seeds=SEEDS[:3])


def _on_the_clock() -> Iterator[Cell]:
    """Yield what the rules do: the calculator at the cautious rate, frozenlake at the high one."""
    for regime, lags in (("wait", (0, 8)), ("drop", (8,)), ("mask", (8,)), ("wait", (4, 16)), ("drop", (4,))):
        yield from _each("calculator", ("default",), regime, lags, LOW_RATE)
        yield from _each("frozenlake", ("default",), regime, lags)
    for others in (("token_tis", "dppo"), ("ppo_clip",)):
        yield from _each("calculator", others, "wait", (8,), LOW_RATE)
        yield from _each("frozenlake", others, "wait", (8,))
    yield from _each("frozenlake", ("default_drift",), "wait", (8,))
    yield from _each("calculator", ("default", "default_drift"), "wait", (0, 8))


def _other_lags() -> Iterator[Cell]:
    """Yield the rest of the grid: objectives by controlled lag."""
    for lag in (16, 4, 2, 1):
        for problem in PROBLEMS:
            yield from _each(problem, ("default", "default_drift", "token_tis"), "controlled", (lag,))
            yield from _each(problem, ("ppo_clip",), "controlled", (lag,))
            yield from _each(problem, ("default",), "controlled", (lag,), LOW_RATE)
    for lag in (16, 4, 2, 1):
        for problem in PROBLEMS:
            yield from _each(problem, ("dppo", "cispo", "gspo", "decoupled"), "controlled", (lag,))


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
    scale: str = "full",
) -> Iterator[Cell]:
    """Yield cells lag by lag; at lag 0 all token-level objectives have one gradient, so one of them runs."""
    for lag in lags:
        for objective in objectives:
            if lag == 0 and objective not in (SYNCHRONOUS, "gspo"):
                continue
            for seed in seeds:
                yield Cell(problem, objective, regime, lag, seed, rate, scale)
