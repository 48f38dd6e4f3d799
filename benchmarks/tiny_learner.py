"""A learner of a tiny model that trains steps of random lengths and counts what it compiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import jax
import numpy as np

from forebay.batching.packing import Bucket
from forebay.batching.rows import TrainRows
from forebay.batching.settings import BatchingSettings
from forebay.batching.supervised import Demonstration, build_supervised_batch
from forebay.learner.optimizer import OptimizerSettings
from forebay.learner.programs import TrainPrograms
from forebay.models.compiles import CompileCounter
from forebay.models.config import ModelConfig
from forebay.models.params import init_params
from forebay.models.settings import ComputeSettings, MeshSettings
from forebay.models.sharding import make_mesh
from forebay.objectives import ObjectiveSettings
from forebay.objectives.build import annotations_of, build_objective
from forebay.objectives.denominators import FreshCounts
from forebay.trajectory import PolicyVersion

_MODEL = ModelConfig(
    vocab_size=32,
    num_real_tokens=32,
    hidden_size=16,
    intermediate_size=16,
    num_layers=1,
    num_heads=2,
    num_kv_heads=1,
    head_size=8,
    max_position=1024,
    eos_ids=(2,),
)
# A reference policy is an optional input of every row.
_OBJECTIVE = ObjectiveSettings(kl_coef=0.01)


class TinyLearner:
    """Compiles everything at once, then trains.

    Args:
        ladder: The shapes that are compiled.
        shards: Devices that rows are spread over.
    """

    def __init__(self, ladder: Sequence[Bucket], shards: int = 1) -> None:
        self._ladder = tuple(ladder)
        self._settings = BatchingSettings(
            max_length=max(bucket.length for bucket in ladder), buckets=tuple(map(tuple, ladder))
        )
        self._compiles = CompileCounter()
        self._programs = TrainPrograms(
            _MODEL,
            make_mesh(MeshSettings(data=shards)),
            OptimizerSettings(),
            build_objective(_OBJECTIVE),
            ComputeSettings(),
            annotations_of(_OBJECTIVE),
        )
        self._programs.warm_up(self._ladder, scored_dtypes=("float32",))
        self._state = self._programs.init_state(init_params(_MODEL, jax.random.key(0)))
        self._accumulator = self._programs.zeros()
        self._rng = np.random.default_rng(0)
        self._num_steps = 0
        self._compiles.mark_warm()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._compiles.close()

    @property
    def compiles_after_warmup(self) -> int:
        """Programs that were built since the first step."""
        return self._compiles.since_warm()

    def step(self, lengths: Sequence[int], *, scored: bool) -> set[Bucket]:
        """Train one step on sequences of random tokens; return the shapes that it used.

        Args:
            lengths: Tokens of each, at least 2.
            scored: Whether a fixed policy's logprobs go in; else 0 stands in for them.
        """
        batch = build_supervised_batch(
            [self._sequence(length) for length in lengths],
            now=PolicyVersion(0, self._num_steps),
            settings=self._settings,
            ladder=self._ladder,
            denominator=_per_token,
        )
        for micro in batch.micro_batches:
            rows = self._programs.place(self._annotated(micro.rows, scored))
            self._accumulator = self._programs.accumulate(
                self._state.params, self._accumulator, rows, batch.denominator
            )
        self._state, self._accumulator, _ = self._programs.apply(self._state, self._accumulator)
        self._num_steps += 1
        return {micro.bucket for micro in batch.micro_batches}

    def _annotated(self, rows: TrainRows, scored: bool) -> TrainRows:
        if not scored:
            return self._programs.stand_in(rows)
        logprobs = self._programs.logprobs(self._state.params, self._programs.place(rows))
        return rows._replace(proximal_logprobs=logprobs, reference_logprobs=logprobs)

    def _sequence(self, length: int) -> Demonstration:
        mask = np.arange(length) > 0
        tokens = self._rng.integers(0, _MODEL.num_real_tokens, length, dtype=np.int32)
        return Demonstration(name="random", tokens=tokens, loss_mask=mask)


def _per_token(counts: FreshCounts) -> float:
    return float(counts.tokens)
