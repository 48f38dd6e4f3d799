"""Floating-point operations that a training step of a decoder needs, counted from its shape and its segments.

A multiplication and an addition are two. Only matrix products count, as in the usual "6 N D": the rest
(norms, activations, softmax, the optimizer) is work that a step must do and gets no credit for. Forward:

    matrices  = 2 * tokens * (L * (D * (H + 2 N) * K + H * K * D + 3 * D * F) + D * V)
    attention = L * 2 * (2 * H * K) * pairs,   pairs = sum over segments of n (n + 1) / 2

`matrices` has every weight that a token is multiplied by: the output head is one of them, the lookup in the
embedding is none. `attention` has the two products of queries with keys and of weights with values, for the
pairs that see one another and no others: not the masked half, not other segments, not padding. The backward
pass has two products for each of the forward's, so a training step is three times this. What a program
computes a second time to save memory (rematerialized blocks, scores, logits) does not count either.

Legend: L layers, D model width, H query heads, N key-value heads, K head size, F feed-forward width, V
    vocabulary.

References:
    Kaplan et al. 2020, Scaling laws for neural language models, section 2.1 (2 N and 6 N).
    Chowdhery et al. 2022, PaLM, appendix B (model FLOPs utilization, attention included).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from forebay.models.config import ModelConfig

PASSES = 3


class ModelFlops(NamedTuple):
    """Operations of one training step, forward and backward.

    Attributes:
        matrices: Products with weights.
        attention: Products of queries with keys and of attention weights with values.
    """

    matrices: int
    attention: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.matrices + self.attention


def training_flops(config: ModelConfig, segments: Iterable[Sequence[int]]) -> ModelFlops:
    """Count the operations of a training step on rows.

    Args:
        config: The model, without experts: those compute for some tokens only.
        segments: For each row, the lengths of its segments, tokens; padding is in none of them.

    Raises:
        ValueError: The model has experts.

    Example:
        >>> tiny = ModelConfig(vocab_size=10, num_real_tokens=10, hidden_size=4, intermediate_size=6,
        ...     num_layers=1, num_heads=2, num_kv_heads=1, head_size=2, max_position=8)
        >>> training_flops(tiny, [[2, 1]])
        ModelFlops(matrices=2880, attention=192)
    """
    if config.experts is not None:
        raise ValueError(f"operations of {config.experts.number} experts depend on the routing")
    lengths = [length for row in segments for length in row]
    pairs = sum(visible_pairs(length, kind.window) for length in lengths for kind in config.layer_kinds)
    attention = 2 * 2 * config.num_heads * config.head_size * pairs
    matrices = 2 * sum(lengths) * weights_of_products(config)
    return ModelFlops(PASSES * matrices, PASSES * attention)


def weights_of_products(config: ModelConfig) -> int:
    """Return how many weights a token is multiplied by."""
    heads = 2 * config.num_heads + 2 * config.num_kv_heads
    block = config.hidden_size * (heads * config.head_size + 3 * config.intermediate_size)
    return config.num_layers * block + config.hidden_size * config.vocab_size


def visible_pairs(length: int, window: int | None = None) -> int:
    """Return how many (query, key) pairs of one segment see one another.

    Args:
        length: Of the segment, tokens.
        window: Number of latest tokens that a token sees, itself included; None: all.

    Example:
        >>> visible_pairs(4), visible_pairs(4, window=2)
        (10, 7)
    """
    seen = length if window is None else min(window, length)
    return seen * (seen + 1) // 2 + (length - seen) * seen
