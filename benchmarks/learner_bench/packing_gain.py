"""What packing saves: the same sequences packed into rows, and one to a padded row, by the same step."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from benchmarks.learner_bench.measuring import Spread, Timed, in_turns, ratios
from benchmarks.learner_bench.shapes import MODELS
from benchmarks.learner_bench.step import TrainStep, rows_of
from forebay.batching.packing import Bucket, pack_rows
from forebay.models.settings import ComputeSettings


class PackingGain(NamedTuple):
    """Both ways of the same sequences.

    Attributes:
        model: A key of `MODELS`.
        lengths: Of the sequences, tokens.
        row_tokens: Of a row, packed or padded.
        rows: How many rows each way takes.
        cpu_s: CPU seconds of each way's steps.
        gain: Time of padded rows over that of packed ones, by rounds.
        losses: Of each way at the first step: the same but for rounding.
    """

    model: str
    lengths: tuple[int, ...]
    row_tokens: int
    rows: dict[str, int]
    cpu_s: dict[str, list[float]]
    gain: dict[str, Spread]
    losses: dict[str, float]


def measure_gain(
    model: str, lengths: tuple[int, ...], row_tokens: int, num_rounds: int, compute: ComputeSettings
) -> PackingGain:
    """Time a step on packed rows and on padded ones, in turns."""
    rows = packed_and_padded(lengths, row_tokens)
    config = MODELS[model]
    texts = _texts(lengths, config.vocab_size)
    steps = {}
    for name, segments in rows.items():
        bucket = Bucket(len(segments), row_tokens)
        filled = rows_of(bucket, [tuple(lengths[i] for i in row) for row in segments], config.vocab_size)
        for row, members in enumerate(segments):
            flat = np.concatenate([texts[member] for member in members])
            filled.tokens[row, : len(flat)] = flat
        steps[name] = TrainStep(config, bucket, filled, compute=compute)
    for step in steps.values():
        step.once()
    losses = {name: step.loss for name, step in steps.items()}
    taken: dict[str, list[Timed]] = in_turns({name: step.once for name, step in steps.items()}, num_rounds)
    return PackingGain(
        model=model,
        lengths=lengths,
        row_tokens=row_tokens,
        rows={name: len(segments) for name, segments in rows.items()},
        cpu_s={name: [one.cpu_s for one in times] for name, times in taken.items()},
        gain=ratios(taken["padded"], taken["packed"]),
        losses=losses,
    )


def packed_and_padded(lengths: tuple[int, ...], row_tokens: int) -> dict[str, list[tuple[int, ...]]]:
    """Return for each way the sequences of every row, by their index.

    Args:
        lengths: Of the sequences, tokens; none longer than a row.
        row_tokens: Of a row.

    Example:
        >>> packed_and_padded((5, 3, 4), 8)
        {'packed': [(0, 1), (2,)], 'padded': [(0,), (1,), (2,)]}
    """
    return {
        "packed": [tuple(sorted(row.sequences)) for row in pack_rows(lengths, row_tokens)],
        "padded": [(index,) for index in range(len(lengths))],
    }


def _texts(lengths: tuple[int, ...], vocab_size: int) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [rng.integers(0, vocab_size, length, dtype=np.int32) for length in lengths]
