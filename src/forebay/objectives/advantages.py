"""Group-relative advantages, on the host in float64.

Each estimator takes the rewards of one group, chosen by group id: two groups that happen to share a prompt
are never merged. A member whose reward is missing or not finite is left out of every statistic and is not
trained; its siblings are unaffected.
Legend: G members of the group.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Rewards = Sequence[float | None] | npt.NDArray[np.floating[Any]]


@dataclasses.dataclass(frozen=True, slots=True)
class GroupAdvantages:
    """The advantages of one group's members, in the order of their rewards.

    Attributes:
        advantages: [G] float64; 0 for a member without a score.
        scored: [G] bool; False where the reward is missing or not finite: mask the member's tokens.
        zero_spread: True if there are scores and all compare equal: every advantage is exactly 0.
        reward_mean: Mean over the scored members; NaN if there is none.
        turn_advantages: Per member, [T] float64 for the T turns of its episode; None if they share its own.
        turn_rewards: Per member, [T] float64, what a critic credits its tokens with, None without a score;
            None for the group if its advantages are final.
    """

    advantages: npt.NDArray[np.float64]
    scored: npt.NDArray[np.bool_]
    zero_spread: bool
    reward_mean: float
    turn_advantages: tuple[npt.NDArray[np.float64], ...] | None = None
    turn_rewards: tuple[npt.NDArray[np.float64] | None, ...] | None = None


class Outcome(NamedTuple):
    """What an episode came to.

    Attributes:
        reward: Its score; None if it has none.
        num_tokens: Tokens that the policy sampled in it.
        rewards_by_turn: What the environment gave for each of its turns; None where it gave nothing.
    """

    reward: float | None
    num_tokens: int
    rewards_by_turn: tuple[float | None, ...] = ()


AdvantageEstimator = Callable[[Rewards], GroupAdvantages]

# From the outcomes of all groups of a batch to the advantages of each.
BatchAdvantages = Callable[[Sequence[Sequence[Outcome]]], list[GroupAdvantages]]


def group_mean(rewards: Rewards) -> GroupAdvantages:
    """Subtract the group's mean reward: `A_i = r_i - mean(r)`.

    Args:
        rewards: [G] rewards of one group; None or NaN where a member has none.

    Returns:
        The advantages; all exactly 0 if the scores are equal or there is only one.

    Example:
        >>> group_mean([1.0, None, 0.0, 0.5]).advantages.tolist()
        [0.5, 0.0, -0.5, 0.0]

    References:
        Liu et al. 2025, Understanding R1-Zero-Like Training (Dr. GRPO), https://arxiv.org/abs/2503.20783.
    """
    return _estimate(rewards, lambda scores: scores - scores.mean())


def group_mean_std(rewards: Rewards, *, ddof: int = 1, eps: float = 1e-6) -> GroupAdvantages:
    """Subtract the group's mean and divide by its spread: `A_i = (r_i - mean(r)) / (std(r) + eps)`.

    Args:
        rewards: [G] rewards of one group; None or NaN where a member has none.
        ddof: 0 for the population's standard deviation, 1 for the sample's.
        eps: Added to the standard deviation, in units of reward.

    Returns:
        The advantages; all exactly 0 if the scores are equal or there is only one.

    References:
        Shao et al. 2024, DeepSeekMath (GRPO), section 4.1.2, https://arxiv.org/abs/2402.03300.
    """
    return _estimate(rewards, lambda scores: (scores - scores.mean()) / (scores.std(ddof=ddof) + eps))


def leave_one_out(rewards: Rewards) -> GroupAdvantages:
    """Subtract the mean of the other members: `A_i = r_i - (sum(r) - r_i) / (G - 1)`.

    Args:
        rewards: [G] rewards of one group; None or NaN where a member has none.

    Returns:
        The advantages; all exactly 0 if the scores are equal or there is only one.

    References:
        Ahmadian et al. 2024, Back to Basics (RLOO), equation 8, https://arxiv.org/abs/2402.14740.
    """
    return _estimate(rewards, lambda scores: scores - (scores.sum() - scores) / (scores.size - 1))


def no_baseline(rewards: Rewards) -> GroupAdvantages:
    """Compare a reward with nothing: `A_i = r_i`; only fit to be normalized over the batch.

    Args:
        rewards: [G] rewards of one group; None or NaN where a member has none.

    Returns:
        The rewards; a group without spread counts as any other.

    References:
        Hu et al. 2025, REINFORCE++ (the variant without a group's baseline),
        https://arxiv.org/abs/2501.03262.
    """
    compared = _estimate(rewards, lambda scores: scores)
    values = np.array([0.0 if reward is None else reward for reward in rewards], dtype=np.float64)
    return dataclasses.replace(compared, advantages=np.where(compared.scored, values, 0.0), zero_spread=False)


def by_group(estimator: AdvantageEstimator) -> BatchAdvantages:
    """Return the function of a whole batch that applies an estimator to the rewards of each group.

    Args:
        estimator: From one group's rewards to its members' advantages.

    Example:
        >>> estimate = by_group(group_mean)
        >>> [group.advantages.tolist() for group in estimate([[Outcome(1.0, 5), Outcome(0.0, 7)]])]
        [[0.5, -0.5]]
    """
    return lambda groups: [estimator([outcome.reward for outcome in group]) for group in groups]


def _estimate(
    rewards: Rewards, estimator: Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]
) -> GroupAdvantages:
    values = np.array([np.nan if reward is None else reward for reward in rewards], dtype=np.float64)
    scored = np.isfinite(values)
    scores = values[scored]
    advantages = np.zeros(values.shape, dtype=np.float64)
    # Testing the range, not the standard deviation: rounding of the mean leaves a residue that a tiny
    # deviation would blow up into a signal.
    spread = bool(scores.size) and float(scores.max() - scores.min()) > 0.0
    if spread:
        advantages[scored] = estimator(scores)
    return GroupAdvantages(
        advantages=advantages,
        scored=scored,
        zero_spread=bool(scores.size) and not spread,
        reward_mean=float(scores.mean()) if scores.size else float("nan"),
    )
