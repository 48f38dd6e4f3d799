"""PPO's clipped surrogate, against the policy that sampled. Legend: B rows, T tokens."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from forebay.objectives.ratios import log_ratio
from forebay.objectives.shapes import same_shape
from forebay.objectives.surrogate import PolicyTokens, RatioLevel, SurrogateTerms, per_token


def clipped_surrogate(
    ratio: Float[Array, "B T"],
    advantages: Float[Array, "B T"],
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
    bounds: Float[Array, "B T"] | None = None,
) -> tuple[Float[Array, "B T"], Bool[Array, "B T"]]:
    """Return `-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)` and where the clip is the smaller one.

    With `dual_clip` c, it is `-max(min(...), c A)` where A < 0: a bad token that became much likelier
    meanwhile costs no more than c.

    Args:
        ratio: [B, T] float32, the ratio that carries the gradient.
        advantages: [B, T] float32.
        clip_low: How far below 1 a ratio may fall before lowering it further is not rewarded.
        clip_high: How far above 1 a ratio may rise before raising it further is not rewarded.
        dual_clip: How high a ratio counts where the advantage is negative, above 1; None for no bound.
        bounds: [B, T] float32, in place of both: of each ratio, on the side its advantage pushes it to.

    Returns:
        [B, T] float32 losses, and [B, T] bool, True where no gradient flows because of a clip.

    References:
        Schulman et al. 2017, Proximal Policy Optimization Algorithms, equation 7,
        https://arxiv.org/abs/1707.06347; Yu et al. 2025, DAPO, equation 10 (two bounds),
        https://arxiv.org/abs/2503.14476; Ye et al. 2020, Mastering Complex Control in MOBA Games with Deep
        Reinforcement Learning (dual clip, c = 3), https://arxiv.org/abs/1912.09729.
    """
    same_shape(ratio=ratio, advantages=advantages)
    # A token is only ever clipped on one side, so that one bound may stand for both.
    low, high = (1.0 - clip_low, 1.0 + clip_high) if bounds is None else (bounds, bounds)
    worse = advantages < 0
    clipped = ((advantages > 0) & (ratio > high)) | (worse & (ratio < low))
    bounded = jnp.clip(ratio, low, high)
    if dual_clip is not None:
        too_likely = worse & (ratio > dual_clip)
        clipped |= too_likely
        bounded = jnp.where(too_likely, dual_clip, bounded)
    return -jnp.where(clipped, jax.lax.stop_gradient(bounded), ratio) * advantages, clipped


def ppo_clip(
    tokens: PolicyTokens,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
    level: RatioLevel = per_token,
) -> SurrogateTerms:
    """Clip the ratio to the behavior policy: `r = exp(current - behavior)`.

    Staleness moves r away from 1 before training starts, so stale tokens are clipped more. Where `tokens`
    have bounds of their own, those count.

    Args:
        tokens: The batch's tokens.
        clip_low: Lower clip width.
        clip_high: Upper clip width.
        dual_clip: Bound of the ratio where the advantage is negative; None for none.
        level: What shares a ratio: each token (PPO), turn (Turn-PPO) or sequence (GSPO).

    Returns:
        The terms; the weight is the ratio itself.

    References:
        Schulman et al. 2017, Proximal Policy Optimization Algorithms, equation 7,
        https://arxiv.org/abs/1707.06347.
    """
    ratio = jnp.exp(level(log_ratio(tokens.logprobs, tokens.behavior_logprobs), tokens))
    loss, clipped = clipped_surrogate(
        ratio,
        tokens.advantages,
        clip_low=clip_low,
        clip_high=clip_high,
        dual_clip=dual_clip,
        bounds=tokens.ratio_bounds,
    )
    return SurrogateTerms(
        loss=loss,
        ratio=ratio,
        weight=jax.lax.stop_gradient(ratio),
        clipped=clipped,
        capped=jnp.zeros_like(clipped),
    )
