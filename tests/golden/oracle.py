"""An independent oracle for the objectives: float64 loops, gradients by central differences.

Nothing here is shared with the code under test. A batch is a list of sequences, each a list of tokens;
`pack` lays them out in rows and fills everything that must not be looked at with NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True)
class Token:
    current: float
    proximal: float
    behavior: float
    advantage: float
    entropy: float = 0.5
    trained: bool = True


@dataclass(frozen=True)
class Recipe:
    loss: str = "decoupled_ppo"
    proximal: str = "recomputed"
    clip_low: float = 0.2
    clip_high: float = 0.28
    cap: float = math.inf
    geometric: tuple[float, float] = (0.0, math.inf)
    icepop: tuple[float, float] = (0.0, math.inf)
    entropy_coef: float = 0.0
    reduction: str = "token"
    constant_tokens: int = 1


Batch = Sequence[Sequence[Token]]


def loss(batch: Batch, recipe: Recipe) -> float:
    """Evaluate the batch's loss with every stopped quantity taken from the same batch."""
    return _loss(batch, batch, recipe)


def gradient(batch: Batch, recipe: Recipe, step: float = 1e-6) -> list[list[float]]:
    """Differentiate by each current logprob; stopped quantities are frozen at the unmoved batch."""
    result = []
    for s, sequence in enumerate(batch):
        row = []
        for t, token in enumerate(sequence):
            ends = []
            for sign in (1, -1):
                moved = [list(other) for other in batch]
                moved[s][t] = replace(token, current=token.current + sign * step)
                ends.append(_loss(moved, batch, recipe))
            row.append((ends[0] - ends[1]) / (2 * step))
        result.append(row)
    return result


def rejected(sequence: Sequence[Token], recipe: Recipe) -> list[bool]:
    """Say which trained tokens of a sequence the two rejections remove."""
    trained = [token for token in sequence if token.trained]
    product = math.prod(_weight(token, recipe) for token in trained)
    mean = product ** (1 / len(trained)) if trained else 1.0
    whole = not recipe.geometric[0] <= mean <= recipe.geometric[1]
    return [
        token.trained and (whole or not recipe.icepop[0] <= _weight(token, recipe) <= recipe.icepop[1])
        for token in sequence
    ]


def effective_sample_size(batch: Batch, recipe: Recipe) -> float:
    """Kong's normalized effective sample size of the weights that were applied."""
    weights = []
    for sequence in batch:
        for token, gone in zip(sequence, rejected(sequence, recipe), strict=True):
            if token.trained:
                weights.append(0.0 if gone else _applied_weight(token, recipe))
    return sum(weights) ** 2 / (len(weights) * sum(w * w for w in weights))


def divergence(batch: Batch) -> dict[str, float]:
    """Mean over trained tokens of how far the current policy is from the one that acted, and of entropy."""
    trained = [token for sequence in batch for token in sequence if token.trained]
    gaps = [token.current - token.behavior for token in trained]
    products = [[token.current - token.behavior for token in sequence if token.trained] for sequence in batch]
    nonempty = [logs for logs in products if logs]
    return {
        "k3": sum(math.exp(gap) - 1 - gap for gap in gaps) / len(gaps),
        "logprob_mismatch": sum(abs(gap) for gap in gaps) / len(gaps),
        "entropy": sum(token.entropy for token in trained) / len(trained),
        "log_ratio_product": sum(sum(logs) for logs in nonempty) / len(nonempty),
        "geometric_ratio": math.exp(sum(sum(logs) / len(logs) for logs in nonempty) / len(nonempty)),
    }


def _loss(moved: Batch, frozen: Batch, recipe: Recipe) -> float:
    totals, counts = [], []
    for sequence, still in zip(moved, frozen, strict=True):
        gone = rejected(still, recipe)
        total, count = 0.0, 0
        for token, fixed, out in zip(sequence, still, gone, strict=True):
            if not token.trained:
                continue
            count += 1
            if not out:
                total += _token_loss(token, fixed, recipe) - recipe.entropy_coef * token.entropy
        totals.append(total)
        counts.append(count)
    if recipe.reduction == "token":
        return sum(totals) / max(sum(counts), 1)
    nonempty = max(sum(count > 0 for count in counts), 1)
    if recipe.reduction == "sequence":
        return sum(total / count for total, count in zip(totals, counts, strict=True) if count) / nonempty
    return sum(totals) / recipe.constant_tokens / nonempty


