"""Clip bounds that each update's own tokens decide, found by the policy before the batch's first update.

Legend: B rows, T tokens, F trained tokens of an update.
"""

from __future__ import annotations

import msgspec
import numpy as np

from forebay.batching.batch import Batch
from forebay.batching.rows import TrainRows
from forebay.models.params import Params
from forebay.objectives.bapo import FloatArray
from forebay.objectives.clip_rules import ClipRule
from forebay.objectives.ratios import LOG_RATIO_LIMIT_NATS
from forebay.trajectory import PolicyVersion


class ClipBounds:
    """Writes `ratio_bounds`; an `Annotator`.

    Everything after the forward pass is float64 on the host and a function of the batch and the parameters,
    so that a replay makes the same numbers again. All tokens of an update decide together, however it is
    split into micro-batches and over devices.

    Args:
        rule: Finds the bounds. `proximal_logprobs` must have been written before, and the advantages of a
            critic too.
    """

    def __init__(self, rule: ClipRule) -> None:
        self._rule = rule

    def annotate(self, params: Params, updates: tuple[Batch, ...]) -> tuple[Batch, ...]:
        """Find the bounds of every update of a batch before the first; see `Annotator.annotate`."""
        return tuple(update if update.empty else self._bounded(update) for update in updates)

    def trained(self, params: Params, version: PolicyVersion) -> None:
        """Take note of nothing: the next batch has bounds of its own."""

    def _bounded(self, update: Batch) -> Batch:
        parts = [_trained(micro.rows) for micro in update.micro_batches]
        log_ratios, advantages = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        low, high = self._rule(log_ratios, advantages)
        micro_batches = tuple(
            micro._replace(
                rows=micro.rows._replace(
                    ratio_bounds=np.where(micro.rows.advantages < 0, low, high).astype(np.float32)
                )
            )
            for micro in update.micro_batches
        )
        return msgspec.structs.replace(update, micro_batches=micro_batches)


def _trained(rows: TrainRows) -> tuple[FloatArray, FloatArray]:
    """Return log(current / behavior) and advantages of trained tokens; a lost behavior logprob is current."""
    mask = np.asarray(rows.loss_mask)
    behavior, current, advantages = (
        np.asarray(array)[mask].astype(np.float64)
        for array in (rows.behavior_logprobs, rows.proximal_logprobs, rows.advantages)
    )
    moved = np.where(np.isfinite(behavior), current - behavior, 0.0)
    return np.clip(moved, -LOG_RATIO_LIMIT_NATS, LOG_RATIO_LIMIT_NATS), advantages
