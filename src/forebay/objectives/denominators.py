"""The number that a batch's loss is divided by, fixed before the batch is split or anything is rejected.

Micro-batches and shards divide by the whole batch's number, so that their losses simply add.
Legend: B rows, T tokens.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from forebay.objectives.settings import ObjectiveSettings


class FreshCounts(NamedTuple):
    """How much of a batch is trained.

    Attributes:
        tokens: Fresh tokens.
        sequences: Packed sequences with at least one fresh token.
    """

    tokens: int
    sequences: int


def count_fresh(loss_mask: npt.NDArray[np.bool_], segment_ids: npt.NDArray[np.integer[Any]]) -> FreshCounts:
    """Count the fresh tokens and the sequences that have one; padding rows and masked rows count for nothing.

    Args:
        loss_mask: [B, T] bool, True at fresh tokens.
        segment_ids: [B, T] int32; 0 at padding, sequences of a row numbered 1..n.

    Returns:
        The counts. Counts of parts of a batch add up to the batch's, as rows are never split.
    """
    rows, columns = np.nonzero(loss_mask)
    sequences = np.unique(np.stack([rows, segment_ids[rows, columns]]), axis=1)
    return FreshCounts(tokens=int(rows.size), sequences=int(sequences.shape[1]))


def batch_denominator(settings: ObjectiveSettings, counts: FreshCounts) -> float:
    """Return what the summed loss of the whole batch is divided by.

    Args:
        settings: Which reduction: "token" divides by tokens, "sequence" by sequences (each already
            a mean over its own tokens), "constant" by sequences times `constant_tokens`.
        counts: The whole batch's fresh counts, before any rejection.

    Returns:
        The denominator; 1.0 for a batch without fresh tokens, whose loss is then 0.

    References:
        Liu et al. 2025, Understanding R1-Zero-Like Training, section 3.1 (what each choice biases),
        https://arxiv.org/abs/2503.20783.
    """
    if settings.reduction == "token":
        return float(max(counts.tokens, 1))
    scale = settings.constant_tokens if settings.constant_tokens is not None else 1
    return float(max(counts.sequences, 1) * scale)