def _token_loss(token: Token, fixed: Token, recipe: Recipe) -> float:
    if recipe.loss == "cross_entropy":
        return -token.current
    if recipe.loss == "reinforce":
        return -min(math.exp(fixed.current - fixed.behavior), recipe.cap) * token.advantage * token.current
    if recipe.loss == "ppo_clip":
        return -_surrogate(math.exp(token.current - token.behavior), token.advantage, recipe)
    anchor = token.proximal if recipe.proximal == "recomputed" else fixed.current
    weight = min(math.exp(anchor - token.behavior), recipe.cap)
    return -weight * _surrogate(math.exp(token.current - anchor), token.advantage, recipe)


def _surrogate(ratio: float, advantage: float, recipe: Recipe) -> float:
    clipped = min(max(ratio, 1 - recipe.clip_low), 1 + recipe.clip_high)
    return min(ratio * advantage, clipped * advantage)


def _weight(token: Token, recipe: Recipe) -> float:
    if recipe.loss == "cross_entropy":
        return 1.0
    recomputed = recipe.loss == "decoupled_ppo" and recipe.proximal == "recomputed"
    return math.exp((token.proximal if recomputed else token.current) - token.behavior)


def _applied_weight(token: Token, recipe: Recipe) -> float:
    return _weight(token, recipe) if recipe.loss == "ppo_clip" else min(_weight(token, recipe), recipe.cap)


@dataclass(frozen=True)
class Packed:
    """The arrays of packed rows, [B, T]; `place[s][t]` is where a sequence's token went."""

    logprobs: np.ndarray
    entropy: np.ndarray
    loss_mask: np.ndarray
    advantages: np.ndarray
    behavior_logprobs: np.ndarray
    proximal_logprobs: np.ndarray
    segment_ids: np.ndarray
    place: list[list[tuple[int, int]]]


def pack(batch: Batch, layout: Sequence[Sequence[int]], length: int, poison: float = math.nan) -> Packed:
    """Lay sequences out in rows: `layout[b]` lists the indices of the sequences in row b, in order."""
    shape = (len(layout), length)

    def blank() -> np.ndarray:
        return np.full(shape, poison, dtype=np.float32)

    logprobs, entropy, advantages, behavior, proximal = blank(), blank(), blank(), blank(), blank()
    mask, segments = np.zeros(shape, dtype=bool), np.zeros(shape, dtype=np.int32)
    place: list[list[tuple[int, int]]] = [[] for _ in batch]
    for b, row in enumerate(layout):
        column = 0
        for number, s in enumerate(row, start=1):
            for token in batch[s]:
                segments[b, column] = number
                if token.trained:
                    mask[b, column] = True
                    logprobs[b, column], entropy[b, column] = token.current, token.entropy
                    advantages[b, column] = token.advantage
                    behavior[b, column], proximal[b, column] = token.behavior, token.proximal
                place[s].append((b, column))
                column += 1
    return Packed(logprobs, entropy, mask, advantages, behavior, proximal, segments, place)


def random_batch(
    seed: int, lengths: Sequence[int], spread: float = 0.5, trained: float = 0.7
) -> list[list[Token]]:
    """Draw a batch whose three policies differ by about `spread` nats per token."""
    rng = np.random.default_rng(seed)

    def token(advantage: float) -> Token:
        current = -rng.exponential(1.5) - 0.05
        return Token(
            # Rounded as the device holds them, so that no clip or bound is decided differently.
            current=float(np.float32(current)),
            proximal=float(np.float32(current + rng.normal(0, spread))),
            behavior=float(np.float32(current + rng.normal(0, spread))),
            advantage=advantage,
            entropy=float(np.float32(rng.uniform(0.1, 2.0))),
            trained=bool(rng.random() < trained),
        )

    return [[token(float(np.float32(rng.normal()))) for _ in range(length)] for length in lengths]


def advantages(rewards: Sequence[float | None], kind: str, ddof: int = 1, eps: float = 1e-6) -> list[float]:
    """Group-relative advantages by the textbook, siblings of a missing reward unaffected."""
    known = [reward for reward in rewards if reward is not None and math.isfinite(reward)]
    compute: dict[str, Callable[[float], float]] = {
        "group_mean": lambda r: r - sum(known) / len(known),
        "group_mean_std": lambda r: (r - sum(known) / len(known)) / (_deviation(known, ddof) + eps),
        "leave_one_out": lambda r: r - (sum(known) - r) / (len(known) - 1),
    }
    silent = len(known) < 2 or all(reward == known[0] for reward in known)
    return [
        0.0 if silent or reward is None or not math.isfinite(reward) else compute[kind](reward)
        for reward in rewards
    ]


def _deviation(values: Sequence[float], ddof: int) -> float:
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - ddof))
