"""The bias of comparing with finished siblings, exactly: every course of a small task is enumerated.

A task has a few answers, each with a reward and a distribution of how many steps of the learner its episode
takes. The policy is a softmax over the answers, so that the true gradient is `pi_k (r_k - J)`. All episodes
of a family begin together; after every step the learner takes what the product's own rule lets it, and
compares it by the product's own code.

Legend: A answers, G episodes of a family, M courses that it can take.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from forebay.objectives.advantages import Outcome, by_group, leave_one_out
from forebay.objectives.siblings import among_siblings
from forebay.staleness import OutstandingGroup, comparable, part_name
from forebay.trajectory import PolicyVersion

Rule = Literal["all", "finished", "pairs"]
RULES: Final[tuple[Rule, ...]] = ("all", "finished", "pairs")
FloatArray = npt.NDArray[np.float64]

_STEP_S: Final = 8.0
_QUANTILES: Final = 4
_SIGMA: Final = 0.4
_STEPS, _RATE = 2000, 1.0
_PAIR: Final = 2


class Answer(NamedTuple):
    """One thing that the policy may do.

    Attributes:
        name: What it is called.
        reward: Its mean reward: advantages are linear in rewards, so the mean is enough.
        mean_s: How long its episode takes on average.
    """

    name: str
    reward: float
    mean_s: float

    @property
    def durations(self) -> tuple[int, ...]:
        """Steps of the learner, all equally likely: quantiles of a lognormal distribution."""
        normal = statistics.NormalDist(-_SIGMA * _SIGMA / 2, _SIGMA)
        points = [(i + 0.5) / _QUANTILES for i in range(_QUANTILES)]
        return tuple(math.ceil(self.mean_s * math.exp(normal.inv_cdf(point)) / _STEP_S) for point in points)


class Problem(NamedTuple):
    """A task and the policies that it is looked at under.

    Attributes:
        name: What it is called.
        answers: The answers.
        policies: Probabilities of each answer, by name of the policy.
    """

    name: str
    answers: tuple[Answer, ...]
    policies: dict[str, tuple[float, ...]]


_TWO: Final = {"10 % long": (0.9, 0.1), "even": (0.5, 0.5), "90 % long": (0.1, 0.9)}
PROBLEMS: Final = (
    Problem("short answers are wrong", (Answer("short", 0.0, 24.0), Answer("long", 1.0, 48.0)), _TWO),
    Problem("long answers are wrong", (Answer("short", 1.0, 24.0), Answer("long", 0.0, 48.0)), _TWO),
    Problem(
        "length tells nothing",
        (
            Answer("short and right", 1.0, 24.0),
            Answer("short and wrong", 0.0, 24.0),
            Answer("long and right", 1.0, 48.0),
            Answer("long and wrong", 0.0, 48.0),
        ),
        {"even": (0.25, 0.25, 0.25, 0.25), "10 % long": (0.45, 0.45, 0.05, 0.05)},
    ),
    Problem(
        "a quick guess, a short and a long way",
        (Answer("guess", 0.0, 8.0), Answer("short", 0.6, 24.0), Answer("long", 0.7, 48.0)),
        {"even": (1 / 3, 1 / 3, 1 / 3), "10 % guess": (0.1, 0.45, 0.45)},
    ),
)


class Courses(NamedTuple):
    """What can happen to a family.

    Attributes:
        weights: [M] probability of each course, that of its answers left out.
        answers: [M, G] int64, the answer of each episode.
        advantages: [M, G] float64.
    """

    weights: FloatArray
    answers: npt.NDArray[np.int64]
    advantages: FloatArray


def courses(answers: Sequence[Answer], rule: Rule, group_size: int = 4, siblings_needed: int = 1) -> Courses:
    """Return every course of a family, and what each of its episodes is credited with."""
    rows: list[tuple[float, Sequence[int], Sequence[float]]] = []
    if rule == "finished":
        kinds = [(i, steps) for i, answer in enumerate(answers) for steps in answer.durations]
        # Episodes are alike, so that only how many there are of each kind matters.
        for family in itertools.combinations_with_replacement(range(len(kinds)), group_size):
            orders = math.factorial(group_size) / math.prod(
                math.factorial(count) for count in Counter(family).values()
            )
            chosen = [kinds[kind] for kind in family]
            rewards = [answers[i].reward for i, _ in chosen]
            advantages = finished_advantages(rewards, [steps for _, steps in chosen], siblings_needed)
            rows.append((orders / _QUANTILES**group_size, [i for i, _ in chosen], advantages))
    else:
        size = group_size if rule == "all" else _PAIR
        for chosen_answers in itertools.product(range(len(answers)), repeat=group_size):
            rewards = [answers[i].reward for i in chosen_answers]
            parts = [rewards[start : start + size] for start in range(0, group_size, size)]
            compared = [leave_one_out(part).advantages for part in parts]
            rows.append((1.0, chosen_answers, np.concatenate(compared).tolist()))
    weights, chosen_rows, advantage_rows = zip(*rows, strict=True)
    return Courses(np.array(weights), np.array(chosen_rows), np.array(advantage_rows))


def finished_advantages(
    rewards: Sequence[float], steps: Sequence[int], siblings_needed: int = 1
) -> list[float]:
    """Return the advantages of a family whose episodes take so many steps of the learner.

    Args:
        rewards: [G] of each episode.
        steps: [G] when each finishes.
        siblings_needed: Finished siblings that each waits for.
    """
    names = [part_name(0, part) for part in range(len(rewards))]
    outcomes = dict(zip(names, map(Outcome, rewards, [1] * len(rewards)), strict=True))
    advantages: dict[str, float] = {}
    known: dict[str, Outcome] = {}
    for now in sorted(set(steps)):
        left = [i for i, name in enumerate(names) if name not in advantages]
        done = {names[i] for i in left if steps[i] <= now}
        outstanding = [
            OutstandingGroup(
                group_id=names[i],
                serial=i,
                environment="e",
                settled=names[i] in done,
                start=PolicyVersion(0, 0),
            )
            for i in left
        ]
        view = comparable(outstanding, {"g00000000": known.keys()}, siblings_needed, groups_per_batch=1)
        taken = [group.group_id for group in view.groups if group.settled]
        known |= {name: outcomes[name] for name in done}
        compared = among_siblings(by_group(leave_one_out), taken, [known])([[outcomes[n]] for n in taken])
        advantages |= {name: float(one.advantages[0]) for name, one in zip(taken, compared, strict=True)}
    return [advantages[name] for name in names]


class Estimate(NamedTuple):
    """The estimated gradient of a family.

    Attributes:
        mean: [A] its expectation.
        variance: Its variance, added up over the coordinates.
    """

    mean: FloatArray
    variance: float


def estimate(of: Courses, policy: FloatArray) -> Estimate:
    """Return the expectation and variance of the gradient, a mean over the episodes of a family."""
    probabilities = of.weights * policy[of.answers].prod(axis=1)
    scores = np.eye(len(policy))[of.answers] - policy  # [M, G, A]
    gradients = np.einsum("mga,mg->ma", scores, of.advantages) / of.advantages.shape[1]
    mean = probabilities @ gradients
    return Estimate(mean, float(probabilities @ (gradients**2).sum(axis=1) - mean @ mean))


def true_gradient(answers: Sequence[Answer], policy: FloatArray) -> FloatArray:
    """Return the gradient of the expected reward by the logits."""
    rewards = np.array([answer.reward for answer in answers])
    return policy * (rewards - policy @ rewards)


def learn(answers: Sequence[Answer], of: Courses) -> dict[str, Any]:
    """Follow the expected gradient from the even policy; return the reward on the way and the last policy."""
    rewards = np.array([answer.reward for answer in answers])
    logits = np.zeros(len(answers))
    curve: dict[int, float] = {}
    for step in range(_STEPS + 1):
        policy = np.exp(logits - logits.max())
        policy /= policy.sum()
        if step in (0, 20, 100, 500, _STEPS):
            curve[step] = round(float(policy @ rewards), 4)
        logits = logits + _RATE * estimate(of, policy).mean
    return {"reward_by_step": curve, "policy": [round(float(p), 4) for p in policy]}


def by_size() -> list[dict[str, Any]]:
    """Return the relative bias where short answers are wrong, by how many siblings are waited for."""
    problem = PROBLEMS[0]
    rows = []
    for group_size, needed in ((2, 1), (4, 1), (4, 2), (4, 3), (8, 1), (8, 3)):
        of = courses(problem.answers, "finished", group_size, needed)
        compared = _compare(problem, of, np.array(problem.policies["even"]))
        rows.append(
            {
                "group_size": group_size,
                "min_group_size": needed + 1,
                "relative_bias": round(compared["relative_bias"], 4),
            }
        )
    return rows


def worth_of_length(policy: Sequence[float]) -> float:
    """Return how much more reward a long way must give than a short one to be preferred by `finished`.

    Beside both there is a quick guess that is always wrong. An estimate without bias prefers the long way if
    it gives anything more. Advantages are linear in rewards: two points tell where the preference turns.

    Args:
        policy: Probabilities of the guess, the short and the long way.
    """
    guess, short, _ = PROBLEMS[3].answers

    def preference(reward: float) -> float:
        of = courses((guess, short, Answer("long", reward, 48.0)), "finished")
        mean = estimate(of, np.array(policy)).mean
        return float(mean[2] / policy[2] - mean[1] / policy[1])

    at_equal, at_one = preference(short.reward), preference(1.0)
    return (1.0 - short.reward) * at_equal / (at_equal - at_one)


def report(problem: Problem) -> dict[str, Any]:
    """Return the bias on one problem, by rule and policy, and what it leads to."""
    rows: dict[str, Any] = {}
    for rule in RULES:
        of = courses(problem.answers, rule)
        rows[rule] = {
            "policies": {name: _compare(problem, of, np.array(p)) for name, p in problem.policies.items()},
            "learning": learn(problem.answers, of),
        }
    return {"answers": [answer._asdict() for answer in problem.answers], "rules": rows}


def _compare(problem: Problem, of: Courses, policy: FloatArray) -> dict[str, Any]:
    true, found = true_gradient(problem.answers, policy), estimate(of, policy)
    length = float(np.linalg.norm(true))
    return {
        "bias": float(np.linalg.norm(found.mean - true)),
        "relative_bias": float(np.linalg.norm(found.mean - true)) / length,
        "progress": float(found.mean @ true) / length**2,
        "true": true.round(5).tolist(),
        "expected": found.mean.round(5).tolist(),
        "standard_deviation": math.sqrt(found.variance),
    }
