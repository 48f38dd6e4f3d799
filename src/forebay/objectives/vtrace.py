"""V-trace: values of the current policy from what an older one did, on the host in float64.

Legend: N episodes, F tokens of all of them.
"""

from __future__ import annotations

import numpy as np

from forebay.objectives.episodes import (
    FloatArray,
    IntArray,
    TokenCredit,
    check_tokens,
    discounted_sums,
    following,
)


def vtrace(
    log_ratios: FloatArray,
    rewards: FloatArray,
    values: FloatArray,
    last_values: FloatArray,
    lengths: IntArray,
    *,
    gamma: float = 1.0,
    trace_lambda: float = 1.0,
    rho_cap: float = 1.0,
    c_cap: float = 1.0,
) -> TokenCredit:
    """Correct the values of stale episodes by truncated ratios.

    `v_t = V(s_t) + delta_t + gamma c_t (v_(t+1) - V(s_(t+1)))`,
    `delta_t = rho_t (r_t + gamma V(s_(t+1)) - V(s_t))`, `rho_t = min(rho_cap, pi / mu)`,
    `c_t = lambda min(c_cap, pi / mu)`. `rho_cap` decides which policy's value is learned: pi's if it never
    cuts, nearly mu's if it is near 0. `c_cap` only decides how far ahead corrections reach.

    The advantage is `r_t + gamma (lambda v_(t+1) + (1 - lambda) V(s_(t+1))) - V(s_t)`. The paper's policy
    gradient multiplies it by `rho_t`; here the loss does, as it weighs every other stale token:
    `loss = "reinforce"` with `tis_cap = rho_cap` is the paper's. On fresh data it is the generalized
    advantage.

    Args:
        log_ratios: [F] float64, nats, `log(pi / mu)`: current policy over the one that acted.
        rewards: [F] float64, what is gained by each token.
        values: [F] float64, `V(s_t)`: of the state that the token was sampled in.
        last_values: [N] float64, value of the state after an episode's last token; 0 where it terminated.
        lengths: [N] tokens of each episode, at least 1.
        gamma: Discount per token.
        trace_lambda: Weight of the longer views, 0 to 1; the paper's remark 2.
        rho_cap: Bound of the ratio that weighs a temporal difference; `inf` for none.
        c_cap: Bound of the ratio that carries later differences back; at most `rho_cap`.

    Returns:
        The advantages without `rho_t`, and the value's targets `v_t`.

    Raises:
        RecordError: The arrays do not belong together.

    References:
        Espeholt et al. 2018, IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner
        Architectures, equation 1, remarks 1 and 2, section 4.2, https://arxiv.org/abs/1802.01561. With
        `c_cap = 1` the same as `rlax.vtrace` and, times `rho_t`, `rlax.vtrace_td_error_and_advantage`.
    """
    check_tokens(lengths, log_ratios=log_ratios, rewards=rewards, values=values)
    ratios = np.exp(log_ratios)
    after = following(values, last_values, lengths)
    errors = np.minimum(rho_cap, ratios) * (rewards + gamma * after - values)
    corrections = discounted_sums(errors, gamma * trace_lambda * np.minimum(c_cap, ratios), lengths)
    targets = values + corrections
    ahead = following(corrections, np.zeros(len(lengths)), lengths)
    return TokenCredit(rewards + gamma * (after + trace_lambda * ahead) - values, targets)
