"""Credit by turn without a critic: each turn is judged by what came after it, on the host in float64.

Legend: G members of the group, T turns of one member's episode.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from forebay.objectives.advantages import GroupAdvantages
from forebay.objectives.episodes import FloatArray, discounted_sums


def turn_rewards(reward: float | None, rewards_by_turn: Sequence[float | None]) -> FloatArray | None:
    """Return what each turn of an episode was rewarded, so that they add up to the episode's reward.

    What the turns' own rewards leave open (an episode judged as a whole, a penalty for its length) goes to
    the last turn.

    Args:
        reward: Of the whole episode; None or not finite if it could not be scored.
        rewards_by_turn: Of each turn; None where it had none.

    Returns:
        [T] float64; None without a score.

    Example:
        >>> turn_rewards(1.5, [0.5, None, 0.25]).tolist(), turn_rewards(None, [0.5])
        ([0.5, 0.0, 1.0], None)
    """
    if reward is None or not np.isfinite(reward):
        return None
    rewards = np.array([0.0 if gained is None else gained for gained in rewards_by_turn], np.float64)
    if len(rewards):
        rewards[-1] = reward - rewards[:-1].sum()
    return rewards


def turn_returns(members: Sequence[FloatArray | None], *, gamma: float = 1.0) -> GroupAdvantages:
    """Compare what came after a turn with what came after the same turn of the siblings.

    `G_(i,t) = r_(i,t) + gamma G_(i,t+1)`, `A_(i,t) = G_(i,t) - mean_j G_(j,t)` over the scored members j
    that came as far as turn t. All tokens of a turn share its advantage. A reward that came before a turn
    does not count for it, and an early turn is not compared with a late one, from which less is left to be
    gained.

    Args:
        members: Of each of the G members, [T] rewards by turn; None for one without a score.
        gamma: Discount per turn.

    Returns:
        The advantages, by turn; a member's own is that of its first turn. Where all returns of a turn are
        equal, or only one member reached it, they are exactly 0.

    Example:
        >>> group = turn_returns([np.array([1.0, 0.0]), np.array([0.0, 1.0]), np.array([0.0])])
        >>> [turns.round(3).tolist() for turns in group.turn_advantages]
        [[0.333, -0.5], [0.333, 0.5], [-0.667]]

    References:
        Ding et al. 2025, Empowering Multi-Turn Tool-Integrated Reasoning with Group Turn Policy Optimization
        (GTPO: rewards by turn, returns instead of their sum), https://arxiv.org/abs/2511.14846; Zeng et al.
        2025, Reinforcing Multi-Turn Reasoning in LLM Agents via Turn-Level Credit Assignment (MT-GRPO: a
        turn is compared with the same turn of the group), https://arxiv.org/abs/2505.11821. Neither is
        divided by a spread here, as in Dr. GRPO.
    """
    returns = [
        np.empty(0)
        if rewards is None or not len(rewards)
        else discounted_sums(rewards, np.full(rewards.shape, gamma), np.array([len(rewards)]))
        for rewards in members
    ]
    advantages = [np.zeros(len(own)) for own in returns]
    for turn in range(max(map(len, returns), default=0)):
        reached = [index for index, own in enumerate(returns) if len(own) > turn]
        values = np.array([returns[index][turn] for index in reached])
        if values.max() > values.min():
            for index, advantage in zip(reached, values - values.mean(), strict=True):
                advantages[index][turn] = advantage
    scored = np.array([rewards is not None for rewards in members], np.bool_)
    totals = np.array([own.sum() for own in members if own is not None])
    return GroupAdvantages(
        advantages=np.array([own[0] if len(own) else 0.0 for own in advantages]),
        scored=scored,
        zero_spread=bool(scored.any()) and not any(own.any() for own in advantages),
        reward_mean=float(totals.mean()) if totals.size else float("nan"),
        turn_advantages=tuple(advantages),
    )


def left_to_a_critic(members: Sequence[FloatArray | None]) -> GroupAdvantages:
    """Pass rewards on to a critic, whose values are computed by a forward pass just before the update.

    Args:
        members: Of each member, [T] rewards by turn; None for one without a score.

    Returns:
        Advantages of 0 until then. No group counts as without spread: its members are not compared with one
        another.
    """
    totals = np.array([own.sum() for own in members if own is not None])
    return GroupAdvantages(
        advantages=np.zeros(len(members)),
        scored=np.array([rewards is not None for rewards in members], np.bool_),
        zero_spread=False,
        reward_mean=float(totals.mean()) if totals.size else float("nan"),
        turn_rewards=tuple(members),
    )
