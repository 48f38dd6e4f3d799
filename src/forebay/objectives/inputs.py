"""The records that go into an objective and come out of it.

No array library is imported here: the same NamedTuples (which are pytrees) carry NumPy arrays on the
host and JAX arrays inside the compiled step. Legend: B rows, T tokens.

Per-token arrays are aligned to the target token: `logprobs[b, t]` is the logprob of token t given the
tokens before it in its own segment, and `loss_mask[b, t]` says whether the policy sampled token t and
may be trained on it.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

# NumPy on the host and JAX in the compiled step share no base class.
Array = Any


class LossInputs(NamedTuple):
    """What an objective is told about a packed batch, a micro-batch, or a shard of its rows.

    Values at positions outside `loss_mask` are never looked at: they may be infinite or NaN.
    A row is never split: every segment lies within one row of one shard.

    Attributes:
        loss_mask: [B, T] bool. True at fresh tokens: sampled by the policy, not too stale, of a
            scored member.
        advantages: [B, T] float32. How much better the token's trajectory did than expected.
        behavior_logprobs: [B, T] float32, nats. Logprob under the policy that sampled the token. Not
            finite means that the sampler lost it: the token is trained with weight 1 and counted.
        proximal_logprobs: [B, T] float32, nats. Logprob at the start of the update. Ignored unless the
            objective's `proximal` setting is "recomputed".
        segment_ids: [B, T] int32. 0 at padding; the sequences packed in a row are numbered 1..n.
        staleness: [B, T] int32. Versions between the sampling of the token and this update. Ignored unless
            the objective's `proximal` setting is "interpolated".
        reference_logprobs: [B, T] float32, nats. Logprob under the reference policy. Ignored unless the
            objective's `kl_coef` is above 0.
        ratio_bounds: [B, T] float32. Where a token's ratio is clipped: above if its advantage is positive,
            below if it is negative. Ignored unless the objective's `clip_rule` finds bounds.

    The last three may be None where the settings of the objective do not ask for them. The settings alone
    decide it, so that what a compiled step is called with never changes, and no first use compiles anything.
    """

    loss_mask: Array
    advantages: Array
    behavior_logprobs: Array
    proximal_logprobs: Array
    segment_ids: Array
    staleness: Array | None = None
    reference_logprobs: Array | None = None
    ratio_bounds: Array | None = None


class LossSums(NamedTuple):
    """What an objective measured, as float32 scalars that add over shards and micro-batches.

    Token sums run over fresh tokens (`loss_mask`), sequence sums over sequences that have one.

    Attributes:
        loss: Contribution to the batch's loss, already divided by the batch's denominator.
        tokens: Fresh tokens.
        real_tokens: Tokens that are not padding.
        sequences: Sequences with at least one fresh token.
        rejected_tokens: Fresh tokens that a rejection removed from the loss.
        rejected_sequences: Sequences that lost every fresh token to a rejection.
        clipped_tokens: Tokens whose clipped surrogate was the active one: no policy gradient.
        capped_tokens: Tokens whose importance weight was cut to its bound.
        clamped_tokens: Tokens with a log-ratio outside the numeric clamp.
        clamped_sequences: Sequences with a product of ratios outside the numeric clamp.
        missing_tokens: Fresh tokens whose behavior logprob was not finite.
        ratio_sum: Sum of the ratio that carries the gradient.
        weight_sum: Sum of the importance weights applied; 0 for a rejected token.
        weight_sq_sum: Sum of their squares.
        k3_sum: Sum of the k3 estimate of KL(behavior || current), nats.
        abs_logprob_diff_sum: Sum of |current - behavior| logprobs, nats.
        entropy_sum: Sum of the policy's entropy, nats.
        log_product_sum: Sum over sequences of the log of the product of off-policy ratios, nats.
        log_geometric_sum: Sum over sequences of the log of the geometric mean of the same, nats.
        sequence_weight_sum: Sum over sequences of the product of off-policy ratios, clamped.
        sequence_weight_sq_sum: Sum of their squares.
        reference_k3_sum: Sum of the k3 estimate of KL(current || reference), nats; 0 without a penalty.
        gain_sum: Sum of (current / behavior - 1) times the advantage; the ratio counts up to 5.
        value_loss: Contribution to the batch's value loss, weighted and divided likewise; 0 without a critic.
    """

    loss: Array
    tokens: Array
    real_tokens: Array
    sequences: Array
    rejected_tokens: Array
    rejected_sequences: Array
    clipped_tokens: Array
    capped_tokens: Array
    clamped_tokens: Array
    clamped_sequences: Array
    missing_tokens: Array
    ratio_sum: Array
    weight_sum: Array
    weight_sq_sum: Array
    k3_sum: Array
    abs_logprob_diff_sum: Array
    entropy_sum: Array
    log_product_sum: Array
    log_geometric_sum: Array
    sequence_weight_sum: Array
    sequence_weight_sq_sum: Array
    reference_k3_sum: Array
    gain_sum: Array
    value_loss: Array


@dataclasses.dataclass(frozen=True, slots=True)
class Diagnostics:
    """What a step's `LossSums` mean; every share is between 0 and 1, and 0 where it has no tokens.

    Attributes:
        loss: The batch's loss.
        fresh_tokens: Tokens trained, rejected ones included.
        sequences: Sequences with at least one fresh token.
        ess: Effective sample size of the applied weights per fresh token, (sum w)^2 / (n sum w^2).
        sequence_ess: The same of whole sequences, w the product of their off-policy ratios, applied or not.
        clip_fraction: Share of fresh tokens without policy gradient because of the clip.
        cap_fraction: Share of fresh tokens with a capped importance weight.
        rejected_fraction: Share of fresh tokens removed by rejection.
        rejected_sequence_fraction: Share of sequences removed by rejection.
        mask_fraction: Share of the tokens that are not padding but are not trained either.
        clamped_tokens: Tokens with a log-ratio outside the numeric clamp.
        clamped_sequences: Sequences with a product of ratios outside the numeric clamp.
        missing_tokens: Fresh tokens without a finite behavior logprob.
        ratio_mean: Mean ratio that carries the gradient.
        weight_mean: Mean applied importance weight.
        k3: Estimate of KL(behavior || current) per token, nats.
        logprob_mismatch: Mean |current - behavior| logprob, nats; at staleness 0 the numeric gap
            between generator and learner.
        entropy: Mean entropy per fresh token, nats.
        log_ratio_product: Mean over sequences of the log of the product of ratios, nats.
        geometric_ratio: Geometric mean of the off-policy ratio, sequences weighing the same.
        reference_kl: Estimate (k3) of KL(current || reference) per token, nats; 0 without a penalty.
        gain: What the policy has gained since it sampled the batch, as far as its advantages tell: reward per
            token, to first order.
        value_loss: The batch's value loss, as it is added to the other; 0 without a critic.
    """

    loss: float
    fresh_tokens: int
    sequences: int
    ess: float
    sequence_ess: float
    clip_fraction: float
    cap_fraction: float
    rejected_fraction: float
    rejected_sequence_fraction: float
    mask_fraction: float
    clamped_tokens: int
    clamped_sequences: int
    missing_tokens: int
    ratio_mean: float
    weight_mean: float
    k3: float
    logprob_mismatch: float
    entropy: float
    log_ratio_product: float
    geometric_ratio: float
    reference_kl: float
    gain: float
    value_loss: float


def summarize(sums: LossSums) -> Diagnostics:
    """Turn the sums of a whole step into the figures that are reported.

    Args:
        sums: Sums over every shard and micro-batch of one optimizer step.

    Returns:
        The step's diagnostics, plain Python numbers.

    References:
        Kong 1992, A note on importance sampling using standardized weights (effective sample size).
        Schulman 2020, Approximating KL divergence, http://joschu.net/blog/kl-approx.html (k3).
    """
    s = LossSums(*(float(value) for value in sums))
    return Diagnostics(
        loss=s.loss,
        fresh_tokens=round(s.tokens),
        sequences=round(s.sequences),
        ess=_share(s.weight_sum**2, s.tokens * s.weight_sq_sum),
        sequence_ess=_share(s.sequence_weight_sum**2, s.sequences * s.sequence_weight_sq_sum),
        clip_fraction=_share(s.clipped_tokens, s.tokens),
        cap_fraction=_share(s.capped_tokens, s.tokens),
        rejected_fraction=_share(s.rejected_tokens, s.tokens),
        rejected_sequence_fraction=_share(s.rejected_sequences, s.sequences),
        mask_fraction=_share(s.real_tokens - s.tokens, s.real_tokens),
        clamped_tokens=round(s.clamped_tokens),
        clamped_sequences=round(s.clamped_sequences),
        missing_tokens=round(s.missing_tokens),
        ratio_mean=_share(s.ratio_sum, s.tokens),
        weight_mean=_share(s.weight_sum, s.tokens),
        k3=_share(s.k3_sum, s.tokens),
        logprob_mismatch=_share(s.abs_logprob_diff_sum, s.tokens),
        entropy=_share(s.entropy_sum, s.tokens),
        log_ratio_product=_share(s.log_product_sum, s.sequences),
        geometric_ratio=math.exp(_share(s.log_geometric_sum, s.sequences)),
        reference_kl=_share(s.reference_k3_sum, s.tokens),
        gain=_share(s.gain_sum, s.tokens),
        value_loss=s.value_loss,
    )


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
