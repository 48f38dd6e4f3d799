"""DAPO's rules about whole episodes, on the host: overlong reward shaping, and which groups teach nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence


def overlong_penalty(num_tokens: int, *, max_tokens: int, cache_tokens: int) -> float:
    """Return what is added to an episode's reward for its length: 0, then a line down to -1.

    `0` up to `max_tokens - cache_tokens`, then `((max_tokens - cache_tokens) - n) / cache_tokens`, and `-1`
    beyond `max_tokens`. An answer that a limit cut off is then not suddenly worthless.

    Args:
        num_tokens: Tokens that the policy sampled in the episode.
        max_tokens: Length from which the whole penalty is due.
        cache_tokens: Width of the slope before it, tokens.

    Returns:
        Between -1 and 0, in units of reward.

    Example:
        >>> [overlong_penalty(n, max_tokens=100, cache_tokens=20) for n in (80, 85, 100, 120)]
        [0.0, -0.25, -1.0, -1.0]

    References:
        Yu et al. 2025, DAPO, equation 13, https://arxiv.org/abs/2503.14476.
    """
    over = num_tokens - (max_tokens - cache_tokens)
    return max(-over / cache_tokens, -1.0) if over > 0 else 0.0


def has_signal(rewards: Sequence[float | None]) -> bool:
    """Return whether a group's scores differ, so that some member has an advantage.

    Args:
        rewards: Of one group; None or NaN where a member has none.

    Example:
        >>> has_signal([1.0, 0.0, None]), has_signal([1.0, 1.0, None])
        (True, False)

    References:
        Yu et al. 2025, DAPO, section 3.2 (dynamic sampling), https://arxiv.org/abs/2503.14476.
    """
    scores = [reward for reward in rewards if reward is not None and math.isfinite(reward)]
    return len(scores) > 0 and max(scores) > min(scores)
