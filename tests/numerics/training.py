"""Tiny training runs that the numeric tests compare with one another."""

from __future__ import annotations

import functools
import hashlib
from typing import Any

import jax
import numpy as np

from forebay.batching.rows import TrainRows, map_rows
from forebay.learner.optimizer import OptimizerSettings
from forebay.learner.programs import TrainPrograms
from forebay.learner.train_step import TrainState, snapshot
from forebay.models.settings import ComputeSettings, MeshSettings
from forebay.models.sharding import make_mesh
from forebay.objectives import ObjectiveSettings
from forebay.objectives.build import annotations_of, build_objective
from tests.unit.models import tiny

LENGTHS = [[8, 10], [24], [5, 5, 5, 5], [11, 7]]
WIDTH = 24
ROWS = tiny.train_rows(LENGTHS, WIDTH)
DENOMINATOR = float(ROWS.loss_mask.sum())
COMPUTE = ComputeSettings(loss_chunk_tokens=16)
OBJECTIVE = ObjectiveSettings(entropy_coef=0.01)
SINGLE = MeshSettings()
RECOMPUTED = (SINGLE, MeshSettings(fsdp=2, context=2, tensor=2))
# Adam's first steps turn the rounding of a tiny gradient into a share of the learning rate, whatever its
# size. The behavior logprobs of ROWS are drawn at random: with a price of drift, hardly a step would be
# taken.
OPTIMIZER = OptimizerSettings(
    learning_rate=1e-3, warmup_steps=2, weight_decay=0.1, max_gradient_norm=0.5, drift_price=0.0
)


@functools.cache
def programs(
    mesh: MeshSettings = SINGLE,
    compute: ComputeSettings = COMPUTE,
    objective: ObjectiveSettings = OBJECTIVE,
    shapes: tuple[tuple[int, int], ...] = ((4, WIDTH),),
) -> TrainPrograms:
    """Return compiled programs; one set per settings and test session."""
    built = TrainPrograms(
        tiny.CONFIG,
        make_mesh(mesh),
        OPTIMIZER,
        build_objective(objective),
        compute,
        annotations_of(objective),
    )
    scored = compute is COMPUTE and mesh in RECOMPUTED
    built.warm_up(shapes, scored_dtypes=("float32",) if scored else ())
    return built


def take_steps(
    built: TrainPrograms, state: TrainState, batches: list[list[TrainRows]]
) -> tuple[TrainState, list[Any]]:
    """Take one optimizer step per batch of micro-batches; return the state and the steps' stats."""
    accumulator, stats = built.zeros(), []
    for batch in batches:
        num_tokens = sum(int(np.count_nonzero(rows.segment_ids)) for rows in batch)
        for rows in batch:
            placed = built.place(rows)
            accumulator = built.accumulate(state.params, accumulator, placed, DENOMINATOR, num_tokens)
        state, accumulator, done = built.apply(state, accumulator)
        stats.append(jax.device_get(done))
    return state, stats


def places() -> list[tuple[int, int, int]]:
    """Return (row, first token, length) of every sequence of `ROWS`."""
    return [
        (row, sum(lengths[:number]), length)
        for row, lengths in enumerate(LENGTHS)
        for number, length in enumerate(lengths)
    ]


def piece(row: int, start: int, length: int) -> TrainRows:
    """Return one sequence of `ROWS` in a row of its own."""
    alone = map_rows(
        lambda source: np.pad(source[row : row + 1, start : start + length], ((0, 0), (0, WIDTH - length))),
        ROWS,
    )
    return alone._replace(segment_ids=(alone.segment_ids > 0).astype(np.int32))


def batches(count: int) -> list[list[TrainRows]]:
    """Return batches of one micro-batch each, all different."""
    return [[tiny.train_rows(LENGTHS, WIDTH, seed)] for seed in range(count)]


def digest(tree: Any) -> str:
    """Return a hash of every bit of a tree."""
    content = hashlib.sha256()
    for leaf in jax.tree.leaves(snapshot(tree)):
        content.update(np.ascontiguousarray(leaf).tobytes())
    return content.hexdigest()


def relative_error(got: Any, expected: Any) -> float:
    """Return the largest difference of two trees, each leaf relative to its largest value."""

    def error(a: np.ndarray, b: np.ndarray) -> float:
        return float(np.abs(np.subtract(a, b, dtype=np.float64)).max() / max(np.abs(b).max(), 1e-30))

    return max(jax.tree.leaves(jax.tree.map(error, snapshot(got), snapshot(expected))))


def main() -> None:
    """Train three steps and print the hash of the state; run in a fresh process."""
    built = programs()
    state, _ = take_steps(built, built.init_state(tiny.params()), batches(3))
    print(digest(state))


if __name__ == "__main__":
    main()
