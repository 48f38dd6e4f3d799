"""From losses per token to the numerator of the batch's loss.

The denominator is `denominators.batch_denominator`. A rejected token adds 0 but still counts in every
length: rejection must not raise the weight of what is left.
Legend: B rows, T tokens.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from forebay.objectives.ratios import segment_sums, to_tokens
from forebay.objectives.shapes import same_shape


def sum_over_tokens(
    losses: Float[Array, "B T"],
    kept: Bool[Array, "B T"],
    mask: Bool[Array, "B T"],
    segment_ids: Int[Array, "B T"],
) -> Float[Array, ""]:
    """Sum the kept tokens' losses; divided by tokens it is a token mean, by a constant Dr. GRPO's.

    Args:
        losses: [B, T] float32; not looked at outside `kept`.
        kept: [B, T] bool, fresh tokens that were not rejected.
        mask: [B, T] bool, fresh tokens.
        segment_ids: [B, T] int32; 0 at padding, sequences of a row numbered 1..n.

    Returns:
        Scalar float32.

    References:
        Yu et al. 2025, DAPO, section 3.3, https://arxiv.org/abs/2503.14476; Liu et al. 2025,
        Understanding R1-Zero-Like Training, section 3.2, https://arxiv.org/abs/2503.20783.
    """
    same_shape(losses=losses, kept=kept, mask=mask, segment_ids=segment_ids)
    return jnp.sum(jnp.where(kept, losses, 0.0))


def sum_over_sequences(
    losses: Float[Array, "B T"],
    kept: Bool[Array, "B T"],
    mask: Bool[Array, "B T"],
    segment_ids: Int[Array, "B T"],
) -> Float[Array, ""]:
    """Sum, over packed sequences, each one's mean loss over its fresh tokens.

    Args:
        losses: [B, T] float32; not looked at outside `kept`.
        kept: [B, T] bool, fresh tokens that were not rejected.
        mask: [B, T] bool, fresh tokens.
        segment_ids: [B, T] int32; 0 at padding, sequences of a row numbered 1..n.

    Returns:
        Scalar float32.

    References:
        Shao et al. 2024, DeepSeekMath (GRPO), equation 3, https://arxiv.org/abs/2402.03300.
    """
    same_shape(losses=losses, kept=kept, mask=mask, segment_ids=segment_ids)
    lengths = segment_sums(jnp.ones_like(losses), mask, segment_ids)
    own_length = jnp.maximum(to_tokens(lengths, segment_ids), 1.0)
    return jnp.sum(jnp.where(kept, losses, 0.0) / own_length)
