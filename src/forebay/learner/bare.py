"""How fast the compiled step is alone, on full rows: the measure that goodput is a fraction of."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping

import jax
import numpy as np

from forebay.batching.batch import Batch
from forebay.batching.packing import Bucket
from forebay.batching.rows import TrainRows
from forebay.learner.programs import TrainPrograms
from forebay.learner.train_step import TrainState

_REPEATS = 5


class BareWork:
    """Useful work, in calls of each program on full rows; what a call takes is measured apart.

    Attributes:
        updates: Calls of the optimizer.
        calls: Calls of the gradient program, by shape.
    """

    def __init__(self) -> None:
        self.updates = 0.0
        self.calls: defaultdict[Bucket, float] = defaultdict(float)

    def add(self, other: BareWork) -> None:
        """Add other work to this."""
        self.updates += other.updates
        for bucket, calls in other.calls.items():
            self.calls[bucket] += calls


class BareSpeed:
    """Best seconds of each compiled program, with nothing else going on in this process."""

    def __init__(self) -> None:
        self._bucket_s: dict[Bucket, float] = {}
        self._apply_s = float("inf")

    def calibrate(
        self, programs: TrainPrograms, state: TrainState, rows: Mapping[Bucket, TrainRows]
    ) -> TrainState:
        """Time programs, each the best of a few calls and of what earlier calibrations found.

        A machine that is shared has slow moments, and one of them must not pass for the speed of the step.

        Args:
            programs: Compiled programs.
            state: Donated; its numbers are lost.
            rows: What each program is timed on: full rows, as what is measured against them is.

        Returns:
            A state that is fit for nothing but another calibration.
        """
        accumulator = programs.zeros()
        for bucket, host in rows.items():
            placed = programs.place(programs.stand_in(host))
            times_s = []
            for _ in range(_REPEATS):
                began_s = time.perf_counter()
                accumulator = programs.accumulate(
                    state.params, accumulator, placed, float(np.prod(bucket)), int(np.prod(bucket))
                )
                jax.block_until_ready(accumulator)
                times_s.append(time.perf_counter() - began_s)
            self._bucket_s[bucket] = min(self._bucket_s.get(bucket, float("inf")), *times_s)
        times_s = []
        for _ in range(_REPEATS):
            began_s = time.perf_counter()
            state, accumulator, stats = programs.apply(state, accumulator)
            jax.block_until_ready(stats)
            times_s.append(time.perf_counter() - began_s)
        self._apply_s = min(self._apply_s, *times_s)
        return state

    def seconds(self, work: BareWork) -> float:
        """Return how long some work would take on full rows; 0 before a calibration."""
        if not self._bucket_s:
            return 0.0
        return work.updates * self._apply_s + sum(
            calls * self._bucket_s[bucket] for bucket, calls in work.calls.items()
        )


def work_of(batch: Batch) -> BareWork:
    """Return the useful work in a batch.

    Padding is not in it, and sampled tokens that are not trained take their share away.
    """
    work = BareWork()
    if batch.empty:
        return work
    share = batch.counts.tokens / sum(batch.stats.action_tokens_by_turn)
    work.updates = share
    for micro in batch.micro_batches:
        real = int(np.count_nonzero(micro.rows.segment_ids))
        work.calls[micro.bucket] += share * real / (micro.bucket.rows * micro.bucket.length)
    return work


def full_rows_like(batch: Batch) -> dict[Bucket, TrainRows]:
    """Return for each shape in a batch full rows, of segments as long as those of the batch on the average.

    A program takes as long on padding as on tokens: timed on rows with padding, it would seem to take longer
    for each token, and the padding of a run would count as work.
    """
    segments = sum(int(micro.rows.segment_ids.max(axis=1).sum()) for micro in batch.micro_batches)
    length = batch.num_tokens // max(1, segments)
    return {micro.bucket: full_rows(micro.bucket, length) for micro in batch.micro_batches}


def full_rows(bucket: Bucket, segment_tokens: int) -> TrainRows:
    """Return rows without padding: segments of one length but for the last, every token trained."""
    shape = (bucket.rows, bucket.length)
    length = min(max(segment_tokens, 2), bucket.length)
    slots = np.broadcast_to(np.arange(bucket.length), shape)
    logprobs = np.full(shape, -1.0, np.float32)
    return TrainRows(
        tokens=np.ones(shape, np.int32),
        segment_ids=(slots // length + 1).astype(np.int32),
        positions=(slots % length).astype(np.int32),
        loss_mask=slots % length > 0,
        advantages=np.ones(shape, np.float32),
        behavior_logprobs=logprobs,
        proximal_logprobs=logprobs,
        temperature=np.ones(shape, np.float32),
        staleness=np.zeros(shape, np.int32),
    )
