"""How much a packing computes, attention counted, beside what the same sequences need without any padding."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from forebay.batching.packing import Packing


class Work(NamedTuple):
    """Computation of one forward and backward pass, in the two units that it grows with.

    Args:
        tokens: Positions that go through the matrix products of every layer.
        pairs: Pairs of a query and a key whose score is computed, for each head.
    """

    tokens: int
    pairs: int

    def in_tokens(self, hidden_size: int) -> float:
        """Return both as one number: how many tokens alone would cost as much.

        A layer of width D has about 12 D^2 weights (4 D^2 of attention, 8 D^2 of the feed-forward layer), so
        a token costs 24 D^2 operations in it, and a pair 4 D: its score and its share of the mix, over all
        heads. A pair is then 1 / (6 D) of a token. Backward passes take twice as much of both.

        Args:
            hidden_size: Width D of the residual stream.

        References:
            Kaplan et al. 2020, Scaling laws for neural language models, table 1.
        """
        return self.tokens + self.pairs / (6 * hidden_size)


def executed_work(lengths: Sequence[int], packing: Packing, block_tokens: int) -> Work:
    """Return what a packing computes where attention works in blocks and skips those that nothing sees.

    A block of queries looks at the blocks from the beginning of its first token's segment to itself, as
    `forebay.models.blockwise` does. All slots of all rows are tokens, whether they hold one or not.

    Args:
        lengths: Tokens of each sequence.
        packing: Where each lies.
        block_tokens: Tokens of a block, `compute.attention_block_tokens`.
    """
    rows = [(bucket.length, bucket.rows) for bucket in packing.buckets]
    row_lengths = np.repeat([length for length, _ in rows], [count for _, count in rows]).astype(np.int64)
    row_starts = np.cumsum(row_lengths) - row_lengths
    starts = np.array(packing.starts, np.int64)
    offsets = starts - row_starts[np.searchsorted(row_starts, starts, side="right") - 1]
    # Blocks of queries whose first token lies in the sequence: each sees one more than the one before.
    first = -(-offsets // block_tokens)
    stop = -(-(offsets + np.array(lengths, np.int64)) // block_tokens)
    seen = (stop - first) * (first + stop + 1) // 2 - (stop - first) * (offsets // block_tokens)
    return Work(packing.num_slots, int(seen.sum()) * block_tokens**2)


def needed_work(lengths: Sequence[int]) -> Work:
    """Return what sequences need: their tokens, and each pair of a token and one that is not later."""
    exact = np.array(lengths, np.int64)
    return Work(int(exact.sum()), int((exact * (exact + 1) // 2).sum()))


def padded_ratio(
    batches: Iterable[tuple[Sequence[int], Packing]], *, hidden_size: int, block_tokens: int
) -> float:
    """Return the computation of packed batches over the unpadded minimum; 1 is the best, also of no batch.

    Args:
        batches: Lengths and packing of each.
        hidden_size: Width of the model: the narrower, the more attention weighs.
        block_tokens: Tokens of a block of attention.
    """
    executed = needed = 0.0
    for lengths, packing in batches:
        executed += executed_work(lengths, packing, block_tokens).in_tokens(hidden_size)
        needed += needed_work(lengths).in_tokens(hidden_size)
    return executed / needed if needed else 1.0


def fewest_slots(lengths: Sequence[int], devices: int) -> int:
    """Return what no packing of whole sequences can fall below, whatever shapes it may use.

    All devices compute the same shapes, so each has as many slots as the one that holds most. That one holds
    the longest sequence, or its share; and of the k * devices + 1 longest sequences, some device holds k + 1.

    Args:
        lengths: Tokens of each sequence.
        devices: Devices that rows are spread over.
    """
    ordered = sorted(lengths, reverse=True)
    together = (
        sum(ordered[k * devices - k : k * devices + 1]) for k in range((len(ordered) - 1) // devices + 1)
    )
    return max(sum(ordered), devices * max(together, default=0))
