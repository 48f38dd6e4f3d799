"""The learner's loop: take, pack, record, step, publish, checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
import numpy as np

from forebay.batching.batch import Batch
from forebay.errors import NonFiniteError
from forebay.learner.accounts import Account
from forebay.learner.annotations import Annotator
from forebay.learner.feed import JournaledBatch
from forebay.learner.programs import TrainPrograms
from forebay.learner.settings import LearnerSettings
from forebay.learner.train_step import Accumulator, StepStats, TrainState, snapshot
from forebay.models.params import Params
from forebay.telemetry.faults import fault_point
from forebay.telemetry.spans import TimeStrip
from forebay.trajectory import PolicyVersion

# Programs under way at a time: more of them with collectives over processes stop one another on a CPU.
_MAX_DISPATCHED = 16


class Source(Protocol):
    """Where batches come from, already taken, packed and recorded."""

    def next(self) -> JournaledBatch | None:
        """Return the next batch; None when the run is to stop."""
        ...


class Learner:
    """Trains batches and hands out the weights they make.

    Consumes: journaled batches. Waits for: the feed (starved). Unblocked by: actors, through the store.
    Produces: versions of the weights, checkpoints, one line of metrics per batch.

    Args:
        programs: Compiled programs.
        state: Parameters, optimizer state and step count.
        version: The version of the weights; `version.version` counts optimizer updates.
        settings: When to publish, save and end.
        strip: Where the time goes.
        meter: What the run measures.
        annotators: Write, in this order, what the objective wants to know of a batch before its first update.
        publish: Hands over a copy of the parameters of a version.
        save: Writes a checkpoint of the state.
        copy: Copies parameters to host memory, or begins to; they may be donated once it returns.
    """

    def __init__(
        self,
        programs: TrainPrograms,
        state: TrainState,
        version: PolicyVersion,
        settings: LearnerSettings,
        strip: TimeStrip,
        meter: Account,
        annotators: Sequence[Annotator],
        publish: Callable[[PolicyVersion, Any], None],
        save: Callable[[TrainState, PolicyVersion], None],
        copy: Callable[[Params], Any] = snapshot,
    ) -> None:
        self.programs = programs
        self.state = state
        self.version = version
        self._accumulator: Accumulator = programs.zeros()
        self._settings = settings
        self._strip = strip
        self._meter = meter
        self._annotators = tuple(annotators)
        self._batches = 0
        self._publish = publish
        self._save = save
        self._copy = copy
        self._nonfinite_in_a_row = 0

    def run(self, source: Source, last_version: int, ended: Callable[[], bool]) -> None:
        """Train until `last_version` is made, the source dries up, or `ended` says so."""
        while self.version.version < last_version and not ended():
            with self._strip.span("starved"):
                batch = source.next()  # taken, packed and recorded ahead
            if batch is None:
                break
            self.train(batch)
            if self._due(self._settings.publish_every) or self.version.version >= last_version:
                self.publish()
            if self._due(self._settings.checkpoint_every):
                self.checkpoint()

    def train(self, batch: JournaledBatch) -> None:
        """Take the optimizer steps of one batch.

        Raises:
            NonFiniteError: Too many batches in a row had a loss or gradient that is not finite.
        """
        began_s = time.monotonic()
        stats = []
        with self._strip.span("computing"):
            batch = batch._replace(updates=self._annotated(batch.updates))
            for update in batch.updates:
                if not update.empty:
                    stats.append(self._step(update))
        self.version = self.version._replace(version=batch.entry.step)
        for annotator in self._annotators:
            annotator.trained(self.state.params, self.version)
        self._batches += 1
        fault_point("stepped", batch.entry.step)
        self._meter.add(batch, self.version, stats, time.monotonic() - began_s)
        fault_point("measured", batch.entry.step)
        self._guard(stats)

    def publish(self) -> None:
        """Hand over the weights of this version."""
        with self._strip.span("publishing"):
            self._publish(self.version, self._copy(self.state.params))

    def checkpoint(self) -> None:
        """Save everything that the next step depends on."""
        with self._strip.span("checkpointing"):
            self._save(self.state, self.version)

    def _due(self, every: int) -> bool:
        return self._batches % every == 0

    def _step(self, update: Batch) -> StepStats:
        """Accumulate the micro-batches, then update once; returns when the device is done."""
        with self._strip.span("packing"):
            placed = [self.programs.place(micro.rows) for micro in update.micro_batches]
        for number, rows in enumerate(placed, start=1):
            self._accumulator = self.programs.accumulate(
                self.state.params, self._accumulator, rows, update.denominator, update.num_tokens
            )
            if number % _MAX_DISPATCHED == 0:
                jax.block_until_ready(self._accumulator)
        self.state, self._accumulator, stats = self.programs.apply(self.state, self._accumulator)
        return jax.tree.map(np.asarray, jax.device_get(stats))

    def _annotated(self, updates: tuple[Batch, ...]) -> tuple[Batch, ...]:
        for annotator in self._annotators:
            updates = annotator.annotate(self.state.params, updates)
        return updates

    def _guard(self, stats: list[StepStats]) -> None:
        bad = any(not bool(step.finite) for step in stats)
        self._nonfinite_in_a_row = self._nonfinite_in_a_row + 1 if bad else 0
        if self._nonfinite_in_a_row >= self._settings.max_nonfinite_steps:
            raise NonFiniteError(
                f"loss or gradient was not finite in {self._nonfinite_in_a_row} batches in a row, "
                f"the last at version {self.version.version}",
                limit=f"learner.max_nonfinite_steps={self._settings.max_nonfinite_steps}",
                remedy="Lower optimizer.learning_rate, or look at the last lines of metrics.jsonl.",
            )
