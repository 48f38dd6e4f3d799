"""The compiled train step alone: the product's own programs on one fixed micro-batch.

What is timed is `accumulate` and `apply`, nothing else: rows lie on the device, and nothing is copied out.
"""

from __future__ import annotations

import resource
from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks.learner_bench.flops import ModelFlops, training_flops
from benchmarks.learner_bench.measuring import Spread, Timed, spread, timed
from benchmarks.learner_bench.peak import MatmulPeak
from benchmarks.learner_bench.shapes import MODELS, Case
from forebay.batching.packing import Bucket
from forebay.batching.rows import TrainRows, make_rows
from forebay.learner.optimizer import OptimizerSettings
from forebay.learner.programs import TrainPrograms
from forebay.models.config import ModelConfig
from forebay.models.params import Params, init_params
from forebay.models.settings import ComputeSettings, MeshSettings
from forebay.models.sharding import make_mesh
from forebay.objectives import ObjectiveSettings
from forebay.objectives.build import annotations_of, build_objective

# Imitation: transformers computes the same loss of the same rows.
OBJECTIVE = ObjectiveSettings(loss="cross_entropy")
# AdamW and clipping by the global norm, nothing more.
OPTIMIZER = OptimizerSettings(drift_price=0.0)


class Memory(NamedTuple):
    """What a step takes, bytes.

    Attributes:
        temporary: Of the larger program, by the compiler's plan, beside its arguments.
        state: Parameters, optimizer and gradients.
        process_before: Largest size of the process before the first step; the arrays of the peak are in it.
        process_peak: The same after the last step.
    """

    temporary: int
    state: int
    process_before: int
    process_peak: int


class Utilization(NamedTuple):
    """How fast a step is.

    Attributes:
        segments: Lengths of the sequences in its row.
        flops: Operations that it needs.
        step: Its CPU seconds.
        apply_share: Part of them that the optimizer takes.
        of_peak: Its rate, in CPU time, as a share of the best product measured right before it.
        of_best: The same, of the best product of the whole run.
        peak_flops: That best product, operations per CPU second.
        tokens_per_s: Tokens trained per CPU second.
        memory: What it takes.
    """

    segments: tuple[int, ...]
    flops: ModelFlops
    step: Spread
    apply_share: float
    of_peak: Spread
    of_best: float
    peak_flops: float
    tokens_per_s: float
    memory: Memory


class TrainStep:
    """One optimizer step of a model on rows that never change.

    Args:
        config: The model.
        bucket: Shape of the micro-batch.
        rows: From `rows_of`.
        params: Host parameters; None draws them.
        compute: Types, attention, remat.
    """

    def __init__(
        self,
        config: ModelConfig,
        bucket: Bucket,
        rows: TrainRows,
        params: Params | None = None,
        compute: ComputeSettings = ComputeSettings(),
    ) -> None:
        self._programs = TrainPrograms(
            config,
            make_mesh(MeshSettings()),
            OPTIMIZER,
            build_objective(OBJECTIVE),
            compute,
            annotations_of(OBJECTIVE),
        )
        self._programs.warm_up([bucket])
        drawn = init_params(config, jax.random.key(0)) if params is None else params
        self._state = self._programs.init_state(drawn)
        self._accumulator = self._programs.zeros()
        self._rows = self._programs.place(self._programs.stand_in(rows))
        self._num_tokens = int(np.count_nonzero(rows.segment_ids))
        self._num_targets = int(np.count_nonzero(rows.loss_mask))
        self._bucket = bucket
        self.accumulate_s: list[float] = []
        self.apply_s: list[float] = []

    def once(self) -> Timed:
        """Take a step; return what it took."""
        first, second = timed(self._accumulate), timed(self._apply)
        self.accumulate_s.append(first.cpu_s)
        self.apply_s.append(second.cpu_s)
        return Timed(first.wall_s + second.wall_s, first.cpu_s + second.cpu_s)

    @property
    def loss(self) -> float:
        """Mean negative log-likelihood of the last step, nats a target, before its update."""
        return float(self._stats.sums.loss)

    def planned_bytes(self) -> int:
        """Return the temporary memory of the larger program, by the compiler's plan."""
        plans = [
            self._programs.lower("accumulate", self._bucket).compile(),
            self._programs.lower("apply").compile(),
        ]
        return max(plan.memory_analysis().temp_size_in_bytes for plan in plans)

    def state_bytes(self) -> int:
        """Return what parameters, optimizer and gradients take."""
        return sum(leaf.nbytes for leaf in jax.tree.leaves((self._state, self._accumulator)))

    def _accumulate(self) -> None:
        self._accumulator = jax.block_until_ready(
            self._programs.accumulate(
                self._state.params,
                self._accumulator,
                self._rows,
                float(self._num_targets),
                self._num_tokens,
            )
        )

    def _apply(self) -> None:
        self._state, self._accumulator, self._stats = jax.block_until_ready(
            self._programs.apply(self._state, self._accumulator)
        )


