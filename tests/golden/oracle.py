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
    staleness: int = 0
    reference: float = -1.0


@dataclass(frozen=True)
class Recipe:
    loss: str = "decoupled_ppo"
    proximal: str = "recomputed"
    ratio: str = "token"
    clip_low: float = 0.2
    clip_high: float = 0.28
    clip_rule: str = "fixed"
    second_moment_limit: float = 0.04
    balance_target: float = 1.0
    balance_clip_low: float = 0.2
    balance_clip_high: float = 1.0
    balance_step: float = 0.05
    dual_clip: float = math.inf
    tv_limit: float = 0.15
    correction: str = "token_tis"
    cap: float = math.inf
    geometric: tuple[float, float] = (0.0, math.inf)
    icepop: tuple[float, float] = (0.0, math.inf)
    entropy_coef: float = 0.0
    reduction: str = "token"
    constant_tokens: int = 1
    kl: str = "k3"
    kl_in: str = "loss"
    kl_coef: float = 0.0


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
    """Say which trained tokens of a sequence the rejections remove."""
    trained = [token for token in sequence if token.trained]
    product = math.prod(_weight(token, recipe) for token in trained)
    mean = product ** (1 / len(trained)) if trained else 1.0
    whole = not recipe.geometric[0] <= mean <= recipe.geometric[1]
    whole = whole or (recipe.correction == "sequence_mis" and product > recipe.cap)
    return [
        token.trained
        and (
            whole
            or not recipe.icepop[0] <= _weight(token, recipe) <= recipe.icepop[1]
            or (recipe.correction == "token_mis" and _weight(token, recipe) > recipe.cap)
        )
        for token in sequence
    ]


def effective_sample_size(batch: Batch, recipe: Recipe) -> float:
    """Kong's normalized effective sample size of the weights that were applied."""
    weights = []
    for sequence in batch:
        for t, gone in enumerate(rejected(sequence, recipe)):
            if sequence[t].trained:
                weights.append(0.0 if gone else _applied_weight(sequence, t, recipe))
    return sum(weights) ** 2 / (len(weights) * sum(w * w for w in weights))


def sequence_effective_sample_size(batch: Batch) -> float:
    """The same over whole sequences, each weighing the product of its trained tokens' ratios."""
    weights = [
        math.prod(math.exp(token.current - token.behavior) for token in sequence if token.trained)
        for sequence in batch
        if any(token.trained for token in sequence)
    ]
    return sum(weights) ** 2 / (len(weights) * sum(w * w for w in weights))


def divergence(batch: Batch) -> dict[str, float]:
    """Mean over trained tokens of how far the current policy is from the one that acted, and of entropy."""
    trained = [token for sequence in batch for token in sequence if token.trained]
    gaps = [token.current - token.behavior for token in trained]
    products = [[token.current - token.behavior for token in sequence if token.trained] for sequence in batch]
    nonempty = [logs for logs in products if logs]
    away = [token.current - token.reference for token in trained]
    return {
        "reference_kl": sum(math.exp(-gap) - 1 + gap for gap in away) / len(away),
        "k3": sum(math.exp(gap) - 1 - gap for gap in gaps) / len(gaps),
        "logprob_mismatch": sum(abs(gap) for gap in gaps) / len(gaps),
        "entropy": sum(token.entropy for token in trained) / len(trained),
        "log_ratio_product": sum(sum(logs) for logs in nonempty) / len(nonempty),
        "geometric_ratio": math.exp(sum(sum(logs) / len(logs) for logs in nonempty) / len(nonempty)),
    }


def clip_bounds(batch: Batch, recipe: Recipe) -> tuple[float, float]:
    """The bounds of a ratio that is clipped, below and above 1."""
    low, high = 1 - recipe.clip_low, 1 + recipe.clip_high
    moves = [
        (math.exp(token.current - token.behavior), token.advantage)
        for sequence in batch
        for token in sequence
        if token.trained
    ]
    if recipe.clip_rule == "second_moment":
        width = _second_moment_width(moves, recipe.second_moment_limit)
        return min(low, math.exp(-width)), max(high, math.exp(width))
    if recipe.clip_rule == "balance":
        low_end, high_end = 1 - recipe.balance_clip_low, 1 + recipe.balance_clip_high
        while _imbalance(moves, low, high, recipe.balance_target) < 0 and low < low_end:
            low = min(low_end, low + recipe.balance_step)
        while _imbalance(moves, low, high, recipe.balance_target) < 0 and high < high_end:
            high = min(high_end, high + recipe.balance_step)
    return low, high


