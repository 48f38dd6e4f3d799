"""Tiny models and packed rows that the tests of models and learner share."""

from __future__ import annotations

import jax
import numpy as np

from forebay.batching.rows import TrainRows
from forebay.models.config import ModelConfig
from forebay.models.params import Params, init_params

CONFIG = ModelConfig(
    vocab_size=40,
    num_real_tokens=37,
    hidden_size=16,
    intermediate_size=32,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_size=4,
    max_position=64,
    bos_id=1,
    eos_ids=(2,),
)


def params(config: ModelConfig = CONFIG, seed: int = 0, scale: float = 8.0) -> Params:
    """Draw a model whose logits differ enough for a mistake to show."""
    return jax.tree.map(
        lambda leaf: leaf if leaf.ndim <= 2 and (leaf == 1).all() else scale * leaf,
        init_params(config, jax.random.key(seed)),
    )


def packed_row(lengths: list[int], width: int) -> tuple[np.ndarray, np.ndarray]:
    """Return segment ids and positions [width] of sequences that lie side by side."""
    segments, positions = np.zeros(width, np.int32), np.zeros(width, np.int32)
    start = 0
    for number, length in enumerate(lengths, start=1):
        segments[start : start + length] = number
        positions[start : start + length] = np.arange(length)
        start += length
    return segments, positions


def train_rows(lengths: list[list[int]], width: int, seed: int = 0) -> TrainRows:
    """Return rows of random tokens and numbers; every token after a sequence's first two is trained."""
    generator = np.random.default_rng(seed)
    packed = [packed_row(row, width) for row in lengths]
    segments, positions = (np.stack(arrays) for arrays in zip(*packed, strict=True))
    shape = segments.shape
    behavior = generator.normal(-3.6, 0.3, shape).astype(np.float32)
    return TrainRows(
        tokens=generator.integers(0, CONFIG.num_real_tokens, shape, dtype=np.int32),
        segment_ids=segments,
        positions=positions,
        loss_mask=(segments > 0) & (positions > 1),
        advantages=generator.normal(size=shape).astype(np.float32),
        behavior_logprobs=behavior,
        proximal_logprobs=behavior,
        temperature=np.where(segments > 0, 0.8, 0.0).astype(np.float32),
        staleness=generator.integers(0, 5, shape, dtype=np.int32),
    )
