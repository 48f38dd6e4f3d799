"""An independent oracle for what a critic makes of episodes: sums as printed in the papers, float64 loops.

Nothing here is shared with the code under test; no recursion either. An episode is a list of tokens, those of
the environment among them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Step:
    """A token: what it gained, what its state was worth, how likely it has become."""

    reward: float = 0.0
    value: float = 0.0
    log_ratio: float = 0.0
    sampled: bool = True


@dataclass(frozen=True)
class Episode:
    steps: Sequence[Step]
    last_value: float = 0.0

    @property
    def sampled(self) -> list[Step]:
        return [step for step in self.steps if step.sampled]


def gae(episode: Episode, gamma: float, lam: float) -> list[float]:
    """Equation 16 of the paper, term by term."""
    deltas = _deltas(episode, gamma)
    return [
        sum((gamma * lam) ** later * deltas[t + later] for later in range(len(deltas) - t))
        for t in range(len(deltas))
    ]


def lambda_returns(episode: Episode, gamma: float, lam: float) -> list[float]:
    """The same targets from n-step returns: `(1 - lam) sum_n lam^(n-1) G^(n)`, the last taking the rest."""
    steps, values = episode.sampled, _values(episode)
    results = []
    for t in range(len(steps)):
        longest = len(steps) - t
        looks = []
        for n in range(1, longest + 1):
            gained = sum(gamma**k * steps[t + k].reward for k in range(n))
            looks.append(gained + gamma**n * values[t + n])
        weights = [(1 - lam) * lam ** (n - 1) for n in range(1, longest)] + [lam ** (longest - 1)]
        results.append(sum(weight * look for weight, look in zip(weights, looks, strict=True)))
    return results


def vtrace(
    episode: Episode, gamma: float, lam: float, rho_cap: float, c_cap: float
) -> tuple[list[float], list[float]]:
    """Equation 1 of the paper, products written out; targets and advantages without their ratio."""
    steps, values, deltas = episode.sampled, _values(episode), _deltas(episode, gamma)
    ratios = [math.exp(step.log_ratio) for step in steps]
    targets = []
    for s in range(len(steps)):
        total = values[s]
        for t in range(s, len(steps)):
            passed_on = math.prod(lam * min(c_cap, ratios[i]) for i in range(s, t))
            total += gamma ** (t - s) * passed_on * min(rho_cap, ratios[t]) * deltas[t]
        targets.append(total)
    ahead = [
        values[t + 1] if t + 1 == len(steps) else lam * targets[t + 1] + (1 - lam) * values[t + 1]
        for t in range(len(steps))
    ]
    return targets, [step.reward + gamma * ahead[t] - values[t] for t, step in enumerate(steps)]


def turn_returns(group: Sequence[Sequence[float] | None], gamma: float) -> list[list[float]]:
    """Each turn's later rewards, less their mean over the members that came as far."""
    returns = [
        [sum(gamma ** (k - t) * own[k] for k in range(t, len(own))) for t in range(len(own))]
        for own in ([] if own is None else own for own in group)
    ]
    results = []
    for own in returns:
        row = []
        for t, value in enumerate(own):
            there = [other[t] for other in returns if len(other) > t]
            row.append(0.0 if len(set(there)) == 1 else value - sum(there) / len(there))
        results.append(row)
    return results


def value_loss(value: float, old: float, target: float, clip: float, huber: float) -> float:
    """One token's value loss, case by case."""

    def distance(error: float) -> float:
        return error**2 / 2 if abs(error) <= huber else huber * (abs(error) - huber / 2)

    near = min(max(value, old - clip), old + clip)
    return max(distance(value - target), distance(near - target))


def random_episodes(seed: int, lengths: Sequence[int]) -> list[Episode]:
    """Draw episodes; every other one is truncated, and about a third of the tokens are the environment's."""
    rng = np.random.default_rng(seed)

    def step(sampled: bool) -> Step:
        if not sampled:
            return Step(math.nan, math.nan, math.nan, False)
        return Step(float(rng.normal()), float(rng.normal()), float(rng.normal(0, 0.6)))

    return [
        Episode(
            [step(i == 0 or bool(rng.random() < 0.7)) for i in range(length)],
            float(rng.normal()) if number % 2 else 0.0,
        )
        for number, length in enumerate(lengths)
    ]


def _values(episode: Episode) -> list[float]:
    return [step.value for step in episode.sampled] + [episode.last_value]


def _deltas(episode: Episode, gamma: float) -> list[float]:
    values = _values(episode)
    return [step.reward + gamma * values[t + 1] - values[t] for t, step in enumerate(episode.sampled)]