def _second_moment_width(moves: Sequence[tuple[float, float]], limit: float) -> float:
    """By bisection: where pushed log-ratios are to be cut so that their mean square is `limit`."""
    pushed = [abs(math.log(ratio)) for ratio, advantage in moves if advantage * math.log(ratio) > 0]
    low, high = 0.0, 20.0
    for _ in range(200):
        width = (low + high) / 2
        if sum(min(one, width) ** 2 for one in pushed) <= limit * len(pushed):
            low = width
        else:
            high = width
    return low


def _imbalance(moves: Sequence[tuple[float, float]], low: float, high: float, target: float) -> float:
    """What good tokens contribute, less what they should, given the bad ones."""
    total = 0.0
    for ratio, advantage in moves:
        total += advantage * min(ratio, high) if advantage > 0 else target * advantage * max(ratio, low)
    return total


def _loss(moved: Batch, frozen: Batch, recipe: Recipe) -> float:
    if recipe.clip_rule != "fixed":
        low, high = clip_bounds(frozen, recipe)
        recipe = replace(recipe, clip_rule="fixed", clip_low=1 - low, clip_high=high - 1)
    totals, counts = [], []
    for sequence, still in zip(moved, frozen, strict=True):
        gone = rejected(still, recipe)
        total, count = 0.0, 0
        for t, token in enumerate(sequence):
            if not token.trained:
                continue
            count += 1
            if not gone[t]:
                total += _token_loss(token, still, t, recipe) - recipe.entropy_coef * token.entropy
                total += _penalty(token, recipe)
        totals.append(total)
        counts.append(count)
    if recipe.reduction == "token":
        return sum(totals) / max(sum(counts), 1)
    nonempty = max(sum(count > 0 for count in counts), 1)
    if recipe.reduction == "sequence":
        return sum(total / count for total, count in zip(totals, counts, strict=True) if count) / nonempty
    return sum(totals) / recipe.constant_tokens / nonempty


def gain(batch: Batch, recipe: Recipe) -> float:
    """Mean over trained tokens of `(min(current / behavior, 5) - 1) A`, each with its own worth."""
    gains = [
        (min(math.exp(token.current - token.behavior), 5.0) - 1.0) * _worth(sequence, t, recipe)
        for sequence in batch
        for t, token in enumerate(sequence)
        if token.trained
    ]
    return sum(gains) / len(gains)


def _worth(sequence: Sequence[Token], t: int, recipe: Recipe) -> float:
    """A token's advantage, less the penalty for itself and what comes after it if that is in the reward."""
    if recipe.kl_in != "reward":
        return sequence[t].advantage
    away = sum(_estimate(later, recipe) for later in sequence[t:] if later.trained)
    return sequence[t].advantage - recipe.kl_coef * away


def _token_loss(token: Token, still: Sequence[Token], t: int, recipe: Recipe) -> float:
    """One token's loss as a function of its own current logprob; `still` is its sequence, unmoved."""
    fixed = still[t]
    advantage = _worth(still, t, recipe)
    weight = _applied_weight(still, t, recipe)
    if recipe.loss == "cross_entropy":
        return -token.current
    if recipe.loss in ("reinforce", "cispo", "topr"):
        return -weight * advantage * token.current
    if recipe.loss == "dppo":
        moved = math.exp(fixed.current) - math.exp(fixed.behavior)
        stops = moved > recipe.tv_limit if advantage > 0 else -moved > recipe.tv_limit
        return 0.0 if stops and advantage != 0 else -weight * advantage * token.current
    if recipe.loss == "ppo_clip":
        return -_surrogate(_ratio(token, still, t, recipe), advantage, recipe)
    return -weight * _surrogate(_ratio(token, still, t, recipe), advantage, recipe)


def _penalty(token: Token, recipe: Recipe) -> float:
    return recipe.kl_coef * _estimate(token, recipe) if recipe.kl_in == "loss" else 0.0


def _estimate(token: Token, recipe: Recipe) -> float:
    gap = token.current - token.reference
    return {"k1": gap, "k2": gap * gap / 2, "k3": math.exp(-gap) - 1 + gap}[recipe.kl]


def _ratio(token: Token, still: Sequence[Token], t: int, recipe: Recipe) -> float:
    """The ratio that is clipped: a product over the token's part of the sequence, to the power 1 / n."""
    part = _part(still, t, recipe.ratio)
    product = 1.0
    for index in part:
        product *= math.exp(still[index].current - _anchor(still[index], recipe))
    return product ** (1 / len(part)) * math.exp(token.current - still[t].current)


def _part(sequence: Sequence[Token], t: int, ratio: str) -> list[int]:
    if ratio == "token":
        return [t]
    if ratio == "sequence":
        return [index for index, token in enumerate(sequence) if token.trained]
    first = last = t
    while first > 0 and sequence[first - 1].trained:
        first -= 1
    while last + 1 < len(sequence) and sequence[last + 1].trained:
        last += 1
    return list(range(first, last + 1))