def rows_of(bucket: Bucket, segments: list[tuple[int, ...]], vocab_size: int, seed: int = 0) -> TrainRows:
    """Return rows of random tokens, every token but the first of a segment a target.

    Args:
        bucket: Their shape.
        segments: For each row, lengths from its start; the rest is padding.
        vocab_size: Of the model.
        seed: Of the tokens.
    """
    rows: dict[str, Any] = make_rows(lambda dtype: np.zeros(bucket, dtype), ())._asdict()
    rng = np.random.default_rng(seed)
    for row, lengths in enumerate(segments):
        start = 0
        for number, length in enumerate(lengths, start=1):
            place = (row, slice(start, start + length))
            rows["tokens"][place] = rng.integers(0, vocab_size, length)
            rows["segment_ids"][place] = number
            rows["positions"][place] = np.arange(length)
            rows["loss_mask"][place] = np.arange(length) > 0
            start += length
    rows["temperature"][:] = 1.0
    return TrainRows(**rows)


class BesidePeak:
    """Takes a step right after a look at the peak.

    Args:
        step: The step.
        peak: The products.

    Attributes:
        taken: Of each step.
        rates: The best product of the look before it, operations per CPU second.
    """

    def __init__(self, step: TrainStep, peak: MatmulPeak) -> None:
        self._step = step
        self._peak = peak
        self.taken: list[Timed] = []
        self.rates: list[float] = []

    def once(self) -> Timed:
        """Look, then take a step; return what the step took."""
        self.rates.append(self._peak.look())
        self.taken.append(self._step.once())
        return self.taken[-1]


def measure_utilization(case: Case, peak: MatmulPeak, compute: ComputeSettings) -> Utilization:
    """Time a step and the peak in turns, in this process."""
    config, bucket = MODELS[case.model], case.bucket
    before = process_peak_bytes()
    step = TrainStep(config, bucket, rows_of(bucket, [case.segments], config.vocab_size), compute=compute)
    if case.rounds > 1:
        step.once()  # its pages are touched for the first time
    beside = BesidePeak(step, peak)
    for _ in range(case.rounds):
        beside.once()
    return utilization_of(case, step, beside, max(peak.best.values()), before)


def utilization_of(
    case: Case, step: TrainStep, beside: BesidePeak, best: float, before_bytes: int
) -> Utilization:
    """Return the figures of steps that were taken beside the peak."""
    flops = training_flops(MODELS[case.model], [case.segments])
    cpu_s = [one.cpu_s for one in beside.taken]
    cpu = spread(cpu_s)
    return Utilization(
        segments=case.segments,
        flops=flops,
        step=cpu,
        apply_share=spread(step.apply_s[-len(cpu_s) :]).median / cpu.median,
        of_peak=spread([flops.total / taken / rate for taken, rate in zip(cpu_s, beside.rates, strict=True)]),
        of_best=flops.total / cpu.median / best,
        peak_flops=best,
        tokens_per_s=sum(case.segments) / cpu.median,
        memory=Memory(step.planned_bytes(), step.state_bytes(), before_bytes, process_peak_bytes()),
    )


def process_peak_bytes() -> int:
    """Return the largest size that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
