"""Turn-PPO's ratio: one per turn of an episode. Legend: B rows, T tokens."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from forebay.objectives.gspo import mean_log_ratio
from forebay.objectives.shapes import same_shape
from forebay.objectives.surrogate import PolicyTokens


def turn_log_ratio(log_ratios: Float[Array, "B T"], tokens: PolicyTokens) -> Float[Array, "B T"]:
    """Give every token the log of the geometric mean ratio of its turn.

    Between a token's own ratio, which is noise where a decision takes many tokens, and the sequence's, which
    judges a good turn by what the turns around it did.

    Args:
        log_ratios: [B, T] float32, nats, already clamped.
        tokens: The batch's tokens.

    Returns:
        [B, T] float32, nats. The value is the turn's, the gradient each token's own.

    References:
        Li et al. 2025, Stabilizing Off-Policy Training for Long-Horizon LLM Agent via Turn-Level Importance
        Sampling and Clipping-Triggered Normalization (first as ST-PPO: Turn-PPO),
        https://arxiv.org/abs/2511.20718.
    """
    return mean_log_ratio(log_ratios, tokens.mask, turn_ids(tokens.mask, tokens.segment_ids))


def turn_ids(mask: Bool[Array, "B T"], segment_ids: Int[Array, "B T"]) -> Int[Array, "B T"]:
    """Number the turns of each row: a turn is a run of fresh tokens within a sequence.

    The environment's answer, or the chat template's end of turn, stands between two turns and is not sampled.
    What is masked as too stale is the beginning of a turn, and what is cut off is its end, so that no turn
    falls apart. Two turns with nothing between them count as one.

    Args:
        mask: [B, T] bool, fresh tokens.
        segment_ids: [B, T] int32; 0 at padding, sequences of a row numbered 1..n.

    Returns:
        [B, T] int32; 0 outside the mask, turns of a row numbered 1..n.
    """
    same_shape(mask=mask, segment_ids=segment_ids)
    goes_on = mask[:, :-1] & (segment_ids[:, :-1] == segment_ids[:, 1:])
    begins = mask & ~jnp.pad(goes_on, ((0, 0), (1, 0)))
    return jnp.where(mask, jnp.cumsum(begins, axis=1, dtype=jnp.int32), 0)
