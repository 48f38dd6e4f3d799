"""What the learner writes into the rows of a batch before its first update, as only its weights can say it.

The arrays are written from the same weights for all updates of the batch, and stay on the devices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec
import numpy as np
import xxhash

from forebay.batching.batch import Batch, MicroBatch
from forebay.batching.rows import TrainRows
from forebay.learner.programs import TrainPrograms
from forebay.models.params import Params
from forebay.trajectory import PolicyVersion

# From rows to one array [B, T] of them.
Score = Callable[[TrainRows], Any]


class Annotator(Protocol):
    """Writes into the rows of every batch."""

    def annotate(self, params: Params, updates: tuple[Batch, ...]) -> tuple[Batch, ...]:
        """Return the updates of a batch with more known about their rows.

        Args:
            params: The policy before the first update.
            updates: What the batch will be trained in; the order, and which of them are empty, stays.
        """
        ...

    def trained(self, params: Params, version: PolicyVersion) -> None:
        """Take note of the policy that a batch made.

        Args:
            params: Its parameters, alive until the next update.
            version: What it is called.
        """
        ...


class ProximalLogprobs:
    """Writes the logprobs of the policy before the first update.

    Args:
        programs: Compiled for float32 `logprobs`.
    """

    def __init__(self, programs: TrainPrograms) -> None:
        self._programs = programs

    def annotate(self, params: Params, updates: tuple[Batch, ...]) -> tuple[Batch, ...]:
        """Write `proximal_logprobs`; see `Annotator.annotate`."""
        return write_array(
            updates,
            "proximal_logprobs",
            lambda rows: self._programs.logprobs(params, self._programs.place(rows)),
        )

    def trained(self, params: Params, version: PolicyVersion) -> None:
        """Take note of nothing: the next batch has a proximal policy of its own."""


def write_array(updates: tuple[Batch, ...], name: str, score: Score) -> tuple[Batch, ...]:
    """Return updates with one array of all their rows written; rows that come again are scored once.

    Args:
        updates: The updates of one batch.
        name: Which array.
        score: Makes it of rows; must look at nothing but their tokens, segments, positions and temperatures.
    """
    scored: dict[bytes, Any] = {}

    def written(micro: MicroBatch) -> MicroBatch:
        key = _content(micro.rows)
        if key not in scored:
            scored[key] = score(micro.rows)
        return micro._replace(rows=micro.rows._replace(**{name: scored[key]}))

    return tuple(
        update
        if update.empty
        else msgspec.structs.replace(update, micro_batches=tuple(map(written, update.micro_batches)))
        for update in updates
    )


def _content(rows: TrainRows) -> bytes:
    digest = xxhash.xxh3_128(repr(rows.tokens.shape).encode())
    for array in (rows.tokens, rows.segment_ids, rows.positions, rows.temperature):
        digest.update(np.ascontiguousarray(array).data)
    return digest.digest()