def _surrogate(ratio: float, advantage: float, recipe: Recipe) -> float:
    clipped = min(max(ratio, 1 - recipe.clip_low), 1 + recipe.clip_high)
    value = min(ratio * advantage, clipped * advantage)
    return max(value, recipe.dual_clip * advantage) if advantage < 0 else value


def _anchor(token: Token, recipe: Recipe) -> float:
    """The logprob that the ratio compares with."""
    if recipe.loss != "decoupled_ppo":
        return token.behavior
    if recipe.proximal == "recomputed":
        return token.proximal
    if recipe.proximal == "interpolated" and token.staleness >= 1:
        share = 1 / token.staleness
        return share * token.behavior + (1 - share) * token.current
    return token.current


def _weight(token: Token, recipe: Recipe) -> float:
    if recipe.loss == "cross_entropy":
        return 1.0
    newer = _anchor(token, recipe) if recipe.loss == "decoupled_ppo" else token.current
    return math.exp(newer - token.behavior)


def _applied_weight(sequence: Sequence[Token], t: int, recipe: Recipe) -> float:
    token = sequence[t]
    weight = _weight(token, recipe)
    product = math.prod(_weight(other, recipe) for other in sequence if other.trained)
    if recipe.loss == "ppo_clip":
        return _ratio(token, sequence, t, recipe)
    if recipe.loss == "cispo":
        return min(max(weight, 1 - recipe.clip_low), 1 + recipe.clip_high)
    if recipe.loss == "topr":
        return 1.0 if token.advantage >= 0 else min(product, 1.0)
    if recipe.loss in ("dppo", "cross_entropy"):
        return min(weight, recipe.cap)
    if recipe.correction == "none":
        return 1.0
    return min(product if recipe.correction.startswith("sequence") else weight, recipe.cap)


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
    staleness: np.ndarray
    reference_logprobs: np.ndarray
    place: list[list[tuple[int, int]]]


def pack(batch: Batch, layout: Sequence[Sequence[int]], length: int, poison: float = math.nan) -> Packed:
    """Lay sequences out in rows: `layout[b]` lists the indices of the sequences in row b, in order."""
    shape = (len(layout), length)

    def blank() -> np.ndarray:
        return np.full(shape, poison, dtype=np.float32)

    logprobs, entropy, advantages, behavior, proximal = blank(), blank(), blank(), blank(), blank()
    reference = blank()
    mask, segments = np.zeros(shape, dtype=bool), np.zeros(shape, dtype=np.int32)
    staleness = np.full(shape, -99, dtype=np.int32)
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
                    staleness[b, column], reference[b, column] = token.staleness, token.reference
                place[s].append((b, column))
                column += 1
    arrays = (logprobs, entropy, mask, advantages, behavior, proximal, segments, staleness, reference)
    return Packed(*arrays, place)


def random_batch(
    seed: int, lengths: Sequence[int], spread: float = 0.5, trained: float = 0.7
) -> list[list[Token]]:
    """Draw a batch whose three policies differ by about `spread` nats per token."""
    rng, more = np.random.default_rng(seed), np.random.default_rng(seed + 1000)

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
            staleness=int(more.integers(0, 5)),
            reference=float(np.float32(current + more.normal(0, spread))),
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


def batch_advantages(
    groups: Sequence[Sequence[float | None]], kind: str, ddof: int = 1, eps: float = 1e-6
) -> list[list[float]]:
    """Advantages of every group of a batch, in units of their spread over all its scored members."""

    def scored(reward: float | None) -> bool:
        return reward is not None and math.isfinite(reward)

    plain = [
        [reward if scored(reward) else 0.0 for reward in rewards]
        if kind == "none"
        else advantages(rewards, kind, ddof, eps)
        for rewards in groups
    ]
    values = [
        value
        for members, rewards in zip(plain, groups, strict=True)
        for value, reward in zip(members, rewards, strict=True)
        if scored(reward)
    ]
    if not values or max(values) == min(values):
        return [[0.0] * len(members) for members in plain]
    mean, spread = sum(values) / len(values), _deviation(values, ddof) + eps
    return [
        [
            (value - mean) / spread if scored(reward) else 0.0
            for value, reward in zip(members, rewards, strict=True)
        ]
        for members, rewards in zip(plain, groups, strict=True)
    ]


def overlong(length: int, longest: int, cache: int) -> float:
    """DAPO's soft punishment of a long answer, case by case as printed."""
    if length <= longest - cache:
        return 0.0
    if length <= longest:
        return ((longest - cache) - length) / cache
    return -1.0


def _deviation(values: Sequence[float], ddof: int) -> float:
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - ddof))
