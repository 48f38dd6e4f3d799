"""GAE: generalized advantages from the values of a critic, on the host in float64.

Legend: N episodes, F tokens of all of them.
"""

from __future__ import annotations

import numpy as np

from forebay.objectives.episodes import FloatArray, IntArray, TokenCredit, discounted_sums, following


def generalized_advantages(
    rewards: FloatArray,
    values: FloatArray,
    last_values: FloatArray,
    lengths: IntArray,
    *,
    gamma: float = 1.0,
    gae_lambda: float = 1.0,
) -> TokenCredit:
    """Mix the n-step advantages of every token: `A_t = delta_t + gamma lambda A_(t+1)`.

    `delta_t = r_t + gamma V(s_(t+1)) - V(s_t)`, `V(s_(t+1))` that of the next token the policy sampled in
    the same episode: what the environment says in between takes no time and has no value of its own. With
    lambda 1 an advantage is the rest of the episode's rewards less V; with 0 it looks one token ahead.

    Args:
        rewards: [F] float64, what is gained by each token; usually 0 but at the last one of a turn.
        values: [F] float64, `V(s_t)`: of the state that the token was sampled in.
        last_values: [N] float64, value of the state after an episode's last token; 0 where it terminated.
        lengths: [N] tokens of each episode, at least 1.
        gamma: Discount per token.
        gae_lambda: Weight of the longer views, 0 to 1.

    Returns:
        The advantages, and the value's targets `A_t + V(s_t)`: the lambda-returns.

    Raises:
        RecordError: The arrays do not belong together.

    Example:
        >>> rewards, values = np.array([0.0, 1.0]), np.array([0.5, 0.25])
        >>> generalized_advantages(rewards, values, np.zeros(1), np.array([2])).advantages.tolist()
        [0.5, 0.75]

    References:
        Schulman et al. 2016, High-Dimensional Continuous Control Using Generalized Advantage Estimation,
        equations 11, 12 and 16, https://arxiv.org/abs/1506.02438.
    """
    errors = rewards + gamma * following(values, last_values, lengths) - values
    advantages = discounted_sums(errors, np.full(errors.shape, gamma * gae_lambda), lengths)
    return TokenCredit(advantages, advantages + values)
